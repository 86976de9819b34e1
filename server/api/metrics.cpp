#include "server/api/metrics.h"

#include <unistd.h>
#include <fstream>

#include <fmt/format.h>

#include "models/head_report.h"

namespace bam {

namespace {

// Label values: backslash, quote and newline are escaped.
std::string label(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out;
}

class TextFormat {
 public:
  explicit TextFormat(std::string labels) : labels_(std::move(labels)) {}

  void header(std::string_view name, std::string_view type, std::string_view help) {
    out_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  void sample(std::string_view name, double value, std::string_view extra = {}) {
    out_ += name;
    append_labels(extra);
    out_ += fmt::format(" {}\n", value);
  }
  void single(std::string_view name, std::string_view type, std::string_view help, double value) {
    header(name, type, help);
    sample(name, value);
  }
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram) {
    header(name, "histogram", help);
    const std::vector<uint64_t> counts = histogram.cumulative_counts();
    const std::string bucket = std::string(name) + "_bucket";
    for (size_t i = 0; i < histogram.bounds().size(); ++i) {
      sample(bucket, static_cast<double>(counts[i]), fmt::format("le=\"{}\"", histogram.bounds()[i]));
    }
    // The +Inf bucket is the count; taking both from one reading keeps them equal while values arrive.
    sample(bucket, static_cast<double>(counts.back()), "le=\"+Inf\"");
    sample(std::string(name) + "_sum", histogram.sum());
    sample(std::string(name) + "_count", static_cast<double>(counts.back()));
  }
  std::string take() { return std::move(out_); }

 private:
  void append_labels(std::string_view extra) {
    if (labels_.empty() && extra.empty()) return;
    out_ += '{';
    out_ += labels_;
    if (!labels_.empty() && !extra.empty()) out_ += ',';
    out_ += extra;
    out_ += '}';
  }

  std::string labels_;
  std::string out_;
};

constexpr std::array<const char*, 5> kFinishNames = {"stop", "length", "abort", "timeout", "error"};

double load(const std::atomic<uint64_t>& counter) {
  return static_cast<double>(counter.load(std::memory_order_relaxed));
}

void write_engine(TextFormat& out, const Engine& engine) {
  const EngineStats& stats = engine.stats();
  const auto picture = engine.picture();
  out.single("bam_requests_running", "gauge", "Requests in the batch.", static_cast<double>(picture->running));
  out.single("bam_requests_waiting", "gauge", "Requests in the queue.", static_cast<double>(picture->waiting));
  out.single("bam_requests_paused", "gauge", "Requests that wait for their reader.",
             static_cast<double>(picture->paused));
  out.single("bam_queued_prompt_tokens", "gauge", "Prompt tokens of waiting requests.",
             static_cast<double>(picture->queued_tokens));
  out.single("bam_queued_work_seconds", "gauge", "Predicted work before a new request would start.",
             picture->queued_work_s);
  out.header("bam_kv_pages", "gauge", "Pages of the KV cache by state.");
  out.sample("bam_kv_pages", static_cast<double>(picture->pages_free), "state=\"free\"");
  out.sample("bam_kv_pages", static_cast<double>(picture->pages_cached), "state=\"cached\"");
  out.sample("bam_kv_pages", static_cast<double>(picture->pages_used), "state=\"used\"");
  out.single("bam_kv_capacity_tokens", "gauge", "Tokens that fit when no page is freed early.",
             static_cast<double>(engine.capacity_tokens()));
  out.single("bam_steps_total", "counter", "Engine steps.", load(stats.steps));
  out.single("bam_prompt_tokens_total", "counter", "Prompt tokens read.", load(stats.prompt_tokens));
  out.single("bam_generation_tokens_total", "counter", "Tokens generated.", load(stats.generated_tokens));
  out.single("bam_prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
             load(stats.prefix_queries));
  out.single("bam_prefix_cache_hits_total", "counter", "Of these, tokens found.", load(stats.prefix_hits));
  out.single("bam_preemptions_total", "counter", "Sequences put back into the queue.", load(stats.preemptions));
  out.single("bam_pauses_total", "counter", "Times a request was paused for its reader.", load(stats.pauses));
  out.single("bam_kv_pages_evicted_total", "counter", "Cached pages given to new requests.", load(stats.pages_evicted));
  out.single("bam_kv_reach_freed_bytes_total", "counter",
             "KV bytes freed early because the positional prior can no longer see them.",
             load(stats.reach_freed_bytes));
  out.header("bam_requests_finished_total", "counter", "Finished choices by reason.");
  for (size_t i = 0; i < kFinishNames.size(); ++i) {
    out.sample("bam_requests_finished_total", load(stats.finished[i]), fmt::format("reason=\"{}\"", kFinishNames[i]));
  }
  out.histogram("bam_time_to_first_token_seconds", "From submit to the first token.", stats.ttft_s);
  out.histogram("bam_inter_token_latency_seconds", "Between tokens of one choice.", stats.inter_token_s);
  out.histogram("bam_e2e_request_latency_seconds", "From submit to the last token.", stats.e2e_s);
  out.histogram("bam_request_queue_time_seconds", "Waiting for the first step.", stats.queue_s);
  out.histogram("bam_request_prefill_time_seconds", "Reading the prompt.", stats.prefill_s);
  out.histogram("bam_request_decode_time_seconds", "From the first to the last token.", stats.decode_s);
  out.histogram("bam_request_prompt_tokens", "Prompt lengths.", stats.prompt_len);
  out.histogram("bam_request_generation_tokens", "Generated lengths.", stats.generation_len);
  out.histogram("bam_step_seconds", "Engine steps.", stats.step_s);
}

// Pairs of a query row and 64 keys, summed over the heads of each class.
void write_attention(TextFormat& out, const Engine& engine) {
  const auto picture = engine.picture();
  std::map<std::string_view, AttentionCounters> by_class;
  const auto& heads = engine.heads();
  for (size_t i = 0; i < heads.size() && i < picture->attention.size(); ++i) {
    by_class[head_class(engine.model_config(), heads[i])] += picture->attention[i];
  }
  out.header("bam_attention_tiles_total", "counter",
             "Pairs of a query row and 64 keys that attention read or proved negligible, by head class.");
  for (const auto& [name, counts] : by_class) {
    out.sample("bam_attention_tiles_total", static_cast<double>(counts.visited),
               fmt::format("class=\"{}\",outcome=\"visited\"", name));
    out.sample("bam_attention_tiles_total", static_cast<double>(counts.skipped),
               fmt::format("class=\"{}\",outcome=\"skipped\"", name));
  }
  out.header("bam_attention_bound_tests_total", "counter",
             "Bounds evaluated to prove tiles negligible, by head class.");
  for (const auto& [name, counts] : by_class) {
    out.sample("bam_attention_bound_tests_total", static_cast<double>(counts.bound_tests),
               fmt::format("class=\"{}\"", name));
  }
  out.header("bam_attention_left_out_bound", "gauge",
             "Largest share of a row's softmax mass that left-out keys could have had, by the bounds used.");
  for (const auto& [name, counts] : by_class) {
    out.sample("bam_attention_left_out_bound", static_cast<double>(counts.left_out), fmt::format("class=\"{}\"", name));
  }
}

// The names that vLLM's Grafana board reads.
void write_vllm(TextFormat& out, const Engine& engine) {
  const EngineStats& stats = engine.stats();
  const auto picture = engine.picture();
  const double pages = static_cast<double>(picture->pages_total);
  out.single("vllm:num_requests_running", "gauge", "Requests in the batch.", static_cast<double>(picture->running));
  out.single("vllm:num_requests_waiting", "gauge", "Requests in the queue.", static_cast<double>(picture->waiting));
  const double used = pages > 0 ? static_cast<double>(picture->pages_used) / pages : 0;
  out.single("vllm:kv_cache_usage_perc", "gauge", "KV cache use, 1 is full.", used);
  out.single("vllm:gpu_cache_usage_perc", "gauge", "KV cache use, 1 is full (old name).", used);
  out.single("vllm:prompt_tokens_total", "counter", "Prompt tokens read.", load(stats.prompt_tokens));
  out.single("vllm:generation_tokens_total", "counter", "Tokens generated.", load(stats.generated_tokens));
  out.single("vllm:prefix_cache_queries_total", "counter", "Tokens looked up.", load(stats.prefix_queries));
  out.single("vllm:prefix_cache_hits_total", "counter", "Tokens found.", load(stats.prefix_hits));
  out.single("vllm:num_preemptions_total", "counter", "Preemptions.", load(stats.preemptions));
  out.header("vllm:request_success_total", "counter", "Finished requests by reason.");
  for (size_t i = 0; i < 3; ++i) {
    out.sample("vllm:request_success_total", load(stats.finished[i]),
               fmt::format("finished_reason=\"{}\"", kFinishNames[i]));
  }
  out.histogram("vllm:time_to_first_token_seconds", "Time to first token.", stats.ttft_s);
  out.histogram("vllm:inter_token_latency_seconds", "Inter-token latency.", stats.inter_token_s);
  out.histogram("vllm:time_per_output_token_seconds", "Inter-token latency (old name).", stats.inter_token_s);
  out.histogram("vllm:e2e_request_latency_seconds", "End-to-end latency.", stats.e2e_s);
  out.histogram("vllm:request_queue_time_seconds", "Queue time.", stats.queue_s);
  out.histogram("vllm:request_prefill_time_seconds", "Prefill time.", stats.prefill_s);
  out.histogram("vllm:request_decode_time_seconds", "Decode time.", stats.decode_s);
  out.histogram("vllm:request_prompt_tokens", "Prompt tokens.", stats.prompt_len);
  out.histogram("vllm:request_generation_tokens", "Generated tokens.", stats.generation_len);
}

void write_http(TextFormat& out, const MetricsInput& input) {
  const HttpMetrics& http = input.http;
  out.header("bam_http_responses_total", "counter", "HTTP responses by route and status.");
  for (const auto& [key, count] : http.responses()) {
    out.sample("bam_http_responses_total", static_cast<double>(count),
               fmt::format("route=\"{}\",status=\"{}\"", label(key.first), key.second));
  }
  out.single("bam_http_connections", "gauge", "Open connections.", static_cast<double>(http.open_connections.load(std::memory_order_relaxed)));
  out.single("bam_http_streams", "gauge", "Open event streams.",
             static_cast<double>(http.open_streams.load(std::memory_order_relaxed)));
  out.single("bam_http_body_bytes", "gauge", "Request bodies in memory.",
             static_cast<double>(http.body_bytes.load(std::memory_order_relaxed)));
  out.single("bam_http_disconnects_total", "counter", "Clients that left before their reply was complete.",
             load(http.disconnects));
  out.single("bam_http_slow_readers_total", "counter", "Streams cut because nobody read them.",
             load(http.slow_readers));
  out.single("bam_http_timed_out_connections_total", "counter", "Connections closed by a timeout.",
             load(http.timed_out_connections));
  out.single("bam_http_refused_connections_total", "counter", "Connections closed because there were too many.",
             load(http.refused_connections));
  out.single("bam_http_malformed_connections_total", "counter", "Connections closed because they sent no HTTP.",
             load(http.malformed_connections));
  out.single("bam_http_failed_connections_total", "counter", "Connections closed by a defect of the server.",
             load(http.failed_connections));
  out.single("bam_http_rejected_auth_total", "counter", "Requests without a valid key.", load(http.rejected_auth));
  out.single("bam_http_rejected_queue_total", "counter", "Requests refused because the queue was full.",
             load(http.rejected_queue));
}

}  // namespace

void HttpMetrics::count_response(std::string_view route, int status) {
  const std::lock_guard lock(mutex_);
  ++responses_[{std::string(route), status}];
}

std::map<std::pair<std::string, int>, uint64_t> HttpMetrics::responses() const {
  const std::lock_guard lock(mutex_);
  return responses_;
}

uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  if (!(statm >> total >> resident)) return 0;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::string format_metrics(const MetricsInput& input) {
  TextFormat out(fmt::format("model_name=\"{}\"", label(input.model_name)));
  if (input.engine) {
    write_engine(out, *input.engine);
    write_attention(out, *input.engine);
    if (input.vllm_names) write_vllm(out, *input.engine);
  }
  write_http(out, input);
  TextFormat process("");
  process.single("process_resident_memory_bytes", "gauge", "Resident memory.", static_cast<double>(resident_bytes()));
  return out.take() + process.take();
}

}  // namespace bam
