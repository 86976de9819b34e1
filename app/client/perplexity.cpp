#include "app/client/perplexity.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "app/client/body_call.h"
#include "app/client/terminal.h"
#include "app/units.h"
#include "base/error.h"

namespace bam::client {
namespace {

using nlohmann::json;

// Ways of asking for the probabilities of a prompt, in the order they are tried.
struct Dialect {
  const char* name;
  json fields;
};

const std::vector<Dialect>& dialects() {
  static const std::vector<Dialect> all = {{"echo, max_tokens 0", {{"echo", true}, {"logprobs", 0}, {"max_tokens", 0}}},
                                           {"echo, max_tokens 1", {{"echo", true}, {"logprobs", 1}, {"max_tokens", 1}}},
                                           {"prompt_logprobs", {{"prompt_logprobs", 0}, {"max_tokens", 1}}}};
  return all;
}

class PerplexityRunner {
 public:
  explicit PerplexityRunner(const PerplexityOptions& options) : options_(options), target_(options.target) {}
  json run();

 private:
  void tokenize(TokenSource& tokens);
  void choose_dialect();
  std::string body_of(const TokenIds& ids) const;
  TokenIds sequence(size_t index) const;
  void start_next();
  void on_answer(size_t index, const HttpOutcome& outcome, const std::string& body);
  json result() const;

  const PerplexityOptions& options_;
  Target target_;
  TokenIds ids_;
  const Dialect* dialect_ = nullptr;
  std::unique_ptr<HttpLoop> loop_;
  LiveArea area_;
  std::vector<PositionWindow> windows_;
  size_t num_sequences_ = 0, next_ = 0, running_ = 0, done_ = 0;
  TimePoint start_{};
  std::string error_;
};

void PerplexityRunner::tokenize(TokenSource& tokens) {
  constexpr size_t kPiece = 1 << 20;
  const std::string text = read_text_file(options_.file);
  const int64_t wanted = options_.max_sequences > 0 ? options_.max_sequences * (options_.length + 1) : INT64_MAX;
  for (size_t at = 0; at < text.size() && static_cast<int64_t>(ids_.size()) < wanted;) {
    size_t end = std::min(at + kPiece, text.size());
    // Cut at a line end, so that no word is torn.
    if (end < text.size()) {
      const size_t newline = text.rfind('\n', end);
      if (newline != text.npos && newline > at) end = newline + 1;
    }
    const TokenIds piece = tokens.encode(std::string_view(text).substr(at, end - at));
    ids_.insert(ids_.end(), piece.begin(), piece.end());
    at = end;
  }
  num_sequences_ = ids_.size() / static_cast<size_t>(options_.length + 1);
  if (options_.max_sequences > 0)
    num_sequences_ = std::min(num_sequences_, static_cast<size_t>(options_.max_sequences));
  if (num_sequences_ == 0) {
    throw UsageError("{} has {} tokens: too few for one sequence of {} (--length)", options_.file, ids_.size(),
                     options_.length + 1);
  }
}

std::string PerplexityRunner::body_of(const TokenIds& ids) const {
  json body = dialect_->fields;
  body["model"] = target_.model();
  body["temperature"] = 0;
  std::string text = body.dump();
  text.pop_back();
  text += ",\"prompt\":";
  append_id_array(&text, ids);
  return text + "}";
}

void PerplexityRunner::choose_dialect() {
  const TokenIds sample(ids_.begin(),
                        ids_.begin() + std::min<std::ptrdiff_t>(16, static_cast<std::ptrdiff_t>(ids_.size())));
  std::string reasons;
  for (const Dialect& dialect : dialects()) {
    dialect_ = &dialect;
    const HttpResponse response =
        target_.session().post(target_.endpoint_url(Endpoint::kCompletions), body_of(sample), 120);
    std::string why = response.error;
    if (why.empty() && !response.ok()) why = error_text(response.status, response.body);
    std::vector<double> logprobs;
    if (why.empty()) why = read_prompt_logprobs(json::parse(response.body, nullptr, false), sample, &logprobs);
    if (why.empty()) return;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", dialect.name, why);
  }
  throw Error("the server does not tell the probabilities of a prompt ({})", reasons);
}

TokenIds PerplexityRunner::sequence(size_t index) const {
  const std::ptrdiff_t size = options_.length + 1;
  const auto begin = ids_.begin() + static_cast<std::ptrdiff_t>(index) * size;
  return {begin, begin + size};
}

void PerplexityRunner::start_next() {
  while (running_ < static_cast<size_t>(options_.concurrency) && next_ < num_sequences_ && error_.empty()) {
    const size_t index = next_++;
    HttpRequest request;
    request.url = target_.endpoint_url(Endpoint::kCompletions);
    request.body = body_of(sequence(index));
    request.timeout_s = target_.timeout_s();
    ++running_;
    loop_->send(std::move(request),
                std::make_shared<BodyCall>([this, index](const HttpOutcome& outcome, std::string&& body) {
                  on_answer(index, outcome, body);
                }));
  }
}

void PerplexityRunner::on_answer(size_t index, const HttpOutcome& outcome, const std::string& body) {
  --running_;
  std::string why = outcome.error;
  if (why.empty() && outcome.status != 200) why = error_text(outcome.status, body);
  std::vector<double> logprobs;
  if (why.empty()) why = read_prompt_logprobs(json::parse(body, nullptr, false), sequence(index), &logprobs);
  if (!why.empty()) {
    if (error_.empty()) error_ = fmt::format("sequence {}: {}", index, why);
    return;
  }
  for (size_t i = 0; i < logprobs.size(); ++i) windows_[i / static_cast<size_t>(options_.window)].add(-logprobs[i]);
  ++done_;
  double nats = 0;
  int64_t tokens = 0;
  for (const PositionWindow& w : windows_) nats += w.sum, tokens += w.tokens;
  const double elapsed = ms_between(start_, Clock::now());
  area_.draw(
      {fmt::format("  {}/{} sequences, perplexity {:.3f}, about {} left", done_, num_sequences_,
                   std::exp(nats / static_cast<double>(tokens)),
                   format_ms(elapsed / static_cast<double>(done_) * static_cast<double>(num_sequences_ - done_)))});
  start_next();
}

json PerplexityRunner::result() const {
  double nats = 0;
  int64_t tokens = 0;
  json windows = json::array();
  for (const PositionWindow& w : windows_) {
    nats += w.sum, tokens += w.tokens;
    windows.push_back({{"begin", w.begin},
                       {"end", w.end},
                       {"tokens", w.tokens},
                       {"nats", w.mean()},
                       {"nats_stddev", w.stddev()},
                       {"nats_stderr", w.standard_error()},
                       {"perplexity", w.perplexity()}});
  }
  const double mean = nats / static_cast<double>(tokens);
  return {{"schema", kPerplexitySchema},
          {"created", utc_now()},
          {"label", options_.label.empty() ? target_.model() : options_.label},
          {"target", target_.describe()},
          {"config",
           {{"file", std::filesystem::path(options_.file).filename().string()},
            {"length", options_.length},
            {"window", options_.window},
            {"sequences", num_sequences_},
            {"request", dialect_->name}}},
          {"tokens", tokens},
          {"nats", mean},
          {"perplexity", std::exp(mean)},
          {"duration_s", ms_between(start_, Clock::now()) / 1000},
          {"windows", windows}};
}

json PerplexityRunner::run() {
  target_.connect();
  const auto tokens = open_token_source(target_, options_.target);
  if (!tokens) throw Error("{} has no /tokenize: give its tokenizer with --tokenizer", target_.url());
  tokenize(*tokens);
  choose_dialect();
  for (int64_t begin = 0; begin < options_.length; begin += options_.window) {
    windows_.push_back({begin, std::min(begin + options_.window, options_.length)});
  }
  fmt::print(stderr, "perplexity of {} on {} ({}): {} sequences of {} tokens, windows of {}\n", options_.file,
             target_.model(), target_.url(), num_sequences_, options_.length, options_.window);
  loop_ = std::make_unique<HttpLoop>(target_.http_settings());
  const InterruptGuard guard;
  start_ = Clock::now();
  start_next();
  loop_->run([] { return !InterruptGuard::interrupted(); });
  area_.clear();
  if (!error_.empty()) throw Error("{}", error_);
  if (done_ < num_sequences_) throw Error("interrupted after {} of {} sequences", done_, num_sequences_);
  return result();
}

}  // namespace

double PositionWindow::stddev() const {
  return std::sqrt(std::max(0.0, sum_squares / static_cast<double>(tokens) - mean() * mean()));
}
double PositionWindow::standard_error() const { return stddev() / std::sqrt(static_cast<double>(tokens)); }
double PositionWindow::perplexity() const { return std::exp(mean()); }

std::string read_prompt_logprobs(const json& reply, const TokenIds& ids, std::vector<double>* logprobs) {
  if (!reply.is_object() || !reply.contains("choices") || !reply["choices"].is_array() || reply["choices"].empty() ||
      !reply["choices"][0].is_object()) {
    return "the answer has no choices";
  }
  const json& choice = reply["choices"][0];
  const json* values = nullptr;
  bool by_id = false;
  if (choice.contains("prompt_logprobs") && choice["prompt_logprobs"].is_array()) {
    values = &choice["prompt_logprobs"];
    by_id = true;
  } else if (choice.contains("logprobs") && choice["logprobs"].is_object() &&
             choice["logprobs"].contains("token_logprobs") && choice["logprobs"]["token_logprobs"].is_array()) {
    values = &choice["logprobs"]["token_logprobs"];
  }
  if (values == nullptr) return "the answer has no log probabilities of the prompt";
  if (values->size() < ids.size()) {
    return fmt::format("log probabilities of {} tokens for a prompt of {}", values->size(), ids.size());
  }
  if (!(*values)[0].is_null()) return "the first token has a probability: the server put something in front of it";
  logprobs->clear();
  for (size_t i = 1; i < ids.size(); ++i) {
    const json* value = &(*values)[i];
    if (by_id) {
      const std::string id = std::to_string(ids[i]);
      if (!value->is_object() || !value->contains(id)) return fmt::format("no probability for token {}", i);
      value = &(*value)[id];
      if (value->is_object()) value = value->contains("logprob") ? &(*value)["logprob"] : value;
    }
    if (!value->is_number() || !std::isfinite(value->get<double>())) {
      return fmt::format("the log probability of token {} is {}", i, value->dump());
    }
    logprobs->push_back(value->get<double>());
  }
  return {};
}

json run_perplexity(const PerplexityOptions& options) { return PerplexityRunner(options).run(); }

json load_perplexity_result(const std::string& path) {
  json result = json::parse(read_text_file(path), nullptr, false);
  if (!result.is_object() || result.value("schema", "") != kPerplexitySchema || !result.contains("windows") ||
      !result["windows"].is_array()) {
    throw UsageError("{} is not a perplexity result file ({})", path, kPerplexitySchema);
  }
  return result;
}

}  // namespace bam::client
