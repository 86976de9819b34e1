// The table of settings behind `bam serve`.
#include <fstream>
#include <set>
#include <sstream>

#include "app/serve_config.h"
#include "base/error.h"

namespace bam {

namespace {

using Apply = std::function<void(ServeConfig&, const std::string&, const std::string&)>;

void check_one_of(const std::string& value, const std::string& origin, const std::string& choices) {
  std::stringstream stream(choices);
  for (std::string choice; std::getline(stream, choice, '|');) {
    if (value == choice) return;
  }
  throw UsageError("{}: '{}' is not one of {}", origin, value, choices);
}

bool parse_switch(const std::string& value, const std::string& origin) {
  if (value == "on" || value == "true" || value == "1") return true;
  if (value == "off" || value == "false" || value == "0") return false;
  throw UsageError("{}: '{}' is not one of on, off", origin, value);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

std::vector<std::string> read_keys(const std::string& file, const std::string& origin) {
  std::ifstream stream(file);
  if (!stream) throw UsageError("{}: cannot read {}", origin, file);
  std::vector<std::string> keys;
  for (std::string line; std::getline(stream, line);) {
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
    if (!line.empty() && line[0] != '#') keys.push_back(line);
  }
  if (keys.empty()) throw UsageError("{}: {} holds no key", origin, file);
  return keys;
}

DType parse_kv_dtype(const std::string& value, const std::string& origin, const std::string& choices) {
  for (const DType dtype : kKvDtypes) {
    if (value == dtype_name(dtype)) return dtype;
  }
  throw UsageError("{}: '{}' is not one of {}", origin, value, choices);
}

// Builders for the common kinds of settings; `field` picks where the value goes.
template <typename Field>
Apply text_into(Field field) {
  return [field](ServeConfig& c, const std::string& v, const std::string&) { field(c) = v; };
}
template <typename Field>
Apply integer_into(Field field, int64_t min, int64_t max) {
  return [=](ServeConfig& c, const std::string& v, const std::string& o) {
    using T = std::remove_reference_t<decltype(field(c))>;
    field(c) = static_cast<T>(parse_integer(v, o, min, max));
  };
}
template <typename Field>
Apply seconds_into(Field field) {
  return [field](ServeConfig& c, const std::string& v, const std::string& o) { field(c) = parse_seconds(v, o); };
}
template <typename Field>
Apply bytes_into(Field field, uint64_t min) {
  return [=](ServeConfig& c, const std::string& v, const std::string& o) {
    field(c) = parse_bytes(v, o);
    if (field(c) < min) throw UsageError("{}: '{}' is less than {} bytes", o, v, min);
  };
}
template <typename Field>
Apply choice_into(Field field, std::string choices) {
  return [=](ServeConfig& c, const std::string& v, const std::string& o) {
    check_one_of(v, o, choices);
    field(c) = v;
  };
}

#define BAM_FIELD(member) \
  [](ServeConfig & c) -> auto& { return c.member; }

void add_model_options(std::vector<ServeOption>& out) {
  constexpr bool kModel = true;
  out.push_back({"model", "DIR", "checkpoint folder; the word demo is the bundled model", "demo", false, false, kModel,
                 text_into(BAM_FIELD(model.model))});
  out.push_back({"device", "auto|cpu|cuda", "where the model runs", "auto", false, false, kModel,
                 choice_into(BAM_FIELD(model.device), "auto|cpu|cuda")});
  out.push_back({"cuda-gemm", "own|cublas|cublas-tf32",
                 "matrix products on a GPU; with cublas a text may depend on what else runs (not batch-invariant)",
                 "own", false, false, kModel, choice_into(BAM_FIELD(model.cuda_gemm), "own|cublas|cublas-tf32")});
  out.push_back({"threads", "N", "compute threads; 0: all cores this process may use", "0", false, false, kModel,
                 integer_into(BAM_FIELD(model.threads), 0, 4096)});
  out.push_back({"dtype", "auto|f32|f16|bf16|int8", "weights in memory; auto: as in the checkpoint", "auto", false,
                 false, kModel, choice_into(BAM_FIELD(model.dtype), "auto|f32|f16|bf16|int8")});
  const char* kv_dtypes = "f32|f16|bf16|int8|fp8|int4";
  out.push_back({"kv-dtype", kv_dtypes, "keys and values in memory; bf16 and fp8 on a GPU only", "f16", false, false,
                 kModel, [=](ServeConfig& c, const std::string& v, const std::string& o) {
                   c.model.engine.kv_dtype = parse_kv_dtype(v, o, kv_dtypes);
                 }});
  out.push_back({"kv-memory", "auto|SIZE", "memory of the KV cache", "auto", false, false, kModel,
                 [](ServeConfig& c, const std::string& v, const std::string& o) {
                   c.model.engine.kv_memory_bytes = v == "auto" ? 0 : parse_bytes(v, o);
                   if (v != "auto" && c.model.engine.kv_memory_bytes == 0) throw UsageError("{}: must not be 0", o);
                 }});
  out.push_back({"page-size", "N", "tokens per KV page, a multiple of 64", "64", false, false, kModel,
                 [](ServeConfig& c, const std::string& v, const std::string& o) {
                   c.model.engine.page_size = static_cast<int>(parse_integer(v, o, 64, 4096));
                   if (c.model.engine.page_size % 64 != 0) throw UsageError("{}: '{}' is not a multiple of 64", o, v);
                 }});
  out.push_back({"max-model-len", "auto|N", "longest prompt plus output; auto: what the KV memory holds", "auto", false,
                 false, kModel, [](ServeConfig& c, const std::string& v, const std::string& o) {
                   c.model.engine.max_model_len = v == "auto" ? 0 : parse_integer(v, o, 1, int64_t{1} << 40);
                 }});
  out.push_back({"attention", "certified|dense", "certified: leave out keys that provably do not matter", "certified",
                 false, false, kModel, [](ServeConfig& c, const std::string& v, const std::string& o) {
                   check_one_of(v, o, "certified|dense");
                   c.model.certified_attention = v == "certified";
                 }});
  out.push_back({"attention-epsilon", "X", "softmax mass that certified attention may leave out per row", "9.5367e-07",
                 false, false, kModel, [](ServeConfig& c, const std::string& v, const std::string& o) {
                   c.model.attention_epsilon = static_cast<float>(parse_number(v, o, 0, 0.5));
                 }});
}

void add_engine_options(std::vector<ServeOption>& out) {
  const auto add = [&](const char* name, const char* metavar, const char* help, const char* fallback, Apply apply) {
    out.push_back({name, metavar, help, fallback, false, false, false, std::move(apply)});
  };
  add("max-num-seqs", "N", "sequences in one step", "64", integer_into(BAM_FIELD(model.engine.max_num_seqs), 1, 65536));
  add("max-batched-tokens", "N", "tokens in one step", "2048",
      integer_into(BAM_FIELD(model.engine.max_batched_tokens), 1, 1 << 20));
  add("step-target-ms", "MS", "prompts are read in pieces that keep a step about this short", "50",
      [](ServeConfig& c, const std::string& v, const std::string& o) {
        c.model.engine.step_target_ms = parse_number(v, o, 0.1, 1e6);
      });
  add("prefix-cache", "on|off", "reuse KV pages of equal prompt beginnings", "on",
      [](ServeConfig& c, const std::string& v, const std::string& o) {
        c.model.engine.prefix_cache = parse_switch(v, o);
      });
  add("kv-dir", "DIR", "folder for KV snapshots; empty: off", "",
      [](ServeConfig& c, const std::string& v, const std::string&) { c.model.engine.kv_dir = v; });
  add("max-queue", "N", "waiting requests before new ones get 429", "1024",
      integer_into(BAM_FIELD(model.engine.max_queue), 1, int64_t{1} << 40));
  add("max-queued-tokens", "N", "prompt tokens of waiting requests before new ones get 429", "4000000",
      integer_into(BAM_FIELD(model.engine.max_queued_tokens), 1, int64_t{1} << 40));
  add("queue-timeout", "TIME", "longest wait in the queue; 0: no limit", "0",
      seconds_into(BAM_FIELD(model.engine.queue_timeout_s)));
}

void add_access_options(std::vector<ServeOption>& out) {
  constexpr bool kList = true, kSecret = true;
  out.push_back({"api-key", "KEY", "key that clients must send; several: several flags", "", kList, kSecret, false,
                 [](ServeConfig& c, const std::string& v, const std::string&) {
                   for (std::string& key : split(v)) c.server.api_keys.push_back(std::move(key));
                 }});
  out.push_back({"api-key-file", "FILE", "keys, one per line; lines with # are comments", "", false, false, false,
                 [](ServeConfig& c, const std::string& v, const std::string& o) {
                   for (std::string& key : read_keys(v, o)) c.server.api_keys.push_back(std::move(key));
                 }});
  out.push_back({"admin-key", "KEY", "key for snapshots and cancel_all; empty: these are off", "", false, kSecret,
                 false, text_into(BAM_FIELD(server.admin_key))});
  out.push_back({"cache-salt-per-key", "on|off", "share cached prompts within one API key only", "off", false, false,
                 false, [](ServeConfig& c, const std::string& v, const std::string& o) {
                   c.server.cache_salt_per_key = parse_switch(v, o);
                 }});
  out.push_back({"cors-origins", "LIST", "origins whose pages may call this server; * for all; empty: none", "", kList,
                 false, false,
                 [](ServeConfig& c, const std::string& v, const std::string&) { c.server.cors_origins = split(v); }});
  out.push_back({"allowed-hosts", "LIST", "host names that clients without keys may use for this server; * for all", "",
                 kList, false, false,
                 [](ServeConfig& c, const std::string& v, const std::string&) { c.server.allowed_hosts = split(v); }});
  out.push_back(
      {"tls-cert", "FILE", "certificate chain (PEM)", "", false, false, false, text_into(BAM_FIELD(server.tls_cert))});
  out.push_back(
      {"tls-key", "FILE", "private key (PEM)", "", false, false, false, text_into(BAM_FIELD(server.tls_key))});
}

void add_http_options(std::vector<ServeOption>& out) {
  const auto add = [&](const char* name, const char* metavar, const char* help, const char* fallback, Apply apply) {
    out.push_back({name, metavar, help, fallback, false, false, false, std::move(apply)});
  };
  add("max-body", "SIZE", "largest request body", "32MiB", bytes_into(BAM_FIELD(server.max_body_bytes), 1024));
  add("max-connections", "N", "connections at a time", "4096",
      integer_into(BAM_FIELD(server.max_connections), 1, 1 << 20));
  add("http-threads", "N", "event loops", "2", integer_into(BAM_FIELD(server.io_threads), 1, 64));
  add("request-timeout", "TIME", "longest time from arrival to the last token; 0: no limit", "0",
      seconds_into(BAM_FIELD(server.request_timeout_s)));
  add("drain-timeout", "TIME", "time for running requests after SIGTERM", "30s",
      seconds_into(BAM_FIELD(server.drain_timeout_s)));
  add("read-timeout", "TIME", "time for a client to send its request", "30s",
      seconds_into(BAM_FIELD(server.read_timeout_s)));
  add("idle-timeout", "TIME", "connections without a request are closed after it", "300s",
      seconds_into(BAM_FIELD(server.idle_timeout_s)));
  add("stall-timeout", "TIME", "streams of which the client reads nothing are cut after it", "60s",
      seconds_into(BAM_FIELD(server.stall_timeout_s)));
  add("max-unsent", "SIZE", "bytes that a stream's reader may be behind", "1MiB",
      bytes_into(BAM_FIELD(server.max_unsent_bytes), 4096));
  add("ping-interval", "TIME", "between the comments that keep streams alive", "10s",
      [](ServeConfig& c, const std::string& v, const std::string& o) {
        c.server.ping_interval_s = parse_seconds(v, o);
        if (c.server.ping_interval_s < 1) throw UsageError("{}: '{}' is less than 1s", o, v);
      });
  add("log-level", "LEVEL", "trace, debug, info, warn, error or off", "info",
      choice_into(BAM_FIELD(log_level), "trace|debug|info|warn|error|off"));
  add("log-format", "text|json", "form of the log lines", "text", choice_into(BAM_FIELD(log_format), "text|json"));
  add("log-prompts", "on|off", "write prompts into the log", "off",
      [](ServeConfig& c, const std::string& v, const std::string& o) { c.server.log_prompts = parse_switch(v, o); });
  add("metrics-compat", "vllm|off", "also publish metrics under vLLM's names", "off",
      [](ServeConfig& c, const std::string& v, const std::string& o) {
        check_one_of(v, o, "vllm|off");
        c.server.vllm_metrics = v == "vllm";
      });
}

std::vector<ServeOption> make_options() {
  std::vector<ServeOption> options;
  options.push_back(
      {"host", "ADDRESS", "address to listen on", "127.0.0.1", false, false, false, text_into(BAM_FIELD(server.host))});
  options.push_back({"port", "N", "port to listen on; 0: any free one", "8000", false, false, false,
                     integer_into(BAM_FIELD(server.port), 0, 65535)});
  options.push_back({"served-model-name", "NAME", "names that requests may use; the first one is in replies",
                     "the folder's name", true, false, false,
                     [](ServeConfig& c, const std::string& v, const std::string& o) {
                       c.server.served_model_names = split(v);
                       if (c.server.served_model_names.empty()) throw UsageError("{}: is empty", o);
                     }});
  add_model_options(options);
  add_engine_options(options);
  add_access_options(options);
  add_http_options(options);
  return options;
}

#undef BAM_FIELD

}  // namespace

const std::vector<ServeOption>& serve_options() {
  static const std::vector<ServeOption> options = make_options();
  return options;
}

}  // namespace bam
