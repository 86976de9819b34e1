// llama.cpp's /completion and /apply-template: https://github.com/ggml-org/llama.cpp/tree/master/tools/server
#include <algorithm>

#include <fmt/format.h>

#include "server/api/chat_prompt.h"
#include "server/api/dialect.h"
#include "server/api/handlers.h"

namespace bam {

namespace {

double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

class LlamaCppWriter final : public ReplyWriter {
 public:
  LlamaCppWriter(const Tokenizer& tokenizer, const ReplyMeta& meta, Json settings, std::string prompt, size_t num_probs)
      : tokenizer_(tokenizer),
        meta_(meta),
        settings_(std::move(settings)),
        prompt_(std::move(prompt)),
        num_probs_(num_probs),
        first_(meta.first_token) {}

  std::string begin(int32_t, const Usage&) override {
    first_ = Clock::now();
    return {};
  }
  std::string delta(int32_t index, const ChoiceDelta& delta, const Usage& usage, const std::vector<int32_t>*) override {
    Json json = {{"index", index},
                 {"content", delta.text},
                 {"tokens", ids_of(delta.tokens)},
                 {"stop", false},
                 {"id_slot", -1},
                 {"tokens_predicted", usage.completion_tokens},
                 {"tokens_evaluated", usage.prompt_tokens}};
    if (num_probs_ > 0) json["completion_probabilities"] = logprobs_of(tokenizer_, delta.tokens, num_probs_, true);
    return event(json);
  }
  std::string finish(int32_t index, const char* reason, const StopReason& stop, const Usage& usage) override {
    return event(last(index, "", Json::array(), reason, stop, usage));
  }
  std::string end(const Usage&) override { return {}; }
  std::string error(const ApiError& error) override { return "data: " + error.to_json() + "\n\n"; }
  std::string progress(const ProgressEvent& progress, const Usage&) override {
    return event({{"index", 0},
                  {"content", ""},
                  {"tokens", Json::array()},
                  {"stop", false},
                  {"id_slot", -1},
                  {"tokens_predicted", 0},
                  {"tokens_evaluated", progress.total},
                  {"prompt_progress",
                   {{"total", progress.total},
                    {"cache", progress.cached},
                    {"processed", progress.processed},
                    {"time_ms", progress.elapsed_ms}}}});
  }

  TextSource reply(std::vector<ChoiceReply> choices, const Usage& usage) override {
    return [this, choices = std::move(choices), usage](std::string& out) {
      Json list = Json::array();
      for (const ChoiceReply& choice : choices) {
        list.push_back(last(choice.index, std::string(choice.text), ids_of(choice.tokens), choice.finish_reason,
                            choice.stop_reason, usage));
        if (num_probs_ > 0)
          list.back()["completion_probabilities"] = logprobs_of(tokenizer_, choice.tokens, num_probs_, true);
      }
      out += dump_json(list.size() == 1 ? list.front() : list);
      return false;
    };
  }

 private:
  static std::string event(const Json& json) { return "data: " + dump_json(json) + "\n\n"; }
  static Json ids_of(TokenRecords tokens) {
    Json ids = Json::array();
    for (const TokenRecord& token : tokens) ids.push_back(token.id);
    return ids;
  }

  Json last(int32_t index, std::string text, Json ids, std::string_view reason, const StopReason& stop,
            const Usage& usage) const {
    const auto* word = std::get_if<std::string>(&stop);
    const Clock::time_point now = Clock::now(), first = first_ == Clock::time_point() ? now : first_;
    const double prompt_ms = milliseconds(first - meta_.started), predicted_ms = milliseconds(now - first);
    const auto per_second = [](int64_t tokens, double ms) {
      return ms > 0 ? static_cast<double>(tokens) / ms * 1000 : 0.0;
    };
    const int64_t computed = usage.prompt_tokens - usage.cached_tokens;
    return {{"index", index},
            {"content", std::move(text)},
            {"tokens", std::move(ids)},
            {"id_slot", -1},
            {"stop", true},
            {"model", meta_.model},
            {"tokens_predicted", usage.completion_tokens},
            {"tokens_evaluated", usage.prompt_tokens},
            {"tokens_cached", usage.cached_tokens},
            {"truncated", false},
            {"stop_type", word                 ? "word"
                          : reason == "length" ? "limit"
                          : reason == "stop"   ? "eos"
                                               : "none"},
            {"stopping_word", word ? *word : ""},
            {"generation_settings", settings_},
            {"prompt", prompt_},
            {"timings",
             {{"cache_n", usage.cached_tokens},
              {"prompt_n", computed},
              {"prompt_ms", prompt_ms},
              {"prompt_per_second", per_second(computed, prompt_ms)},
              {"predicted_n", usage.completion_tokens},
              {"predicted_ms", predicted_ms},
              {"predicted_per_second", per_second(usage.completion_tokens, predicted_ms)}}}};
  }

  const Tokenizer& tokenizer_;
  const ReplyMeta meta_;
  const Json settings_;
  const std::string prompt_;
  const size_t num_probs_;
  Clock::time_point first_;
};

// A list of texts and token ids is one prompt here.
ApiResult<Json> joined_prompt(const ServingModel& model, Json prompt) {
  if (!prompt.is_array() || prompt.empty()) return prompt;
  bool texts = false, numbers = false;
  for (const Json& part : prompt) {
    texts = texts || part.is_string();
    numbers = numbers || part.is_number();
  }
  if (!texts || !numbers) return prompt;
  Json ids = Json::array();
  for (const Json& part : prompt) {
    if (part.is_string()) {
      for (const int32_t id : model.tokenizer.encode(part.get_ref<const std::string&>(), ids.empty(), true))
        ids.push_back(id);
    } else if (part.is_number_integer()) {
      ids.push_back(part);
    } else {
      return ApiError::invalid("'prompt' must hold texts and token ids.", "prompt");
    }
  }
  return ids;
}

}  // namespace

void handle_llamacpp_completion(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  auto body = read_body(*call);
  if (!body) return;
  Json settings = *body;
  settings.erase("prompt");
  auto prompt = joined_prompt(model, take(*body, "prompt"));
  if (!prompt) return call->reply(prompt.error());
  const std::string shown = prompt->is_string() ? prompt->get<std::string>() : std::string();
  if (prompt->is_array() && !prompt->empty() && !prompt->front().is_number() && body->value("stream", Json()) == true &&
      prompt->size() > 1) {
    return call->reply(ApiError::invalid("'stream' takes one prompt.", "prompt"));
  }
  (*body)["prompt"] = *std::move(prompt);
  Json limit = take(*body, "n_predict");
  if (limit.is_null()) limit = take(*body, "max_tokens");
  // −1, and nothing: until the model stops or the default limit of a chat is reached.
  if (!limit.is_null() && !(limit.is_number() && limit < 0)) {
    if (limit == 0) (*body)["echo"] = true;  // the prompt is read, for who comes next; completions allow that with echo
    (*body)["max_tokens"] = std::move(limit);
  }
  size_t num_probs = 0;
  if (Json count = take(*body, "n_probs"); !count.is_null() && count != 0) {
    num_probs = static_cast<size_t>(as_integer(count, 0, limits::kLogprobs).value_or(0));
    (*body)["logprobs"] = std::move(count);
  }
  if (Json wanted = take(*body, "return_tokens"); wanted == true) (*body)["return_token_ids"] = true;
  if (const auto seed = body->find("seed"); seed != body->end() && *seed == -1) body->erase(seed);
  for (const char* key : {"cache_prompt", "id_slot", "n_keep"}) body->erase(key);
  start_dialect(
      context, std::move(call), *body, ApiKind::kCompletion,
      {.id_prefix = "cmpl-",
       .make_writer =
           [&model, settings = std::move(settings), shown, num_probs](const ReplyMeta& meta) {
             return std::make_unique<LlamaCppWriter>(model.tokenizer, meta, settings, shown, num_probs);
           },
       .renamed = {{"max_tokens", "n_predict"}, {"logprobs", "n_probs"}, {"return_token_ids", "return_tokens"}}});
}

void handle_apply_template(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  auto body = read_body(*call);
  if (!body) return;
  FieldReader fields(*body);
  auto messages = read_messages(fields, "messages");
  const ToolUse tools = read_tools(fields, {});
  const bool generation = fields.boolean("add_generation_prompt").value_or(true);
  if (!fields.ok()) return call->reply(ApiError::invalid(fields.error()));
  auto prompt = render_chat(model, std::move(messages), tools, generation);
  if (!prompt) return call->reply(prompt.error());
  call->reply_json(dump_json({{"prompt", *std::move(prompt)}}));
}

}  // namespace bam
