#include "server/api/metrics.h"

#include <unistd.h>
#include <fstream>
#include <functional>
#include <variant>

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
double load(const std::atomic<int64_t>& gauge) { return static_cast<double>(gauge.load(std::memory_order_relaxed)); }

// One look at the engine.
struct EngineView {
  const Engine& engine;
  const EngineStats& stats;
  const EnginePicture& picture;
};

struct MetricSample {
  std::string labels;
  double value;
};
using Samples = std::vector<MetricSample>;

// What a metric is made from. The engine is there when the model is loaded.
using Source =
    std::variant<std::function<Samples(const EngineView&)>, std::function<const Histogram&(const EngineView&)>,
                 std::function<Samples(const HttpMetrics&)>, std::function<double()>>;

struct Metric {
  std::string name;               // empty: under vLLM's names only
  std::vector<std::string> vllm;  // with --metrics-compat vllm
  const char* type;
  const char* help;
  Source source;
};

template <typename F>
Source engine_value(F value) {
  return std::function<Samples(const EngineView&)>([value](const EngineView& e) -> Samples {
    using Result = std::invoke_result_t<F, const EngineView&>;
    if constexpr (std::is_convertible_v<Result, Samples>) {
      return value(e);
    } else {
      return {{"", static_cast<double>(value(e))}};
    }
  });
}

Source counter(std::atomic<uint64_t> EngineStats::*member) {
  return engine_value([member](const EngineView& e) { return load(e.stats.*member); });
}

Source store(std::atomic<uint64_t> PrefixStoreStats::*member) {
  return engine_value([member](const EngineView& e) { return load((*e.stats.store).*member); });
}

Source gauge(int64_t EnginePicture::*member) {
  return engine_value([member](const EngineView& e) { return e.picture.*member; });
}

Source histogram(Histogram EngineStats::*member) {
  return std::function<const Histogram&(const EngineView&)>(
      [member](const EngineView& e) -> const Histogram& { return e.stats.*member; });
}

template <typename T>
Source http(std::atomic<T> HttpMetrics::*member) {
  return std::function<Samples(const HttpMetrics&)>([member](const HttpMetrics& http) -> Samples {
    return {{"", load(http.*member)}};
  });
}

Samples kv_pages(const EngineView& e) {
  const auto sample = [](const char* state, int64_t pages) {
    return MetricSample{fmt::format("state=\"{}\"", state), static_cast<double>(pages)};
  };
  return {sample("free", e.picture.pages_free), sample("cached", e.picture.pages_cached),
          sample("used", e.picture.pages_used)};
}

double kv_use(const EngineView& e) {
  const auto total = static_cast<double>(e.picture.pages_total);
  return total > 0 ? static_cast<double>(e.picture.pages_used) / total : 0;
}

Samples finished(const EngineView& e) {
  Samples samples;
  for (size_t i = 0; i < kFinishNames.size(); ++i) {
    samples.push_back({fmt::format("reason=\"{}\"", kFinishNames[i]), load(e.stats.finished[i])});
  }
  return samples;
}

// vLLM has another label and no timeouts.
Samples finished_vllm(const EngineView& e) {
  Samples samples;
  for (size_t i = 0; i < kFinishNames.size(); ++i) {
    const double count = load(e.stats.finished[i]);
    if (kFinishNames[i] == std::string_view("timeout")) continue;
    const bool error = kFinishNames[i] == std::string_view("error");
    samples.push_back(
        {fmt::format("finished_reason=\"{}\"", kFinishNames[i]), error ? count + load(e.stats.finished[3]) : count});
  }
  return samples;
}

// Pairs of a query row and 64 keys, summed over the heads of each class.
std::map<std::string_view, AttentionCounters> attention_by_class(const EngineView& e) {
  std::map<std::string_view, AttentionCounters> by_class;
  const auto& heads = e.engine.heads();
  for (size_t i = 0; i < heads.size() && i < e.picture.attention.size(); ++i) {
    by_class[head_class(e.engine.model_config(), heads[i])] += e.picture.attention[i];
  }
  return by_class;
}

Samples attention_tiles(const EngineView& e) {
  Samples samples;
  for (const auto& [name, counts] : attention_by_class(e)) {
    samples.push_back({fmt::format("class=\"{}\",outcome=\"visited\"", name), static_cast<double>(counts.visited)});
    samples.push_back({fmt::format("class=\"{}\",outcome=\"skipped\"", name), static_cast<double>(counts.skipped)});
  }
  return samples;
}

template <typename Member>
Source attention(Member member) {
  return engine_value([member](const EngineView& e) {
    Samples samples;
    for (const auto& [name, counts] : attention_by_class(e)) {
      samples.push_back({fmt::format("class=\"{}\"", name), static_cast<double>(counts.*member)});
    }
    return samples;
  });
}

template <typename F>
Source of_stages(F value) {
  return engine_value([value](const EngineView& e) {
    Samples samples;
    for (size_t i = 0; i < e.picture.stages.size(); ++i) {
      samples.push_back({fmt::format("stage=\"{}\"", i), static_cast<double>(value(e.picture.stages[i]))});
    }
    return samples;
  });
}

Samples stage_layers(const EngineView& e) {
  Samples samples;
  for (size_t i = 0; i < e.picture.stages.size(); ++i) {
    const StagePicture& stage = e.picture.stages[i];
    samples.push_back(
        {fmt::format("stage=\"{}\",first_layer=\"{}\",device=\"{}\"", i, stage.first_layer, label(stage.device)),
         static_cast<double>(stage.num_layers)});
  }
  return samples;
}

Samples stage_pages(const EngineView& e) {
  Samples samples;
  for (size_t i = 0; i < e.picture.stages.size(); ++i) {
    const StagePicture& stage = e.picture.stages[i];
    const auto add = [&](const char* state, int64_t pages) {
      samples.push_back({fmt::format("stage=\"{}\",state=\"{}\"", i, state), static_cast<double>(pages)});
    };
    add("free", stage.pages_free);
    add("cached", stage.pages_cached);
    add("used", stage.pages_used);
  }
  return samples;
}

Samples responses(const HttpMetrics& http) {
  Samples samples;
  for (const auto& [key, count] : http.responses()) {
    samples.push_back(
        {fmt::format("route=\"{}\",status=\"{}\"", label(key.first), key.second), static_cast<double>(count)});
  }
  return samples;
}

// clang-format off
std::vector<Metric> make_metrics() {
  using Stats = EngineStats;
  using Store = PrefixStoreStats;
  using Http = HttpMetrics;
  return {
      {"bam_requests_running", {"vllm:num_requests_running"}, "gauge", "Requests in the batch.", gauge(&EnginePicture::running)},
      {"bam_requests_waiting", {"vllm:num_requests_waiting"}, "gauge", "Requests in the queue.", gauge(&EnginePicture::waiting)},
      {"bam_requests_paused", {}, "gauge", "Requests that wait for their reader.", gauge(&EnginePicture::paused)},
      {"bam_queued_prompt_tokens", {}, "gauge", "Prompt tokens of waiting requests.", gauge(&EnginePicture::queued_tokens)},
      {"bam_queued_work_seconds", {}, "gauge", "Predicted work before a new request would start.",
       engine_value([](const EngineView& e) { return e.picture.queued_work_s; })},
      {"bam_kv_pages", {}, "gauge", "Pages of the KV cache by state.", engine_value(kv_pages)},
      {"bam_kv_usage", {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"}, "gauge", "Share of the KV pages in use, 1 is full.", engine_value(kv_use)},
      {"bam_kv_capacity_tokens", {}, "gauge", "Tokens that fit when no page is freed early.",
       engine_value([](const EngineView& e) { return e.engine.capacity_tokens(); })},
      {"bam_steps_total", {}, "counter", "Engine steps.", counter(&Stats::steps)},
      {"bam_prompt_tokens_total", {"vllm:prompt_tokens_total"}, "counter", "Prompt tokens read.", counter(&Stats::prompt_tokens)},
      {"bam_generation_tokens_total", {"vllm:generation_tokens_total"}, "counter", "Tokens generated.", counter(&Stats::generated_tokens)},
      {"bam_prefix_cache_queries_total", {"vllm:prefix_cache_queries_total"}, "counter", "Prompt tokens looked up in the prefix cache.",
       counter(&Stats::prefix_queries)},
      {"bam_prefix_cache_hits_total", {"vllm:prefix_cache_hits_total"}, "counter", "Of these, tokens found.", counter(&Stats::prefix_hits)},
      {"bam_draft_tokens_total", {"vllm:spec_decode_num_draft_tokens_total"}, "counter", "Tokens guessed and computed along.",
       counter(&Stats::drafts_proposed)},
      {"bam_draft_tokens_accepted_total", {"vllm:spec_decode_num_accepted_tokens_total"}, "counter", "Of these, tokens that were right.",
       counter(&Stats::drafts_accepted)},
      {"bam_kv_store_hits_total", {}, "counter", "Prompts of which the store of --kv-store had a part.", store(&Store::hits)},
      {"bam_kv_store_misses_total", {}, "counter", "Prompts that were looked up there in vain.", store(&Store::misses)},
      {"bam_kv_store_timeouts_total", {}, "counter", "Prompts that were computed because it did not answer in time.", store(&Store::timeouts)},
      {"bam_kv_store_errors_total", {}, "counter", "Times it could not be read or written.", store(&Store::errors)},
      {"bam_kv_store_restored_tokens_total", {}, "counter", "Prompt tokens that need not be computed because of it.", store(&Store::restored_tokens)},
      {"bam_kv_store_read_bytes_total", {}, "counter", "Bytes read from it.", store(&Store::read_bytes)},
      {"bam_kv_store_written_bytes_total", {}, "counter", "Bytes written to it.", store(&Store::written_bytes)},
      {"bam_kv_store_refused_objects_total", {}, "counter", "Objects in it that were damaged.", store(&Store::refused_objects)},
      {"bam_kv_store_dropped_writes_total", {}, "counter", "Prompts not written to it: too many at once, or it was away.", store(&Store::dropped_writes)},
      {"bam_preemptions_total", {"vllm:num_preemptions_total"}, "counter", "Sequences put back into the queue.", counter(&Stats::preemptions)},
      {"bam_pauses_total", {}, "counter", "Times a request was paused for its reader.", counter(&Stats::pauses)},
      {"bam_deferred_samples_total", {}, "counter", "Tokens put off to a later step because the masks of constraints had taken their share of one.", counter(&Stats::deferred_samples)},
      {"bam_kv_pages_evicted_total", {}, "counter", "Cached pages given to new requests.", counter(&Stats::pages_evicted)},
      {"bam_kv_reach_freed_bytes_total", {}, "counter", "KV bytes freed early because the positional prior can no longer see them.",
       counter(&Stats::reach_freed_bytes)},
      {"bam_requests_finished_total", {}, "counter", "Finished choices by reason.", engine_value(finished)},
      {"", {"vllm:request_success_total"}, "counter", "Finished choices by reason.", engine_value(finished_vllm)},
      {"bam_time_to_first_token_seconds", {"vllm:time_to_first_token_seconds"}, "histogram", "From submit to the first token.", histogram(&Stats::ttft_s)},
      {"bam_inter_token_latency_seconds", {"vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"}, "histogram",
       "Between tokens of one choice.", histogram(&Stats::inter_token_s)},
      {"bam_request_time_per_output_token_seconds", {"vllm:request_time_per_output_token_seconds"}, "histogram",
       "Mean time between the tokens of a choice.", histogram(&Stats::mean_token_s)},
      {"bam_e2e_request_latency_seconds", {"vllm:e2e_request_latency_seconds"}, "histogram", "From submit to the last token.", histogram(&Stats::e2e_s)},
      {"bam_request_queue_time_seconds", {"vllm:request_queue_time_seconds"}, "histogram", "Waiting for the first step.", histogram(&Stats::queue_s)},
      {"bam_request_inference_time_seconds", {"vllm:request_inference_time_seconds"}, "histogram", "From the first step to the last token.",
       histogram(&Stats::inference_s)},
      {"bam_request_prefill_time_seconds", {"vllm:request_prefill_time_seconds"}, "histogram", "Reading the prompt.", histogram(&Stats::prefill_s)},
      {"bam_request_decode_time_seconds", {"vllm:request_decode_time_seconds"}, "histogram", "From the first to the last token.", histogram(&Stats::decode_s)},
      {"bam_request_prompt_tokens", {"vllm:request_prompt_tokens"}, "histogram", "Prompt lengths.", histogram(&Stats::prompt_len)},
      {"bam_request_generation_tokens", {"vllm:request_generation_tokens"}, "histogram", "Generated lengths.", histogram(&Stats::generation_len)},
      {"bam_request_max_generation_tokens", {"vllm:request_max_num_generation_tokens"}, "histogram", "Longest choice of each request.",
       histogram(&Stats::longest_choice)},
      {"bam_request_params_max_tokens", {"vllm:request_params_max_tokens"}, "histogram", "max_tokens of the requests.", histogram(&Stats::asked_tokens)},
      {"bam_request_params_n", {"vllm:request_params_n"}, "histogram", "n of the requests.", histogram(&Stats::asked_choices)},
      {"bam_step_seconds", {}, "histogram", "Engine steps.", histogram(&Stats::step_s)},
      {"bam_step_tokens", {"vllm:iteration_tokens_total"}, "histogram", "Tokens of an engine step.", histogram(&Stats::step_tokens)},
      {"bam_attention_tiles_total", {}, "counter", "Pairs of a query row and 64 keys that attention read or proved negligible, by head class.",
       engine_value(attention_tiles)},
      {"bam_attention_bound_tests_total", {}, "counter", "Bounds evaluated to prove tiles negligible, by head class.",
       attention(&AttentionCounters::bound_tests)},
      {"bam_attention_left_out_bound", {}, "gauge",
       "Largest share of a row's softmax mass that left-out keys could have had, by the bounds used.", attention(&AttentionCounters::left_out)},
      {"bam_stage_layers", {}, "gauge", "Layers of each stage, from which one on, and where they are computed.", engine_value(stage_layers)},
      {"bam_stage_kv_pages", {}, "gauge", "Pages of each stage by state.", engine_value(stage_pages)},
      {"bam_stage_steps_total", {}, "counter", "Steps of each stage.", of_stages([](const StagePicture& s) { return s.steps; })},
      {"bam_stage_busy_seconds_total", {}, "counter", "Time in which each stage computed.",
       of_stages([](const StagePicture& s) { return 1e-3 * s.busy_ms; })},
      {"bam_stage_wait_seconds_total", {}, "counter",
       "Time in which a stage that had a plan waited for its rows, the first one for results, having nothing to issue.",
       of_stages([](const StagePicture& s) { return 1e-3 * s.wait_ms; })},
      {"bam_group_losses_total", {}, "counter", "Times a rank was lost.", counter(&Stats::group_losses)},
      {"bam_replayed_requests_total", {}, "counter", "Requests that were computed again because a rank was lost.", counter(&Stats::replays)},
      {"bam_http_responses_total", {}, "counter", "HTTP responses by route and status.", std::function<Samples(const Http&)>(responses)},
      {"bam_http_connections", {}, "gauge", "Open connections.", http(&Http::open_connections)},
      {"bam_http_streams", {}, "gauge", "Open event streams.", http(&Http::open_streams)},
      {"bam_resumable_streams", {}, "gauge", "Resumable streams that are kept.", http(&Http::resumable_streams)},
      {"bam_resumable_bytes", {}, "gauge", "Their events in memory.", http(&Http::resumable_bytes)},
      {"bam_streams_resumed_total", {}, "counter", "Streams that a reader went on with.", http(&Http::resumed_streams)},
      {"bam_streams_expired_total", {}, "counter", "Resumable streams that nobody read to their end in time.", http(&Http::expired_streams)},
      {"bam_http_body_bytes", {}, "gauge", "Request bodies in memory.", http(&Http::body_bytes)},
      {"bam_http_disconnects_total", {}, "counter", "Clients that left before their reply was complete.", http(&Http::disconnects)},
      {"bam_http_slow_readers_total", {}, "counter", "Streams cut because nobody read them.", http(&Http::slow_readers)},
      {"bam_http_timed_out_connections_total", {}, "counter", "Connections closed by a timeout.", http(&Http::timed_out_connections)},
      {"bam_http_refused_connections_total", {}, "counter", "Connections closed because there were too many.", http(&Http::refused_connections)},
      {"bam_http_malformed_connections_total", {}, "counter", "Connections closed because they sent no HTTP.", http(&Http::malformed_connections)},
      {"bam_http_failed_connections_total", {}, "counter", "Connections closed by a defect of the server.", http(&Http::failed_connections)},
      {"bam_http_rejected_auth_total", {}, "counter", "Requests without a valid key.", http(&Http::rejected_auth)},
      {"bam_http_rejected_queue_total", {}, "counter", "Requests refused because the queue was full.", http(&Http::rejected_queue)},
      {"process_resident_memory_bytes", {}, "gauge", "Resident memory.", std::function<double()>([] { return static_cast<double>(resident_bytes()); })},
  };
}
// clang-format on

const std::vector<Metric>& all_metrics() {
  static const std::vector<Metric> metrics = make_metrics();
  return metrics;
}

void write_samples(TextFormat& out, const std::string& name, const Metric& metric, const Samples& samples) {
  out.header(name, metric.type, metric.help);
  for (const MetricSample& sample : samples) out.sample(name, sample.value, sample.labels);
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
  TextFormat out(fmt::format("model_name=\"{}\"", label(input.model_name))), process("");
  const auto picture = input.engine ? input.engine->picture() : nullptr;
  for (const Metric& metric : all_metrics()) {
    std::vector<std::string> names;
    if (!metric.name.empty()) names.push_back(metric.name);
    if (input.vllm_names) names.insert(names.end(), metric.vllm.begin(), metric.vllm.end());
    for (const std::string& name : names) {
      if (const auto* of_http = std::get_if<std::function<Samples(const HttpMetrics&)>>(&metric.source)) {
        write_samples(out, name, metric, (*of_http)(input.http));
      } else if (const auto* of_process = std::get_if<std::function<double()>>(&metric.source)) {
        write_samples(process, name, metric, {{"", (*of_process)()}});
      } else if (picture) {
        const EngineView view{*input.engine, input.engine->stats(), *picture};
        if (const auto* values = std::get_if<std::function<Samples(const EngineView&)>>(&metric.source)) {
          write_samples(out, name, metric, (*values)(view));
        } else {
          out.histogram(name, metric.help,
                        std::get<std::function<const Histogram&(const EngineView&)>>(metric.source)(view));
        }
      }
    }
  }
  return out.take() + process.take();
}

Json describe_metrics() {
  Json list = Json::array();
  for (const Metric& metric : all_metrics()) {
    list.push_back({{"name", metric.name}, {"vllm", metric.vllm}, {"type", metric.type}, {"help", metric.help}});
  }
  return list;
}

}  // namespace bam
