#include "app/client/passkey_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "app/client/passkey_progress.h"
#include "app/client/rng.h"
#include "app/units.h"
#include "base/error.h"
#include "base/hash.h"

namespace bam::client {
namespace {

using nlohmann::json;

// How prompts reach the server: as ids of exact length, or as text of about the right length.
struct PromptMode {
  bool ids = true;
  double tokens_per_word = 1;  // text only
  std::string note;            // why text
  std::string tokenizer;       // what made the ids
};

// Memory of the server process, sampled while requests run.
class MemoryPoll : public HttpHandler {
 public:
  explicit MemoryPoll(std::function<void(double)> on_sample) : on_sample_(std::move(on_sample)) {}
  void on_headers(int status, std::string_view) override { status_ = status; }
  void on_data(std::string_view bytes, TimePoint) override { body_.append(bytes); }
  void on_done(const HttpOutcome& outcome) override {
    if (!outcome.error.empty() || status_ != 200) return;
    if (const auto bytes = parse_resident_bytes(body_)) on_sample_(*bytes);
  }

 private:
  std::function<void(double)> on_sample_;
  std::string body_;
  int status_ = 0;
};

class PasskeyRunner {
 public:
  explicit PasskeyRunner(const PasskeyOptions& options) : options_(options), target_(options.target) {}
  PasskeyRun run(bool* interrupted);

 private:
  void choose_mode();
  void plan();
  json header() const;
  std::string request_body(const PasskeyCell& cell, const TaskPrompt& prompt) const;
  void start_next();
  void on_result(size_t index, CallResult&& call);
  void schedule_ticks();

  struct Pending {
    PasskeyCell cell;
    PreparedPrompt prepared;
    int64_t needle_at = -1;
    double rss_bytes = -1;
  };

  const PasskeyOptions& options_;
  Target target_;
  std::unique_ptr<TokenSource> tokens_;
  WordVocabulary words_;
  PromptMode mode_;
  std::unique_ptr<TaskBuilder> builder_;
  std::unique_ptr<PasskeyLog> log_;
  std::unique_ptr<PasskeyProgress> progress_;
  std::unique_ptr<HttpLoop> loop_;
  std::vector<Pending> pending_;
  size_t next_ = 0, running_ = 0;
  bool has_memory_ = false;
  double last_rss_ = -1;
};

void PasskeyRunner::choose_mode() {
  if (options_.endpoint == Endpoint::kChat) {
    mode_.note = "chat takes text only";
  } else {
    tokens_ = open_token_source(target_, options_.target);
    if (!tokens_) {
      mode_.note = "the server has no /tokenize and no --tokenizer was given";
    } else {
      const IdSupport support = probe_id_prompts(target_, tokens_->encode(PasskeyWording::kFiller));
      if (support.accepted) {
        mode_.tokenizer = tokens_->name();
        if (support.added_tokens != 0) {
          fmt::print(stderr, "bam passkey: note: the server counts {} token(s) more than were sent\n",
                     support.added_tokens);
        }
        return;
      }
      mode_.note = "the server takes no token ids as prompt: " + support.reason;
    }
  }
  mode_.ids = false;
  mode_.tokens_per_word = measure_tokens_per_word(target_, options_.endpoint);
  fmt::print(stderr, "bam passkey: note: prompts are sent as text of approximate length ({})\n", mode_.note);
}

json PasskeyRunner::header() const {
  const TaskConfig& task = options_.task;
  json config = {{"task", find_task(task.task)->name},
                 {"digits", task.digits},
                 {"seed", task.seed},
                 {"model", target_.model()},
                 {"endpoint", options_.endpoint == Endpoint::kChat ? "chat" : "completions"},
                 {"prompts", mode_.ids ? "ids" : "text"},
                 {"prefix_cache", options_.prefix_cache},
                 {"distractors_per_1k", task.distractors_per_1k},
                 {"filler", task.filler_text.empty() ? json("repeated")
                                                     : json(fmt::format("{:016x}", hash_bytes(task.filler_text)))},
                 {"extra_body", options_.extra_body}};
  if (tokens_) {
    std::string ids;
    append_id_array(&ids, tokens_->encode(PasskeyWording::kTask));
    config["tokenizer_check"] = fmt::format("{:016x}", hash_bytes(ids));
  }
  json head = {{"type", "header"},
               {"schema", kPasskeySchema},
               {"created", utc_now()},
               {"label", options_.label.empty() ? target_.model() : options_.label},
               {"target", target_.describe()},
               {"config", config}};
  if (!mode_.note.empty()) head["note"] = "lengths are approximate: " + mode_.note;
  return head;
}

void PasskeyRunner::plan() {
  std::vector<PasskeyCell> cells;
  for (const int64_t length : options_.lengths) {
    for (const double depth : options_.depths) {
      for (int repeat = 0; repeat < options_.repeats; ++repeat) cells.push_back({length, depth, repeat});
    }
  }
  progress_ = std::make_unique<PasskeyProgress>(cells, options_.concurrency);
  for (const PasskeyRecord& record : log_->run().records) {
    const auto same = [&](const PasskeyCell& c) {
      return c.length == record.length && std::abs(c.depth - record.depth) < 1e-6 && c.repeat == record.repeat;
    };
    if (record.ok() && std::any_of(cells.begin(), cells.end(), same)) progress_->add_known(record);
  }
  for (const PasskeyCell& cell : cells) {
    if (log_->has_answer(cell.length, cell.depth, cell.repeat)) continue;
    Pending pending;
    pending.cell = cell;
    const double scale = mode_.ids ? 1 : 1 / mode_.tokens_per_word;
    const auto builder_length = static_cast<int64_t>(std::llround(static_cast<double>(cell.length) * scale));
    pending.prepared = builder_->prepare(builder_length, cell.depth, cell.repeat);
    pending_.push_back(std::move(pending));
  }
}

std::string PasskeyRunner::request_body(const PasskeyCell& cell, const TaskPrompt& prompt) const {
  json body = {{"model", target_.model()},
               {"max_tokens", options_.max_tokens > 0 ? options_.max_tokens : prompt.max_tokens},
               {"temperature", 0},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (!options_.prefix_cache) {
    // Ours and vLLM's name, then llama.cpp's.
    body["cache_salt"] = fmt::format("bam-passkey-{}-{}-{}-{}", options_.task.seed, cell.length,
                                     std::llround(cell.depth * 1e6), cell.repeat);
    body["cache_prompt"] = false;
  }
  if (target_.reports_progress()) body["return_progress"] = true;
  body.update(options_.extra_body);
  if (mode_.ids) {
    std::string text = body.dump();
    text.pop_back();
    text += ",\"prompt\":";
    append_id_array(&text, prompt.ids);
    return text + "}";
  }
  const std::string text = words_.decode(prompt.ids);
  if (options_.endpoint == Endpoint::kChat) {
    body["messages"] = json::array({{{"role", "user"}, {"content", text}}});
  } else {
    body["prompt"] = text;
  }
  return body.dump();
}

void PasskeyRunner::start_next() {
  while (running_ < static_cast<size_t>(options_.concurrency) && next_ < pending_.size() &&
         !InterruptGuard::interrupted()) {
    const size_t index = next_++;
    Pending& pending = pending_[index];
    const TaskPrompt prompt = builder_->assemble(pending.prepared);
    pending.needle_at = mode_.ids ? prompt.needle_at.front() : -1;
    pending.rss_bytes = last_rss_;
    HttpRequest request;
    request.url = target_.endpoint_url(options_.endpoint);
    request.body = request_body(pending.cell, prompt);
    request.timeout_s = target_.timeout_s();
    ++running_;
    auto call = std::make_shared<CompletionCall>(
        options_.endpoint, TimePoint{}, [this, index](CallResult&& result) { on_result(index, std::move(result)); });
    call->listen({.on_progress = [this, index](const PromptProgress& progress) {
      progress_->on_reading(pending_[index].cell, progress);
    }});
    loop_->send(std::move(request), std::move(call));
    progress_->on_start(pending.cell);
  }
}

void PasskeyRunner::on_result(size_t index, CallResult&& call) {
  --running_;
  const Pending& pending = pending_[index];
  if (call.failure == Failure::kCancelled) return;
  PasskeyRecord record;
  record.length = pending.cell.length;
  record.depth = pending.cell.depth;
  record.repeat = pending.cell.repeat;
  record.expected = pending.prepared.answers;
  record.needle_at = pending.needle_at;
  record.server_rss_bytes = std::max(pending.rss_bytes, last_rss_);
  if (call.ok()) {
    record.output = call.text;
    record.score = builder_->score(record.expected, call.text);
    record.prompt_tokens = call.prompt_tokens;
    record.cached_tokens = call.cached_tokens;
    record.completion_tokens = call.completion_tokens;
    record.e2e_ms = call.e2e_ms();
    if (call.has_first_token()) {
      record.ttft_ms = call.ttft_ms();
      if (call.output_tokens() > 1) record.tpot_ms = call.tpot_ms();
    }
  } else {
    record.error = fmt::format("{}: {}", failure_name(call.failure), call.error);
  }
  log_->append(record);
  progress_->on_record(record);
  start_next();
}

// Redraws and samples the server's memory once a second.
void PasskeyRunner::schedule_ticks() {
  loop_->at(Clock::now() + std::chrono::milliseconds(1000), [this] {
    progress_->tick();
    if (has_memory_) {
      HttpRequest request;
      request.method = "GET";
      request.url = target_.url() + "/metrics";
      request.timeout_s = 10;
      loop_->send(std::move(request), std::make_shared<MemoryPoll>([this](double bytes) {
                    last_rss_ = bytes;
                    for (Pending& pending : pending_) pending.rss_bytes = std::max(pending.rss_bytes, bytes);
                  }));
    }
    schedule_ticks();
  });
}

PasskeyRun PasskeyRunner::run(bool* interrupted) {
  check_task(options_.task);
  target_.connect();
  for (const int64_t length : options_.lengths) {
    if (length < target_.context().value_or(length + 1)) continue;
    throw UsageError("--lengths: {} does not fit into the context of {}, {} tokens", format_count(length),
                     target_.model(), format_thousands(*target_.context()));
  }
  choose_mode();
  builder_ = std::make_unique<TaskBuilder>(
      options_.task,
      mode_.ids ? tokens_->encoder() : EncodeFn([this](std::string_view text) { return words_.encode(text); }));
  log_ = std::make_unique<PasskeyLog>(options_.out, header());
  if (options_.poll_memory) {
    const auto bytes = target_.resident_bytes();
    has_memory_ = bytes.has_value();
    last_rss_ = bytes.value_or(-1);
  }
  plan();
  fmt::print(
      stderr, "{} on {} ({}): {} prompts{}, prompts as {}{}\n", builder_->info().name, target_.model(), target_.url(),
      pending_.size(),
      log_->num_resumed() > 0 ? fmt::format(" ({} answers already in {})", log_->num_resumed(), options_.out) : "",
      mode_.ids ? "token ids from " + mode_.tokenizer : "text", has_memory_ ? "" : ", server memory unknown");
  loop_ = std::make_unique<HttpLoop>(target_.http_settings());
  const InterruptGuard guard;
  start_next();
  schedule_ticks();
  loop_->run([this] { return !InterruptGuard::interrupted() && (running_ > 0 || next_ < pending_.size()); });
  progress_->finish();
  *interrupted = InterruptGuard::interrupted();
  return log_->run();
}

}  // namespace

std::vector<double> parse_depths(const std::string& text) {
  std::vector<double> depths;
  if (text.find_first_of(",.%") == text.npos) {
    const int64_t count = parse_count(text, "--depths");
    if (count < 1 || count > 1000) throw UsageError("--depths: give 1 to 1000 depths, or a list such as 0,0.5,1");
    if (count == 1) return {0.5};
    for (int64_t i = 0; i < count; ++i) {
      depths.push_back(static_cast<double>(i) / static_cast<double>(count - 1));
    }
    return depths;
  }
  for (std::string part : split(text, ',')) {
    const bool percent = part.ends_with('%');
    if (percent) part.pop_back();
    const double depth = parse_number(part, "--depths") / (percent ? 100 : 1);
    if (depth < 0 || depth > 1) throw UsageError("--depths: {} is not between 0 and 1", depth);
    depths.push_back(depth);
  }
  std::sort(depths.begin(), depths.end());
  depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
  return depths;
}

PasskeyRun run_passkey_task(const PasskeyOptions& options, bool* interrupted) {
  return PasskeyRunner(options).run(interrupted);
}

std::vector<std::vector<std::string>> passkey_table(const PasskeyRun& run) {
  std::vector<std::vector<std::string>> rows = {{"length", "accuracy", "95 % interval", "right", "errors", "TTFT p50",
                                                 "TTFT max", "prefill tok/s", "decode tok/s", "cached",
                                                 "server memory"}};
  for (const LengthStats& s : stats_by_length(run.records)) {
    const int total = s.answered + s.errors;
    const auto [low, high] = wilson_interval(s.score_sum, total);
    rows.push_back({format_count(s.length), format_percent(s.accuracy()),
                    fmt::format("{:.0f}–{:.0f} %", low * 100, high * 100), fmt::format("{}/{}", s.hits, total),
                    fmt::format("{}", s.errors), s.ttft.count > 0 ? format_ms(s.ttft.p50) : "–",
                    s.ttft.count > 0 ? format_ms(s.ttft.max) : "–", format_value(s.prefill_tps),
                    format_value(s.decode_tps), format_percent(s.cached_fraction),
                    s.peak_rss_bytes > 0 ? format_bytes(s.peak_rss_bytes) : "–"});
  }
  return rows;
}

}  // namespace bam::client
