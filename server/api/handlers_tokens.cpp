#include <iterator>

#include <fmt/format.h>

#include "models/model_config.h"
#include "server/api/chat_prompt.h"
#include "server/api/choice_decoder.h"
#include "server/api/handlers.h"
#include "server/api/json_body.h"

namespace bam {

namespace {

// The text of a /tokenize request in any of its forms, and how to read it.
struct TokenizeInput {
  std::string text;
  bool add_special = true;
  bool parse_special = false;
};

ApiResult<TokenizeInput> read_tokenize(const ServingModel& model, FieldReader& fields) {
  TokenizeInput input;
  const auto add_special = fields.boolean("add_special_tokens");
  if (fields.has("messages")) {
    auto messages = read_messages(fields, "messages");
    const ToolUse tools = read_tools(fields, {});
    const bool generation = fields.boolean("add_generation_prompt").value_or(true);
    if (!fields.ok()) return ApiError::invalid(fields.error());
    auto rendered = render_chat(model, std::move(messages), tools, generation);
    if (!rendered) return rendered.error();
    input.text = *std::move(rendered);
    input.add_special = add_special.value_or(false);
    input.parse_special = true;
    return input;
  }
  const char* key = fields.has("prompt") ? "prompt" : "content";
  const auto text = fields.text(key, SIZE_MAX);
  if (fields.ok() && !text) fields.fail("prompt", "'prompt', 'content' or 'messages' is missing.");
  if (!fields.ok()) return ApiError::invalid(fields.error());
  input.text = *text;
  input.add_special = add_special.value_or(true);
  return input;
}

}  // namespace

void handle_tokenize(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  // A text of megabytes exists once at a time: as body, as JSON, as text, as ids, as reply.
  auto body = parse_json_object(call->body);
  call->drop_body();
  if (!body) return call->reply(body.error());
  FieldReader fields(*body);
  const bool with_strings = fields.boolean("return_token_strs").value_or(false);
  auto input = read_tokenize(model, fields);
  if (!input) return call->reply(input.error());
  *body = Json();
  const std::vector<int32_t> ids = model.tokenizer.encode(input->text, input->add_special, input->parse_special);
  input->text = std::string();
  if (!call->is_open()) return;
  std::string json = R"({"tokens":[)";
  const auto out = std::back_inserter(json);
  for (size_t i = 0; i < ids.size(); ++i) fmt::format_to(out, "{}{}", i == 0 ? "" : ",", ids[i]);
  fmt::format_to(out, R"(],"count":{},"max_model_len":{})", ids.size(), model.engine.config().max_model_len);
  if (with_strings) {
    json += R"(,"token_strs":[)";
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) json += ',';
      json += dump_json_string(token_text(model.tokenizer, ids[i]));
    }
    json += ']';
  }
  json += '}';
  call->reply_json(std::move(json));
}

void handle_detokenize(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  auto body = parse_json_object(call->body);
  if (!body) return call->reply(body.error());
  FieldReader fields(*body);
  const Json* list = fields.raw("tokens");
  if (fields.ok() && (!list || !list->is_array())) fields.fail("tokens", "'tokens' must be an array of token ids.");
  std::optional<std::vector<int32_t>> ids;
  if (fields.ok()) ids = read_token_ids(fields, "tokens", *list);
  const bool skip_special = fields.boolean("skip_special_tokens").value_or(true);
  if (!fields.ok()) return call->reply(ApiError::invalid(fields.error()));
  for (const int32_t id : *ids) {
    if (id >= model.tokenizer.vocab_size()) {
      return call->reply(ApiError::invalid(
          fmt::format("'tokens': {} is no token id; the vocabulary has {} tokens.", id, model.tokenizer.vocab_size()),
          "tokens"));
    }
  }
  const std::string text = model.tokenizer.decode(*ids, skip_special);
  call->reply_json(dump_json({{"prompt", text}, {"content", text}}));
}

void handle_tokenizer_info(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  const Tokenizer& tokenizer = model.tokenizer;
  const auto id_or_null = [](int32_t id) { return id < 0 ? Json() : Json(id); };
  call->reply_json(
      dump_json({{"tokenizer_class", "sentencepiece"},
                 {"vocab_size", tokenizer.vocab_size()},
                 {"bos_token", tokenizer.bos_token()},
                 {"bos_token_id", id_or_null(tokenizer.bos_id())},
                 {"eos_token", tokenizer.eos_token()},
                 {"eos_token_id", id_or_null(tokenizer.eos_id())},
                 {"eos_token_ids", model.engine.model_config().eos_token_ids},
                 {"add_bos_token", tokenizer.add_bos()},
                 {"max_model_len", model.engine.config().max_model_len},
                 {"chat_template", tokenizer.chat_template().empty() ? Json() : Json(tokenizer.chat_template())}}));
}

}  // namespace bam
