#include "app/client/bench_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <memory>

#include <fmt/format.h>

#include "app/client/terminal.h"
#include "app/units.h"
#include "base/error.h"

namespace bam::client {
namespace {

using nlohmann::json;
using std::chrono::duration_cast;

Clock::duration from_ms(double ms) {
  return duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(ms));
}

class LoadRunner {
 public:
  explicit LoadRunner(const BenchOptions& options) : options_(options), target_(options.target) {}
  BenchData run();

 private:
  void prepare();
  void describe(const std::string& prompts);
  std::string body_of(const WorkItem& item) const;
  void send(const WorkItem& item, TimePoint scheduled, CompletionCall::OnDone on_done);
  void warm_up();
  void idle_probes();
  void start_load();
  void launch(size_t index, TimePoint scheduled);
  void on_result(int64_t expected_input, int64_t requested_output, CallResult&& call);
  void schedule_arrival();
  void fill_closed_loop();
  bool more_to_start() const;
  void schedule_probe(TimePoint at);
  void send_probe(TimePoint scheduled);
  void schedule_progress();
  bool finished() const { return !more_to_start() && waiting_.empty() && in_flight_ == 0; }

  const BenchOptions& options_;
  Target target_;
  std::unique_ptr<TokenSource> tokens_;
  std::unique_ptr<Workload> workload_;
  std::unique_ptr<HttpLoop> loop_;
  BenchData data_;
  TimePoint load_start_{}, load_end_{};
  bool open_loop_ = false;
  size_t next_index_ = 0;
  int64_t num_requests_ = 0;
  size_t in_flight_ = 0;
  std::deque<std::pair<size_t, TimePoint>> waiting_;  // open loop: due, but the limit of requests in flight is reached
  TimePoint next_arrival_{};
  Rng arrivals_{0};
  size_t next_probe_ = 0;
  // For the live line only.
  LiveArea area_;
  std::vector<double> ttft_seen_;
  int64_t output_seen_ = 0, failed_seen_ = 0;
};

void LoadRunner::prepare() {
  target_.connect();
  WorkloadConfig config;
  config.input = options_.input;
  config.output = options_.output;
  config.prefix_share = options_.prefix_share;
  config.num_prefixes = options_.num_prefixes;
  config.seed = options_.seed;
  config.endpoint = options_.endpoint;
  const bool wants_ids = options_.endpoint == Endpoint::kCompletions;
  if (wants_ids || !options_.dataset.empty()) tokens_ = open_token_source(target_, options_.target);
  std::string prompts = "text";
  if (!options_.dataset.empty()) {
    workload_ =
        std::make_unique<Workload>(config, load_dataset(options_.dataset), tokens_ ? tokens_->encoder() : EncodeFn());
    prompts = "dataset";
  } else {
    TokenIds pool;
    std::string why = options_.endpoint == Endpoint::kChat ? "chat takes text only" : "the server has no /tokenize";
    if (wants_ids && tokens_) {
      pool = token_pool(tokens_->encoder());
      const IdSupport support =
          probe_id_prompts(target_, {pool.begin(), pool.begin() + std::min<ptrdiff_t>(8, std::ssize(pool))});
      if (!support.accepted) {
        why = support.reason;
        pool.clear();
      }
    }
    if (pool.empty()) {
      config.tokens_per_word = measure_tokens_per_word(target_, options_.endpoint);
      fmt::print(stderr, "bam bench: note: prompts are text of approximate length ({})\n", why);
    } else {
      prompts = "ids";
    }
    workload_ = std::make_unique<Workload>(config, std::move(pool));
  }
  describe(prompts);
}

void LoadRunner::describe(const std::string& prompts) {
  open_loop_ = options_.request_rate > 0;
  num_requests_ = options_.num_requests;
  json config_json = {{"mode", open_loop_ ? "open" : "closed"},
                      {"endpoint", options_.endpoint == Endpoint::kChat ? "chat" : "completions"},
                      {"num_requests", num_requests_},
                      {"warmup", options_.warmup},
                      {"prompts", prompts},
                      {"ignore_eos", options_.ignore_eos},
                      {"temperature", options_.temperature},
                      {"seed", options_.seed},
                      {"extra_body", options_.extra_body}};
  if (options_.dataset.empty()) config_json["input_len"] = options_.input.text();
  config_json["output_len"] = options_.output.text();
  if (options_.prefix_share > 0) {
    config_json["prefix_share"] = options_.prefix_share;
    config_json["num_prefixes"] = options_.num_prefixes;
  }
  if (open_loop_) {
    config_json["request_rate"] = std::isfinite(options_.request_rate) ? json(options_.request_rate) : json("inf");
    config_json["burstiness"] = options_.burstiness;
  }
  if (options_.concurrency > 0) config_json["concurrency"] = options_.concurrency;
  if (options_.duration_s > 0) config_json["duration_s"] = options_.duration_s;
  data_.config = std::move(config_json);
  data_.target = target_.describe();
  data_.label = options_.label.empty() ? target_.model() : options_.label;
  data_.created = utc_now();
  data_.open_loop = open_loop_;
  data_.ignore_eos = options_.ignore_eos;
  data_.slo = options_.slo;
  data_.probe_interval_ms = options_.probe_interval_ms;
}

std::string LoadRunner::body_of(const WorkItem& item) const {
  json body = {{"model", target_.model()},
               {"max_tokens", item.output_tokens},
               {"temperature", options_.temperature},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (options_.ignore_eos) body["ignore_eos"] = true;
  body.update(options_.extra_body);
  if (options_.endpoint == Endpoint::kChat) {
    body["messages"] = item.messages;
    return body.dump();
  }
  if (item.ids.empty()) {
    body["prompt"] = item.text;
    return body.dump();
  }
  std::string text = body.dump();
  text.pop_back();
  text += ",\"prompt\":";
  append_id_array(&text, item.ids);
  return text + "}";
}

void LoadRunner::send(const WorkItem& item, TimePoint scheduled, CompletionCall::OnDone on_done) {
  HttpRequest request;
  request.url = target_.endpoint_url(options_.endpoint);
  request.body = body_of(item);
  request.timeout_s = target_.timeout_s();
  loop_->send(std::move(request), std::make_shared<CompletionCall>(options_.endpoint, scheduled, std::move(on_done)));
}

// Same shape as the load, not counted. Fails loudly: a load of nothing but errors measures nothing.
void LoadRunner::warm_up() {
  const int64_t total = std::max<int64_t>(options_.warmup, 1);
  const int64_t parallel = std::min<int64_t>(total, std::max(options_.concurrency, 1));
  int64_t started = 0, ok = 0;
  std::string error;
  std::function<void()> start_one = [&] {
    if (started >= total || InterruptGuard::interrupted()) return;
    // Items from the far end of the sequence: never the prompts that will be measured.
    WorkItem item = workload_->item((size_t{1} << 40) + static_cast<size_t>(started++));
    if (options_.warmup == 0) item.output_tokens = 1;  // only a check that requests are accepted
    send(item, TimePoint{}, [&](CallResult&& call) {
      ok += call.ok();
      if (!call.ok()) error = call.error;
      start_one();
    });
  };
  for (int64_t i = 0; i < parallel; ++i) start_one();
  loop_->run([] { return !InterruptGuard::interrupted(); });
  if (ok == 0 && !InterruptGuard::interrupted()) throw Error("the first request failed: {}", error);
}

void LoadRunner::idle_probes() {
  constexpr int kProbes = 5;
  for (int i = 0; i < kProbes && !InterruptGuard::interrupted(); ++i) {
    const TimePoint now = Clock::now();
    loop_->at(now + from_ms(i == 0 ? 0 : std::min(options_.probe_interval_ms, 200.0)),
              [this] { send_probe(Clock::now()); });
    loop_->run([] { return !InterruptGuard::interrupted(); });
  }
}

void LoadRunner::send_probe(TimePoint scheduled) {
  // A fresh short prompt each time, so that a prefix cache cannot answer for the scheduler.
  WorkItem item = workload_->item((size_t{1} << 41) + next_probe_++);
  item.output_tokens = options_.probe_output;
  const auto keep = static_cast<size_t>(options_.probe_input);
  if (item.ids.size() > keep) item.ids.resize(keep);
  if (item.ids.empty()) {
    size_t at = 0;
    for (size_t words = 0; at < item.text.size() && words < keep; ++words) {
      at = std::min(item.text.find(' ', at + 1), item.text.size());
    }
    item.text.resize(at);
    if (options_.endpoint == Endpoint::kChat) {
      item.messages = json::array({{{"role", "user"}, {"content", item.text}}});
    }
  }
  const bool loaded = load_start_ != TimePoint{};
  send(item, scheduled, [this, loaded](CallResult&& call) {
    if (call.failure == Failure::kCancelled) return;
    ProbeSample sample;
    sample.at_ms = loaded ? std::max(ms_between(load_start_, call.scheduled), 0.0) : -1;
    sample.ok = call.ok();
    sample.error = call.error;
    if (call.ok() && call.has_first_token()) {
      sample.ttft_ms = call.ttft_ms();
      sample.from_schedule_ms = ms_between(call.scheduled, call.chunk_times.front());
      sample.e2e_ms = call.e2e_ms();
    }
    data_.probes.push_back(std::move(sample));
  });
}

// Probes leave on the clock, whether or not the earlier ones have been answered.
void LoadRunner::schedule_probe(TimePoint at) {
  loop_->at(at, [this, at] {
    if (finished()) return;
    send_probe(at);
    schedule_probe(at + from_ms(options_.probe_interval_ms));
  });
}

bool LoadRunner::more_to_start() const {
  if (InterruptGuard::interrupted()) return false;
  if (options_.duration_s > 0 && ms_between(load_start_, Clock::now()) >= options_.duration_s * 1000) return false;
  return num_requests_ <= 0 || static_cast<int64_t>(next_index_) < num_requests_;
}

void LoadRunner::launch(size_t index, TimePoint scheduled) {
  const WorkItem item = workload_->item(index);
  const int64_t expected = item.ids.empty() ? -1 : static_cast<int64_t>(item.ids.size());
  ++in_flight_;
  data_.max_in_flight = std::max(data_.max_in_flight, in_flight_);
  send(item, scheduled, [this, expected, wanted = item.output_tokens](CallResult&& call) {
    on_result(expected, wanted, std::move(call));
  });
}

void LoadRunner::on_result(int64_t expected_input, int64_t requested_output, CallResult&& call) {
  --in_flight_;
  if (call.failure != Failure::kCancelled) {
    load_end_ = std::max(load_end_, call.end);
    data_.requests.push_back(make_record(call, load_start_, expected_input, requested_output));
    for (const TimePoint at : call.chunk_times) {
      const auto bin = static_cast<size_t>(std::max(ms_between(load_start_, at), 0.0) / 100);
      if (bin >= data_.token_bins.size()) data_.token_bins.resize(bin + 1);
      ++data_.token_bins[bin];
    }
    if (call.ok() && call.has_first_token()) ttft_seen_.push_back(call.ttft_ms());
    output_seen_ += call.ok() ? call.output_tokens() : 0;
    failed_seen_ += !call.ok();
  }
  if (!open_loop_) {
    fill_closed_loop();
  } else if (!waiting_.empty() && !InterruptGuard::interrupted()) {
    const auto [index, scheduled] = waiting_.front();
    waiting_.pop_front();
    launch(index, scheduled);
  }
}

void LoadRunner::fill_closed_loop() {
  while (in_flight_ < static_cast<size_t>(options_.concurrency) && more_to_start()) launch(next_index_++, TimePoint{});
}

void LoadRunner::schedule_arrival() {
  loop_->at(next_arrival_, [this] {
    if (!more_to_start()) return;
    const TimePoint scheduled = next_arrival_;
    const size_t index = next_index_++;
    const double gap_s = arrival_gap_s(arrivals_, options_.request_rate, options_.burstiness);
    next_arrival_ += from_ms(gap_s * 1000);
    schedule_arrival();
    if (options_.concurrency > 0 && in_flight_ >= static_cast<size_t>(options_.concurrency)) {
      waiting_.emplace_back(index, scheduled);
    } else {
      launch(index, scheduled);
    }
  });
}

void LoadRunner::schedule_progress() {
  if (!area_.enabled()) return;
  const double elapsed_s = ms_between(load_start_, Clock::now()) / 1000;
  const size_t done = data_.requests.size();
  area_.draw({fmt::format("  {} done{}, {} in flight{}, {} failed · {:.1f} s · {} req/s · {} tok/s · TTFT p50 {}", done,
                          num_requests_ > 0 ? fmt::format(" of {}", num_requests_) : "", in_flight_,
                          waiting_.empty() ? "" : fmt::format(" (+{} due)", waiting_.size()), failed_seen_, elapsed_s,
                          format_value(static_cast<double>(done) / std::max(elapsed_s, 1e-3)),
                          format_value(static_cast<double>(output_seen_) / std::max(elapsed_s, 1e-3)),
                          format_ms(median(ttft_seen_)))});
  loop_->at(Clock::now() + std::chrono::milliseconds(250), [this] {
    if (!finished()) schedule_progress();
  });
}

void LoadRunner::start_load() {
  load_start_ = Clock::now();
  load_end_ = load_start_;
  arrivals_ = Rng::stream(options_.seed, 0x6172726976616c);
  if (options_.probe_interval_ms > 0) schedule_probe(load_start_ + from_ms(options_.probe_interval_ms));
  if (open_loop_) {
    next_arrival_ = load_start_;
    schedule_arrival();
  } else {
    fill_closed_loop();
  }
  schedule_progress();
}

BenchData LoadRunner::run() {
  raise_open_file_limit();
  prepare();
  HttpSettings settings = target_.http_settings();
  settings.keep_alive = options_.keep_alive;
  loop_ = std::make_unique<HttpLoop>(settings);
  const InterruptGuard guard;
  fmt::print(stderr, "{} load on {} ({})\n", open_loop_ ? "open-loop" : "closed-loop", target_.model(), target_.url());
  warm_up();
  if (options_.probe_interval_ms > 0) idle_probes();
  start_load();
  // Probes that are still unanswered when the load ends may finish: a starved one must not vanish from the result.
  loop_->run([this] { return !InterruptGuard::interrupted(); });
  area_.clear();
  if (data_.requests.empty()) throw Error("no request was finished");
  data_.duration_s = ms_between(load_start_, load_end_) / 1000;
  const HttpLoop::Health health = loop_->health();
  data_.max_stall_ms = health.max_stall_ms;
  data_.busy_fraction = health.busy_fraction;
  return std::move(data_);
}

}  // namespace

BenchData run_load(const BenchOptions& options) { return LoadRunner(options).run(); }

}  // namespace bam::client
