#include "app/eval/eval_run.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include <fmt/format.h>

#include "app/client/body_call.h"
#include "app/client/completion_call.h"
#include "app/client/terminal.h"
#include "app/units.h"
#include "base/error.h"

namespace bam::eval {
namespace {

using client::Endpoint;
using client::HttpOutcome;
using client::TokenIds;

// One request of a document and where its result goes.
struct Ask {
  Json body;
  size_t item = 0, slot = 0;
  size_t context = 0;  // tokens whose probabilities do not count
};

class TaskRunner {
 public:
  TaskRunner(client::Target& target, client::TokenSource& tokens, const EvalOptions& options, int64_t max_length,
             std::optional<int32_t> prefix, const Task& task)
      : target_(target), tokens_(tokens), options_(options), max_length_(max_length), prefix_(prefix), task_(task) {}

  std::vector<Answer> run();
  int64_t num_truncated() const { return num_truncated_; }

 private:
  void plan();
  void plan_text(size_t item, size_t slot, const std::string& context, const std::string& continuation);
  void plan_rolling(size_t item);
  void plan_scored(size_t item, size_t slot, const TokenIds& context, const TokenIds& continuation);
  int32_t prefix() const;
  void start_next();
  void on_answer(const Ask& ask, const HttpOutcome& outcome, const std::string& body);
  std::string take(const Ask& ask, const Json& reply);

  client::Target& target_;
  client::TokenSource& tokens_;
  const EvalOptions& options_;
  const int64_t max_length_;
  const std::optional<int32_t> prefix_;
  const Task& task_;
  std::vector<Ask> asks_;
  std::vector<Answer> answers_;
  std::unique_ptr<client::HttpLoop> loop_;
  client::LiveArea area_;
  size_t next_ = 0, running_ = 0, done_ = 0;
  int64_t num_truncated_ = 0;
  std::string error_;
};

// A row needs something before it: BOS, or EOS where there is none.
int32_t TaskRunner::prefix() const {
  if (!prefix_)
    throw Error(
        "a text without anything before it is scored, and the server names no BOS or EOS token (/tokenizer_info)");
  return *prefix_;
}

void TaskRunner::plan() {
  answers_.resize(task_.items.size());
  for (size_t i = 0; i < task_.items.size(); ++i) {
    const Item& item = task_.items[i];
    switch (task_.type) {
      case OutputType::kMultipleChoice:
        answers_[i].scored.resize(item.choices.size());
        for (size_t c = 0; c < item.choices.size(); ++c) {
          plan_text(i, c, item.context, task_.target_delimiter + item.choices[c]);
        }
        break;
      case OutputType::kLoglikelihood:
        answers_[i].scored.resize(1);
        plan_text(i, 0, item.context, task_.target_delimiter + item.targets.front());
        break;
      case OutputType::kRolling: plan_rolling(i); break;
      case OutputType::kGenerate: {
        TokenIds ids = tokens_.encode(item.context);
        const int64_t room = max_length_ - 1 - task_.max_gen_toks;
        if (room < 1)
          throw UsageError("{}: {} generated tokens leave no room in {}", task_.name, task_.max_gen_toks, max_length_);
        if (static_cast<int64_t>(ids.size()) > room) {
          ids.erase(ids.begin(), ids.end() - room);
          ++num_truncated_;
        }
        Json body = {
            {"prompt", ids}, {"max_tokens", task_.max_gen_toks}, {"temperature", task_.temperature}, {"seed", 1234}};
        if (!task_.until.empty()) body["stop"] = task_.until;
        asks_.push_back({std::move(body), i, 0, 0});
        break;
      }
    }
  }
}

// Blanks at the end of the context belong to what follows: the tokens of the whole are cut where the context's end.
void TaskRunner::plan_text(size_t item, size_t slot, const std::string& context, const std::string& continuation) {
  if (context.empty()) {
    TokenIds ids = tokens_.encode(continuation);
    if (ids.empty() || ids.front() != prefix()) ids.insert(ids.begin(), prefix());
    return plan_scored(item, slot, {ids.front()}, {ids.begin() + 1, ids.end()});
  }
  const size_t end = context.find_last_not_of(" \t\n\r\v\f");
  const std::string head = context.substr(0, end == context.npos ? 0 : end + 1);
  const TokenIds whole = tokens_.encode(context + continuation);
  const TokenIds before = tokens_.encode(head);
  const auto cut = static_cast<std::ptrdiff_t>(std::min(before.size(), whole.size()));
  plan_scored(item, slot, before, {whole.begin() + cut, whole.end()});
}

void TaskRunner::plan_scored(size_t item, size_t slot, const TokenIds& context, const TokenIds& continuation) {
  TokenIds ids = context;
  ids.insert(ids.end(), continuation.begin(), continuation.end());
  size_t scored_from = context.size();
  const auto limit = static_cast<size_t>(max_length_ - 1);  // one token is generated
  if (ids.size() > limit) {
    const size_t cut = ids.size() - limit;
    ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(cut));
    scored_from = scored_from > cut ? scored_from - cut : 0;
    ++num_truncated_;
  }
  if (scored_from == 0)
    throw Error("document {}: the text is longer than the {} tokens of a request", item, max_length_);
  asks_.push_back({{{"prompt", ids}, {"echo", true}, {"logprobs", 1}, {"max_tokens", 1}, {"temperature", 0}},
                   item,
                   slot,
                   scored_from});
}

// Windows side by side, each scored behind the token before it.
void TaskRunner::plan_rolling(size_t item) {
  const TokenIds ids = tokens_.encode(task_.items[item].targets.front());
  const auto size = static_cast<size_t>(max_length_ - 2);
  std::vector<Answer::Scored>& scored = answers_[item].scored;
  for (size_t at = 0; at < ids.size(); at += size) {
    const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(at);
    const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), at + size));
    // The last window is as long as the others: what it has too much is context, and counted before.
    const size_t count = static_cast<size_t>(end - begin);
    if (at == 0 || count == size) {
      plan_scored(item, scored.size(), {at == 0 ? prefix() : *(begin - 1)}, {begin, end});
    } else {
      const auto from = end - static_cast<std::ptrdiff_t>(size) - 1;
      plan_scored(item, scored.size(), {from, begin}, {begin, end});
    }
    scored.emplace_back();
  }
  if (ids.empty()) scored.emplace_back();
}

void TaskRunner::start_next() {
  while (running_ < static_cast<size_t>(options_.concurrency) && next_ < asks_.size() && error_.empty()) {
    Ask& ask = asks_[next_++];
    ask.body["model"] = target_.model();
    client::HttpRequest request;
    request.url = target_.endpoint_url(Endpoint::kCompletions);
    request.body = ask.body.dump(-1, ' ', false, Json::error_handler_t::replace);
    request.timeout_s = target_.timeout_s();
    if (!options_.samples) ask.body = nullptr;
    ++running_;
    loop_->send(std::move(request),
                std::make_shared<client::BodyCall>(
                    [this, &ask](const HttpOutcome& outcome, std::string&& body) { on_answer(ask, outcome, body); }));
  }
}

void TaskRunner::on_answer(const Ask& ask, const HttpOutcome& outcome, const std::string& body) {
  --running_;
  std::string why = outcome.error;
  if (why.empty() && outcome.status != 200) why = client::error_text(outcome.status, body);
  if (why.empty()) why = take(ask, Json::parse(body, nullptr, false));
  if (!why.empty()) {
    if (error_.empty()) error_ = fmt::format("{}, document {}: {}", task_.name, ask.item, why);
    return;
  }
  ++done_;
  area_.draw({fmt::format("  {}: {}/{} requests", task_.name, done_, asks_.size())});
  start_next();
}

// What a reply says; or why it says nothing.
std::string TaskRunner::take(const Ask& ask, const Json& reply) {
  if (!reply.is_object() || !reply.contains("choices") || !reply["choices"].is_array() || reply["choices"].empty()) {
    return "the answer has no choices";
  }
  const Json& choice = reply["choices"][0];
  if (task_.type == OutputType::kGenerate) {
    answers_[ask.item].text = choice.value("text", "");
    return {};
  }
  const Json logprobs = choice.value("logprobs", Json());
  if (!logprobs.is_object() || !logprobs.contains("token_logprobs") || !logprobs.contains("top_logprobs")) {
    return "the server does not tell the probabilities of a prompt (echo with logprobs)";
  }
  const Json &values = logprobs["token_logprobs"], &top = logprobs["top_logprobs"];
  Answer::Scored& scored = answers_[ask.item].scored[ask.slot];
  if (values.size() != top.size() || values.size() < ask.context + 1) return "probabilities of another prompt";
  for (size_t i = ask.context; i + 1 < values.size(); ++i) {  // the last one was generated
    if (!values[i].is_number() || !top[i].is_object()) return fmt::format("token {} has no probability", i);
    const double value = values[i].get<double>();
    scored.logprob += value;
    double best = -HUGE_VAL;
    for (const Json& other : top[i]) best = std::max(best, other.get<double>());
    if (value != best) scored.greedy = false;
  }
  return {};
}

std::vector<Answer> TaskRunner::run() {
  plan();
  loop_ = std::make_unique<client::HttpLoop>(target_.http_settings());
  const client::InterruptGuard guard;
  start_next();
  loop_->run([] { return !client::InterruptGuard::interrupted(); });
  area_.clear();
  if (!error_.empty()) throw Error("{}", error_);
  if (done_ < asks_.size()) throw Error("interrupted after {} of {} requests", done_, asks_.size());
  if (task_.type == OutputType::kRolling) {
    for (Answer& answer : answers_) {
      Answer::Scored all;
      for (const Answer::Scored& part : answer.scored) all.logprob += part.logprob;
      answer.scored = {all};
    }
  }
  return std::move(answers_);
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json sample(const Item& item, const Answer& answer) {
  Json scored = Json::array();
  for (const Answer::Scored& each : answer.scored) scored.push_back({each.logprob, each.greedy});
  return {{"context", item.context}, {"choices", item.choices}, {"gold", item.gold},
          {"targets", item.targets}, {"scored", scored},        {"text", answer.text}};
}

Json ask_json(client::Target& target, const std::string& path) {
  const client::HttpResponse response = target.session().get(target.url() + path, 30);
  return response.ok() ? Json::parse(response.body, nullptr, false) : Json();
}

// BOS, else EOS, by name through the tokenizer.
std::optional<int32_t> prefix_token(client::Target& target) {
  const Json info = ask_json(target, "/tokenizer_info");
  if (!info.is_object()) return std::nullopt;
  for (const char* key : {"bos_token", "eos_token"}) {
    if (!info.contains(key) || !info[key].is_string() || info[key].get<std::string>().empty()) continue;
    const Json body = {{"prompt", info[key]}, {"add_special_tokens", false}};
    const client::HttpResponse response = target.session().post(target.url() + "/tokenize", body.dump(), 30);
    const Json reply = response.ok() ? Json::parse(response.body, nullptr, false) : Json();
    if (reply.is_object() && reply.contains("tokens") && reply["tokens"].size() == 1)
      return reply["tokens"][0].get<int32_t>();
  }
  return std::nullopt;
}

int64_t length_limit(client::Target& target, const EvalOptions& options) {
  if (options.max_length > 0) return options.max_length;
  const Json props = ask_json(target, "/props");
  if (props.is_object() && props.contains("engine") && props["engine"].contains("max_model_len")) {
    return props["engine"]["max_model_len"].get<int64_t>();
  }
  const Json models = ask_json(target, "/v1/models");
  if (models.is_object() && models.contains("data") && !models["data"].empty() &&
      models["data"][0].contains("max_model_len")) {
    return models["data"][0]["max_model_len"].get<int64_t>();
  }
  throw UsageError("the server does not say how long a request may be: give --max-length");
}

}  // namespace

Json run_tasks(const EvalOptions& options) {
  std::vector<Task> tasks;
  for (const TaskSource& source : options.tasks) tasks.push_back(load_task(source));
  client::Target target(options.target);
  target.connect();
  const auto tokens = client::open_token_source(target, options.target);
  if (!tokens) throw Error("{} has no /tokenize: give its tokenizer with --tokenizer", target.url());
  const int64_t max_length = length_limit(target, options);
  const std::optional<int32_t> prefix = prefix_token(target);
  const auto start = client::Clock::now();
  Json results = Json::object(), configs = Json::object(), samples = Json::object();
  for (const Task& task : tasks) {
    fmt::print(stderr, "{}: {} documents of {} on {} ({})\n", task.name, task.items.size(), task.dataset,
               target.model(), target.url());
    TaskRunner runner(target, *tokens, options, max_length, prefix, task);
    const std::vector<Answer> answers = runner.run();
    Json& result = results[task.name] = Json::object();
    Json& intervals = configs[task.name]["intervals_95"] = Json::object();
    for (const MetricResult& metric : score(task, answers)) {
      const std::string key = fmt::format("{},{}", metric.metric, metric.filter);
      result[key] = number(metric.value);
      result[fmt::format("{}_stderr,{}", metric.metric, metric.filter)] = number(metric.standard_error);
      intervals[key] = {number(metric.interval.first), number(metric.interval.second)};
    }
    configs[task.name]["documents"] = task.items.size();
    configs[task.name]["dataset"] = task.dataset;
    configs[task.name]["num_fewshot"] = task.num_fewshot;
    configs[task.name]["truncated"] = runner.num_truncated();
    if (!options.samples) continue;
    samples[task.name] = Json::array();
    for (size_t i = 0; i < answers.size(); ++i) samples[task.name].push_back(sample(task.items[i], answers[i]));
  }
  Json out = {{"schema", kEvalSchema},
              {"created", utc_now()},
              {"label", options.label.empty() ? target.model() : options.label},
              {"target", target.describe()},
              {"max_length", max_length},
              {"duration_s", client::ms_between(start, client::Clock::now()) / 1000},
              {"results", results},
              {"tasks", configs}};
  if (options.samples) out["samples"] = samples;
  return out;
}

namespace {

// Calls row(task, metric, filter, value, stderr, low, high).
void each_metric(const Json& result,
                 const std::function<void(const std::string&, const std::string&, const std::string&, const Json&,
                                          const Json&, const Json&, const Json&)>& row) {
  for (const auto& [task, values] : result["results"].items()) {
    const Json& intervals = result["tasks"][task]["intervals_95"];
    for (const auto& [key, interval] : intervals.items()) {
      const size_t comma = key.find(',');
      const std::string metric = key.substr(0, comma), filter = key.substr(comma + 1);
      row(task, metric, filter, values[key], values[fmt::format("{}_stderr,{}", metric, filter)], interval[0],
          interval[1]);
    }
  }
}

// Quoted where a comma or a quote stands in it.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == text.npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + '"';
}

std::string digits(const Json& value) { return value.is_number() ? fmt::format("{:.4f}", value.get<double>()) : "-"; }

}  // namespace

std::vector<std::vector<std::string>> eval_table(const Json& result) {
  std::vector<std::vector<std::string>> rows = {{"task", "metric", "filter", "value", "stderr", "95 %"}};
  each_metric(result, [&](const std::string& task, const std::string& metric, const std::string& filter,
                          const Json& value, const Json& error, const Json& low, const Json& high) {
    rows.push_back({task, metric, filter, digits(value), digits(error), digits(low) + " … " + digits(high)});
  });
  return rows;
}

std::string eval_csv(const Json& result) {
  std::string out = "label,task,documents,metric,filter,value,stderr,low_95,high_95\n";
  const auto cell = [](const Json& value) { return value.is_null() ? std::string() : value.dump(); };
  each_metric(result, [&](const std::string& task, const std::string& metric, const std::string& filter,
                          const Json& value, const Json& error, const Json& low, const Json& high) {
    out += fmt::format("{},{},{},{},{},{},{},{},{}\n", csv_cell(result["label"].get<std::string>()), csv_cell(task),
                       cell(result["tasks"][task]["documents"]), metric, csv_cell(filter), cell(value), cell(error),
                       cell(low), cell(high));
  });
  return out;
}

}  // namespace bam::eval
