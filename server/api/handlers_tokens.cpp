#include <iterator>

#include <fmt/format.h>

#include "base/json_discard.h"
#include "base/utf8.h"
#include "models/model_config.h"
#include "server/api/chat_prompt.h"
#include "server/api/handlers.h"
#include "server/api/json_body.h"

namespace bam {

namespace {

struct TokenizeRequest {
  std::optional<std::string> text;
  bool is_content = false;  // llama.cpp's word for it
  std::vector<ChatMessage> messages;
  std::optional<bool> add_special;
  bool parse_special = true;
  ToolUse tools;
  ChatRendering chat;
  bool token_strs = false;
  bool with_pieces = false;
};

struct DetokenizeRequest {
  std::vector<int32_t> tokens;
  bool skip_special = true;
};

// clang-format off
const FieldTable<TokenizeRequest>& tokenize_fields() {
  using Kinds = FieldKinds<TokenizeRequest>;
  const Json messages = {{"type", "array"}, {"minItems", 1}, {"maxItems", limits::kMessages}, {"items", {{"$ref", "#/components/schemas/Message"}}}};
  const auto read_text = [](FieldReader& in, const std::string& key, TokenizeRequest& out) {
    out.text = in.text(key, SIZE_MAX);
    out.is_content = key == "content";
  };
  static const FieldTable<TokenizeRequest> fields = {
      {"prompt", 1, Kinds::custom({{"type", "string"}}, read_text), "a text; \"content\" is llama.cpp's word for it", {"content"}},
      {"messages", 1, Kinds::custom(messages, [](FieldReader& in, const std::string& key, TokenizeRequest& out) { out.messages = read_messages(in, key); }),
       "or a chat"},
      {"add_special_tokens", 1, Kinds::flag(BAM_MEMBER(add_special)), "put BOS as the checkpoint asks; default true for a prompt, false for content and for a chat", {"add_special"}},
      {"parse_special", 1, Kinds::flag(BAM_MEMBER(parse_special)), "special tokens that the text spells are those tokens; else text"},
      {"tools", 1, Kinds::custom(tools_schema(), [](FieldReader& in, const std::string&, TokenizeRequest& out) { out.tools = read_tools(in, {}); }),
       "of a chat, as are the next three"},
      {"add_generation_prompt", 1, Kinds::flag(BAM_MEMBER(chat.add_generation_prompt)), "end with the head of an answer"},
      {"continue_final_message", 1, Kinds::flag(BAM_MEMBER(chat.continue_final_message)), "leave the last message open, to be continued"},
      {"chat_template_kwargs", 1, template_variables<TokenizeRequest>(BAM_MEMBER(chat.variables)), "variables for the template"},
      {"return_token_strs", 1, Kinds::flag(BAM_MEMBER(token_strs)), "token_strs: the vocabulary's spelling of each token"},
      {"with_pieces", 1, Kinds::flag(BAM_MEMBER(with_pieces)), "llama.cpp: tokens are {id, piece}; a piece that is no UTF-8 is a list of bytes"},
  };
  return fields;
}

const FieldTable<DetokenizeRequest>& detokenize_fields() {
  using Kinds = FieldKinds<DetokenizeRequest>;
  const Json ids = {{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 0}, {"maximum", INT32_MAX}}}};
  const auto read = [](FieldReader& in, const std::string& key, DetokenizeRequest& out) {
    const Json* list = in.array(key, SIZE_MAX);
    if (!list) return;
    if (auto tokens = read_token_ids(in, key, *list)) out.tokens = *std::move(tokens);
  };
  static const FieldTable<DetokenizeRequest> fields = {
      {"tokens", 1, Kinds::custom(ids, read), "token ids", {}, true},
      {"skip_special_tokens", 1, Kinds::flag(BAM_MEMBER(skip_special)), "special tokens are no part of the text"},
  };
  return fields;
}
// clang-format on

// The body by its table; megabytes of it exist once at a time.
template <typename T>
ApiResult<T> read_table_body(Call& call, const FieldTable<T>& fields) {
  auto body = parse_json_object(call.body);
  call.drop_body();
  if (!body) return body.error();
  const DiscardAtEnd at_end(*body);
  T request;
  FieldReader in(*body);
  read_fields(in, fields, ~0u, request);
  if (!in.ok()) return ApiError::invalid(in.error());
  return request;
}

// llama.cpp's {"id": 15, "piece": " the"}
void append_piece(std::string& out, const Tokenizer& tokenizer, int32_t id) {
  const std::string text = tokenizer.is_special(id) ? tokenizer.piece(id) : tokenizer.token_bytes(id);
  fmt::format_to(std::back_inserter(out), R"({{"id":{},"piece":)", id);
  if (is_valid_utf8(text)) {
    out += dump_json_string(text);
  } else {
    out += '[';
    for (size_t i = 0; i < text.size(); ++i) {
      fmt::format_to(std::back_inserter(out), "{}{}", i == 0 ? "" : ",", static_cast<unsigned char>(text[i]));
    }
    out += ']';
  }
  out += '}';
}

}  // namespace

Json tokenize_schema() { return fields_schema(tokenize_fields(), ~0u); }
Json detokenize_schema() { return fields_schema(detokenize_fields(), ~0u); }

void handle_tokenize(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  auto request = read_table_body(*call, tokenize_fields());
  if (!request) return call->reply(request.error());
  if (!request->messages.empty()) {
    auto rendered = render_chat(model, std::move(request->messages), request->tools, request->chat);
    if (!rendered) return call->reply(rendered.error());
    request->text = *std::move(rendered);
    request->add_special = request->add_special.value_or(false);
    request->parse_special = true;
  }
  if (!request->text) {
    return call->reply(ApiError::invalid("'prompt', 'content' or 'messages' is missing.", "prompt"));
  }
  const std::vector<int32_t> ids = model.tokenizer.encode(
      *request->text, request->add_special.value_or(!request->is_content), request->parse_special);
  request->text.reset();
  if (!call->is_open()) return;
  std::string json = R"({"tokens":[)";
  const auto out = std::back_inserter(json);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) json += ',';
    if (request->with_pieces) {
      append_piece(json, model.tokenizer, ids[i]);
    } else {
      fmt::format_to(out, "{}", ids[i]);
    }
  }
  fmt::format_to(out, R"(],"count":{},"max_model_len":{})", ids.size(), model.engine.config().max_model_len);
  if (request->token_strs) {
    json += R"(,"token_strs":[)";
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) json += ',';
      json += dump_json_string(model.tokenizer.piece(ids[i]));
    }
    json += ']';
  }
  json += '}';
  call->reply_json(std::move(json));
}

void handle_detokenize(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  const auto request = read_table_body(*call, detokenize_fields());
  if (!request) return call->reply(request.error());
  for (const int32_t id : request->tokens) {
    if (id >= model.tokenizer.vocab_size()) {
      return call->reply(ApiError::invalid(
          fmt::format("'tokens': {} is no token id; the vocabulary has {} tokens.", id, model.tokenizer.vocab_size()),
          "tokens"));
    }
  }
  const std::string text = model.tokenizer.decode(request->tokens, request->skip_special);
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
