// The table of settings: one row per flag, environment variable and key of --config.
#include <algorithm>
#include <fstream>

#include "app/option_kinds.h"
#include "app/serve_config.h"
#include "base/error.h"
#include "kernels/device.h"

namespace bam {

namespace {

using namespace option_kinds;

// Keys travel in an HTTP header, and commas would look like a list of them.
std::string checked_key(const std::string& key, const std::string& origin) {
  if (key.empty()) throw UsageError("{}: is empty; leave it out to serve without a key", origin);
  if (key.find(',') != std::string::npos) {
    throw UsageError("{}: has a comma; several keys are several flags, a list in --config, or lines of --api-key-file",
                     origin);
  }
  if (!std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < '\x7f'; })) {
    throw UsageError("{}: a key has printable ASCII characters without blanks only", origin);
  }
  return key;
}

std::vector<std::string> read_keys(const std::string& file, const std::string& origin) {
  std::ifstream stream(file);
  if (!stream) throw UsageError("{}: cannot read {}", origin, file);
  std::vector<std::string> keys;
  for (std::string line; std::getline(stream, line);) {
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    keys.push_back(checked_key(line, fmt::format("{}: {}", origin, file)));
  }
  if (keys.empty()) throw UsageError("{}: {} holds no key", origin, file);
  return keys;
}

Kind api_keys() {
  return {"KEY",
          [](ServeConfig& c, const std::vector<std::string>& v, const std::string& o) {
            for (const std::string& key : v) c.server.api_keys.push_back(checked_key(key, o));
          },
          [](const ServeConfig&) { return std::string(); }};
}

Kind api_key_file() {
  return {"FILE",
          [](ServeConfig& c, const std::vector<std::string>& v, const std::string& o) {
            for (std::string& key : read_keys(v.back(), o)) c.server.api_keys.push_back(std::move(key));
          },
          [](const ServeConfig&) { return std::string(); }};
}

Kind admin_key() {
  return {"KEY",
          [](ServeConfig& c, const std::vector<std::string>& v, const std::string& o) {
            c.server.admin_key = v.back().empty() ? "" : checked_key(v.back(), o);
          },
          [](const ServeConfig&) { return std::string(); }};
}

Kind device() {
  return {"auto|cpu|cuda|cuda:N",
          [](ServeConfig& c, const std::vector<std::string>& v, const std::string& o) {
            int index = 0;
            if (!parse_device(v.back(), index)) {
              throw UsageError("{}: '{}' is not one of auto, cpu, cuda, cuda:N", o, v.back());
            }
            c.model.device = v.back();
          },
          [](const ServeConfig& c) { return c.model.device; }};
}

Kind kv_dtype() {
  std::vector<std::string> names;
  for (const DType dtype : kKvDtypes) names.emplace_back(dtype_name(dtype));
  const std::string choices = join(names, "|");
  return {choices,
          [=](ServeConfig& c, const std::vector<std::string>& v, const std::string& o) {
            check_one_of(v.back(), o, choices);
            const auto at = std::find(names.begin(), names.end(), v.back()) - names.begin();
            c.model.engine.kv_dtype = kKvDtypes[at];
          },
          [](const ServeConfig& c) { return std::string(dtype_name(c.model.engine.kv_dtype)); }};
}

Kind model_names() {
  Kind kind = list(
      "NAME", [](auto& c) -> auto& { return c.server.served_model_names; });
  kind.apply = [split_names = kind.apply](ServeConfig& c, const std::vector<std::string>& v, const std::string& o) {
    split_names(c, v, o);
    if (c.server.served_model_names.empty()) throw UsageError("{}: is empty", o);
  };
  kind.show = [](const ServeConfig&) { return std::string("the folder's name"); };
  return kind;
}

Kind metrics_compat() {
  return either(
      "vllm", "off", [](auto& c) -> auto& { return c.server.vllm_metrics; });
}

#define BAM_FIELD(member) \
  [](auto& c) -> auto& { return c.member; }

// What a row may be besides a plain setting of the server.
enum : unsigned {
  kPlain = 0,
  kModel = 1,   // also a flag of generate and inspect
  kList = 2,    // may be given several times
  kSecret = 4,  // never shown
  kStage = 8,   // also a flag of worker
};

struct Row {
  const char* name;
  const char* help;
  Kind kind;
  unsigned traits = kPlain;
};

// clang-format off
std::vector<Row> rows() {
  constexpr int64_t kMany = int64_t{1} << 40;
  return {
      {"host", "address to listen on", text("ADDRESS", BAM_FIELD(server.host))},
      {"port", "port to listen on; 0: any free one", integer(BAM_FIELD(server.port), 0, 65535)},
      {"served-model-name", "names that requests may use; the first one is in replies", model_names(), kList},

      {"model", "checkpoint folder; the word demo is the bundled model", text("DIR", BAM_FIELD(model.model)), kModel},
      {"device", "where the model runs; cuda is cuda:0", device(), kModel},
      {"cuda-gemm", "matrix products on a GPU; with cublas a text may depend on what else runs (not batch-invariant)",
       one_of("own|cublas|cublas-tf32", BAM_FIELD(model.cuda_gemm)), kModel},
      {"threads", "compute threads; 0: all cores this process may use",
       integer(BAM_FIELD(model.threads), 0, 4096), kModel},
      {"dtype", "weights in memory; auto: as in the checkpoint",
       one_of("auto|f32|f16|bf16|int8|int4", BAM_FIELD(model.dtype)), kModel},
      {"math", "fast: 16-bit weights and activations are multiplied in bfloat16 (CPU)",
       one_of("exact|fast", BAM_FIELD(model.math)), kModel},
      {"kv-dtype", "keys and values in memory; bf16 and fp8 on a GPU only", kv_dtype(), kModel},
      {"kv-memory", "memory of the KV cache", bytes(BAM_FIELD(model.engine.kv_memory_bytes), 1, "auto"), kModel},
      {"page-size", "tokens per KV page, a multiple of 64",
       integer(BAM_FIELD(model.engine.page_size), 64, 4096, {}, 64), kModel},
      {"max-model-len", "longest prompt plus output; auto: what the KV memory holds",
       integer(BAM_FIELD(model.engine.max_model_len), 1, kMany, "auto"), kModel},
      {"attention", "certified: leave out keys that provably do not matter",
       either("certified", "dense", BAM_FIELD(model.certified_attention)), kModel},
      {"attention-math", "int8: multiply the codes of int8 and int4 pages (CPU); auto: of int8 pages",
       one_of("auto|f32|int8", BAM_FIELD(model.attention_math)), kModel},
      {"attention-epsilon", "softmax mass that certified attention may leave out per row",
       number("X", BAM_FIELD(model.attention_epsilon), 0, 0.5), kModel},

      {"max-num-seqs", "sequences in one step", integer(BAM_FIELD(model.engine.max_num_seqs), 1, 65536), kStage},
      {"max-batched-tokens", "tokens in one step", integer(BAM_FIELD(model.engine.max_batched_tokens), 1, 1 << 20), kStage},
      {"step-target-ms", "prompts are read in pieces that keep a step about this short",
       number("MS", BAM_FIELD(model.engine.step_target_ms), 0.1, 1e6)},
      {"prefix-cache", "reuse KV pages of equal prompt beginnings", on_off(BAM_FIELD(model.engine.prefix_cache)), kStage},
      {"draft", "guess what follows from the text itself and check several tokens in one step; tokens are the same",
       either("ngram", "off", BAM_FIELD(model.engine.drafts))},
      {"kv-dir", "folder for KV snapshots; empty: off", text("DIR", BAM_FIELD(model.engine.kv_dir))},
      {"kv-store", "where replicas share long prompts: a folder, redis:HOST[:PORT][/NAME] or s3:BUCKET[/PREFIX]; empty: off",
       text("PLACE", BAM_FIELD(kv_store.place))},
      {"kv-store-min-tokens", "shorter prompts are neither written there nor looked for",
       integer(BAM_FIELD(kv_store.min_tokens), 1, kMany)},
      {"kv-store-timeout", "longest time that a request waits for the store before it is computed",
       seconds(BAM_FIELD(kv_store.timeout_s), 0.001)},
      {"kv-store-limit", "size of a folder, beyond which what was used least recently is removed",
       bytes(BAM_FIELD(kv_store.limit_bytes), 1 << 20)},
      {"kv-events", "ZeroMQ endpoint for KV events in vLLM's format (tcp://*:5557); empty: off",
       text("ENDPOINT", BAM_FIELD(kv_events.endpoint))},
      {"kv-events-replay", "ZeroMQ endpoint for who missed some; empty: off", text("ENDPOINT", BAM_FIELD(kv_events.replay))},
      {"kv-events-topic", "under which they are published", text("TEXT", BAM_FIELD(kv_events.topic))},
      {"batch-dir", "folder for files and batches of the batch API; empty: off", text("DIR", BAM_FIELD(server.batch_dir))},
      {"default-max-tokens", "length of a chat's answer when neither the request nor generation_config.json limits it; 0: the rest of the context",
       integer(BAM_FIELD(server.default_max_tokens), 0, kMany)},
      {"max-queue", "waiting requests before new ones get 429", integer(BAM_FIELD(model.engine.max_queue), 1, kMany)},
      {"max-queued-tokens", "prompt tokens of waiting requests before new ones get 429",
       integer(BAM_FIELD(model.engine.max_queued_tokens), 1, kMany)},
      {"queue-timeout", "longest wait in the queue; 0: no limit", seconds(BAM_FIELD(model.engine.queue_timeout_s))},

      {"stages", "ranks that share the layers; without --rendezvous on this machine alone",
       integer(BAM_FIELD(model.stages.count), 1, 1024), kStage},
      {"stage-rank", "which rank a worker is, from 1; with mpi the job knows", integer(BAM_FIELD(model.stages.rank), 1, 1023), kStage},
      {"stage-layers", "layers of each rank (4,4,4); empty: by their cost", text("LIST", BAM_FIELD(model.stages.layers)), kStage},
      {"transport", "how ranks talk; with +nccl rows go from GPU to GPU", one_of("gloo|mpi|gloo+nccl|mpi+nccl", BAM_FIELD(model.stages.transport)), kStage},
      {"rendezvous", "where ranks find each other: file:DIR or redis:HOST[:PORT][/NAME]",
       text("PLACE", BAM_FIELD(model.stages.rendezvous)), kStage},
      {"stage-address", "address by which the other ranks reach this one; empty: the machine's name",
       text("ADDRESS", BAM_FIELD(model.stages.address)), kStage},
      {"stage-deadline", "silence after which a rank is lost", seconds(BAM_FIELD(model.stages.deadline_s), 0.1), kStage},
      {"replay-limit", "lost ranks that a request survives; 0: the first one ends the server",
       integer(BAM_FIELD(model.engine.replay_limit), 0, 1 << 20), kStage},
      {"group-timeout", "time for the ranks to come together, at start and after a loss",
       seconds(BAM_FIELD(model.engine.group_timeout_s), 1), kStage},

      {"api-key", "key that clients must send; several: several flags", api_keys(), kList | kSecret},
      {"api-key-file", "keys, one per line; lines with # are comments", api_key_file()},
      {"admin-key", "key for snapshots and cancel_all; empty: these are off", admin_key(), kSecret},
      {"cache-salt-per-key", "with several API keys, share cached prompts within one only",
       on_off(BAM_FIELD(server.cache_salt_per_key))},
      {"max-priority", "priorities from -N to N are for everyone, others for the admin key",
       integer(BAM_FIELD(server.max_priority), 0, 1 << 30)},
      {"cors-origins", "origins whose pages may call this server; * for all; empty: none",
       list("LIST", BAM_FIELD(server.cors_origins)), kList},
      {"allowed-hosts", "host names that clients without keys may use for this server; * for all",
       list("LIST", BAM_FIELD(server.allowed_hosts)), kList},
      {"tls-cert", "certificate chain (PEM)", text("FILE", BAM_FIELD(server.tls_cert))},
      {"tls-key", "private key (PEM)", text("FILE", BAM_FIELD(server.tls_key))},

      {"max-body", "largest request body", bytes(BAM_FIELD(server.max_body_bytes), 1024)},
      {"max-connections", "connections at a time", integer(BAM_FIELD(server.max_connections), 1, 1 << 20)},
      {"http-threads", "event loops", integer(BAM_FIELD(server.io_threads), 1, 64)},
      {"request-timeout", "longest time from arrival to the last token; 0: no limit",
       seconds(BAM_FIELD(server.request_timeout_s))},
      {"drain-timeout", "time for running requests after SIGTERM", seconds(BAM_FIELD(server.drain_timeout_s))},
      {"read-timeout", "time for a client to send its request", seconds(BAM_FIELD(server.read_timeout_s))},
      {"idle-timeout", "connections without a request are closed after it", seconds(BAM_FIELD(server.idle_timeout_s))},
      {"stall-timeout", "streams of which the client reads nothing are cut after it",
       seconds(BAM_FIELD(server.stall_timeout_s))},
      {"max-unsent", "bytes that a stream's reader may be behind before its request pauses", bytes(BAM_FIELD(server.max_unsent_bytes), 4096)},
      {"ping-interval", "between the comments that keep streams alive", seconds(BAM_FIELD(server.ping_interval_s), 1)},
      {"resume-timeout", "resumable streams that nobody reads are kept that long", seconds(BAM_FIELD(server.resume_timeout_s))},
      {"resume-buffer", "bytes of events that a resumable stream keeps: half of them sent, half to be sent",
       bytes(BAM_FIELD(server.resume_buffer_bytes), 4096)},
      {"max-resumable", "resumable streams that are kept at a time; beyond it 429", integer(BAM_FIELD(server.max_resumable), 0, 1 << 16)},

      {"log-level", "how much the log says", one_of("trace|debug|info|warn|error|off", BAM_FIELD(log_level)), kStage},
      {"log-format", "form of the log lines", one_of("text|json", BAM_FIELD(log_format)), kStage},
      {"log-prompts", "write prompts into the log", on_off(BAM_FIELD(server.log_prompts))},
      {"metrics-compat", "also publish metrics under vLLM's names", metrics_compat()},
  };
}
// clang-format on

#undef BAM_FIELD

std::vector<ServeOption> make_options() {
  const ServeConfig defaults;
  std::vector<ServeOption> options;
  for (Row& row : rows()) {
    options.push_back({.name = row.name,
                       .metavar = row.kind.metavar,
                       .help = row.help,
                       .fallback = row.kind.show(defaults),
                       .list = (row.traits & kList) != 0,
                       .secret = (row.traits & kSecret) != 0,
                       .model = (row.traits & kModel) != 0,
                       .stage = (row.traits & kStage) != 0,
                       .apply = row.kind.apply,
                       .show = row.kind.show});
  }
  return options;
}

}  // namespace

const std::vector<ServeOption>& serve_options() {
  static const std::vector<ServeOption> options = make_options();
  return options;
}

}  // namespace bam
