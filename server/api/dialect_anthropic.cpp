// Anthropic's /v1/messages: https://docs.anthropic.com/en/api/messages
#include <utility>

#include <fmt/format.h>

#include "server/api/chat_prompt.h"
#include "server/api/dialect.h"
#include "server/api/handlers.h"
#include "server/api/prepare.h"

namespace bam {

namespace {

ApiError bad_content(const std::string& where, const std::string& why) {
  return ApiError::invalid(fmt::format("'{}' {}", where, why), where);
}

// A string, or blocks of text.
ApiResult<std::string> text_of_blocks(const Json& content, const std::string& where) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return bad_content(where, "must be a text or an array of blocks.");
  std::string text;
  for (const Json& block : content) {
    const Json part = block.is_object() && block.value("type", Json()) == "text" ? block.value("text", Json()) : Json();
    if (!part.is_string()) return bad_content(where, "must have blocks of text only; this model reads text.");
    text += part.get_ref<const std::string&>();
  }
  return text;
}

// One message of the request becomes one of a chat, or several: results of tools are messages of their own there.
std::optional<ApiError> translate_message(const Json& message, const std::string& where, Json& out) {
  const Json role = message.is_object() ? message.value("role", Json()) : Json();
  if (role != "user" && role != "assistant" && role != "system") {
    return bad_content(where, "must have the role user or assistant.");
  }
  const Json content = message.value("content", Json());
  std::string text;
  Json calls = Json::array();
  if (content.is_array()) {
    for (size_t i = 0; i < content.size(); ++i) {
      const std::string at = fmt::format("{}.content[{}]", where, i);
      const Json& block = content[i];
      const Json type = block.is_object() ? block.value("type", Json()) : Json();
      if (type == "text" && block.contains("text") && block["text"].is_string()) {
        text += block["text"].get_ref<const std::string&>();
      } else if (type == "tool_use" && role == "assistant") {
        calls.push_back(
            {{"id", block.value("id", Json(""))},
             {"type", "function"},
             {"function",
              {{"name", block.value("name", Json())}, {"arguments", block.value("input", Json::object())}}}});
      } else if (type == "tool_result" && role == "user") {
        auto result = text_of_blocks(block.value("content", Json()), at + ".content");
        if (!result) return result.error();
        out.push_back({{"role", "tool"},
                       {"tool_call_id", block.value("tool_use_id", Json(""))},
                       {"content", *std::move(result)}});
      } else if (type != "thinking" && type != "redacted_thinking") {  // templates have no place for them
        return bad_content(at, fmt::format("is {}; text, tool_use and tool_result are known.", quote_json(type)));
      }
    }
    // Nothing but results of tools.
    if (text.empty() && calls.empty() && !out.empty() && out.back()["role"] == "tool") return std::nullopt;
  } else {
    auto plain = text_of_blocks(content, where + ".content");
    if (!plain) return plain.error();
    text = *std::move(plain);
  }
  Json translated = {{"role", role}, {"content", std::move(text)}};
  if (!calls.empty()) translated["tool_calls"] = std::move(calls);
  out.push_back(std::move(translated));
  return std::nullopt;
}

std::optional<ApiError> messages_from_anthropic(Json& body) {
  Json messages = take(body, "messages"), translated = Json::array();
  if (!messages.is_array() || messages.empty() || messages.size() > limits::kMessages) {
    return ApiError::invalid(fmt::format("'messages' must be an array of 1 to {} messages.", limits::kMessages),
                             "messages");
  }
  if (Json system = take(body, "system"); !system.is_null()) {
    auto text = text_of_blocks(system, "system");
    if (!text) return text.error();
    translated.push_back({{"role", "system"}, {"content", *std::move(text)}});
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    if (auto error = translate_message(messages[i], fmt::format("messages[{}]", i), translated)) return error;
  }
  body["messages"] = std::move(translated);
  return std::nullopt;
}

std::optional<ApiError> tools_from_anthropic(Json& body) {
  if (const auto tools = body.find("tools"); tools != body.end() && tools->is_array()) {
    for (size_t i = 0; i < tools->size(); ++i) {
      Json& tool = (*tools)[i];
      const Json type = tool.is_object() ? tool.value("type", Json("custom")) : Json();
      if (type != "custom" && !type.is_null()) {
        return ApiError::invalid(
            fmt::format("'tools[{}]' has the type {}; this server runs no tools of its own.", i, quote_json(type)),
            fmt::format("tools[{}].type", i));
      }
      if (!tool.is_object()) return ApiError::invalid(fmt::format("'tools[{}]' must be an object.", i), "tools");
      Json function = {{"name", tool.value("name", Json())}};
      if (tool.contains("description")) function["description"] = tool["description"];
      if (tool.contains("input_schema")) function["parameters"] = tool["input_schema"];
      tool = {{"type", "function"}, {"function", std::move(function)}};
    }
  }
  Json choice = take(body, "tool_choice");
  if (choice.is_null()) return std::nullopt;
  const Json type = choice.is_object() ? choice.value("type", Json()) : Json();
  if (type == "auto" || type == "none") {
    body["tool_choice"] = type;
  } else if (type == "any") {
    body["tool_choice"] = "required";
  } else if (type == "tool" && choice.contains("name")) {
    body["tool_choice"] = {{"type", "function"}, {"function", {{"name", choice["name"]}}}};
  } else {
    return ApiError::invalid("'tool_choice' must be an object with the type auto, any, none, or tool and a 'name'.",
                             "tool_choice");
  }
  if (choice.value("disable_parallel_tool_use", Json()) == true) body["parallel_tool_calls"] = false;
  return std::nullopt;
}

// output_config.format, and output_format as it was called before.
std::optional<ApiError> format_from_anthropic(Json& body) {
  Json config = take(body, "output_config"), format = take(body, "output_format");
  std::string name = "output_format";
  if (config.is_object()) {
    config.erase("effort");  // there is one
    if (Json configured = take(config, "format"); !configured.is_null()) {
      if (!format.is_null())
        return ApiError::invalid("'output_format' is 'output_config.format'; one is enough.", name);
      format = std::move(configured);
      name = "output_config.format";
    }
  }
  if (!config.is_null() && !config.empty()) {
    return ApiError::invalid("'output_config' must be an object with 'format' or 'effort'.", "output_config");
  }
  if (format.is_null()) return std::nullopt;
  if (!format.is_object() || take(format, "type") != "json_schema") {
    return ApiError::invalid(fmt::format("'{}' must be an object with the type json_schema.", name), name);
  }
  return set_response_format(body, {{"type", "json_schema"}, {"json_schema", std::move(format)}}, name);
}

// A body of this API as one of chat.
std::optional<ApiError> translate(Json& body) {
  if (body.contains("n") && body["n"] != 1) return ApiError::invalid("'n' is not supported by /v1/messages.", "n");
  if (auto error = messages_from_anthropic(body)) return error;
  if (auto error = tools_from_anthropic(body)) return error;
  if (auto error = format_from_anthropic(body)) return error;
  rename(body, "stop_sequences", "stop");
  if (Json thinking = take(body, "thinking"); thinking.is_object() && thinking.value("type", Json()) == "enabled") {
    return ApiError::invalid("'thinking' is not supported: BAM models have no thoughts apart from their text.",
                             "thinking");
  }
  for (const char* key : {"metadata", "stream_options", "service_tier"}) body.erase(key);
  // An answer that was begun is gone on with.
  if (const Json& last = body["messages"].back(); last["role"] == "assistant" && !last.contains("tool_calls")) {
    body["continue_final_message"] = true;
    body["add_generation_prompt"] = false;
  }
  return std::nullopt;
}

const char* stop_reason_of(std::string_view finish, const StopReason& stop) {
  if (finish == "tool_calls") return "tool_use";
  if (finish == "length") return "max_tokens";
  return std::holds_alternative<std::string>(stop) ? "stop_sequence" : "end_turn";
}

Json stop_sequence_of(const StopReason& stop) {
  const auto* text = std::get_if<std::string>(&stop);
  return text ? Json(*text) : Json();
}

class AnthropicWriter final : public ReplyWriter {
 public:
  explicit AnthropicWriter(const ReplyMeta& meta) : meta_(meta) {}

  std::string begin(int32_t, const Usage& usage) override {
    return event("message_start", {{"message", message(Json::array(), Json(), Json(), usage)}});
  }

  std::string delta(int32_t, const ChoiceDelta& delta, const Usage&, const std::vector<int32_t>*) override {
    std::string out;
    if (!delta.text.empty()) {
      if (!open_) out += open_block({{"type", "text"}, {"text", ""}});
      out +=
          event("content_block_delta", {{"index", index_}, {"delta", {{"type", "text_delta"}, {"text", delta.text}}}});
    }
    for (const ToolCallDelta& call : delta.tool_calls) {
      if (!call.name.empty()) {
        out += close_block();
        out += open_block({{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", Json::object()}});
      }
      if (call.arguments.empty()) continue;
      out += event("content_block_delta",
                   {{"index", index_}, {"delta", {{"type", "input_json_delta"}, {"partial_json", call.arguments}}}});
    }
    return out;
  }

  std::string finish(int32_t, const char* reason, const StopReason& stop, const Usage& usage) override {
    return close_block() +
           event("message_delta",
                 {{"delta", {{"stop_reason", stop_reason_of(reason, stop)}, {"stop_sequence", stop_sequence_of(stop)}}},
                  {"usage", usage_json(usage)}});
  }

  std::string end(const Usage&) override { return event("message_stop", Json::object()); }

  std::string error(const ApiError& error) override {
    return fmt::format("event: error\ndata: {}\n\n", anthropic_error(error));
  }

  TextSource reply(std::vector<ChoiceReply> choices, const Usage& usage) override {
    return [this, choice = choices.front(), usage](std::string& out) {
      Json content = Json::array();
      for (const ReplyPart& part : parts_of(choice)) {
        if (part.call) {
          content.push_back({{"type", "tool_use"},
                             {"id", part.call->id},
                             {"name", part.call->name},
                             {"input", arguments_of(*part.call)}});
        } else {
          content.push_back({{"type", "text"}, {"text", part.text}});
        }
      }
      out += dump_json(message(std::move(content), stop_reason_of(choice.finish_reason, choice.stop_reason),
                               stop_sequence_of(choice.stop_reason), usage));
      return false;
    };
  }

 private:
  // What was found in the prefix cache is counted apart.
  static Json usage_json(const Usage& usage) {
    return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage.cached_tokens},
            {"output_tokens", usage.completion_tokens}};
  }
  Json message(Json content, Json stop_reason, Json stop_sequence, const Usage& usage) const {
    return {{"id", meta_.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", meta_.model},
            {"content", std::move(content)},
            {"stop_reason", std::move(stop_reason)},
            {"stop_sequence", std::move(stop_sequence)},
            {"usage", usage_json(usage)}};
  }
  static std::string event(const char* type, Json fields) {
    Json data = {{"type", type}};
    data.update(fields);
    return named_event(type, data);
  }
  std::string open_block(Json block) {
    open_ = true;
    ++index_;
    return event("content_block_start", {{"index", index_}, {"content_block", std::move(block)}});
  }
  std::string close_block() {
    if (!std::exchange(open_, false)) return {};
    return event("content_block_stop", {{"index", index_}});
  }

  const ReplyMeta meta_;
  int index_ = -1;
  bool open_ = false;
};

}  // namespace

std::string anthropic_error(const ApiError& error) {
  const char* type = "invalid_request_error";
  switch (error.status) {
    case 401: type = "authentication_error"; break;
    case 403: type = "permission_error"; break;
    case 404: type = "not_found_error"; break;
    case 408: type = "timeout_error"; break;
    case 413: type = "request_too_large"; break;
    case 429: type = "rate_limit_error"; break;
    case 503: type = "overloaded_error"; break;
    default: type = error.status >= 500 ? "api_error" : "invalid_request_error"; break;
  }
  return dump_json({{"type", "error"}, {"error", {{"type", type}, {"message", error.message}}}});
}

void handle_messages(ServerContext& context, CallPtr call) {
  auto body = read_body(*call);
  if (!body) return;
  if (body->value("max_tokens", Json()).is_null())
    return call->reply(ApiError::invalid("'max_tokens' is missing.", "max_tokens"));
  if (const auto error = translate(*body)) return call->reply(*error);
  start_dialect(context, std::move(call), *body, ApiKind::kChat,
                {.id_prefix = "msg_",
                 .make_writer = [](const ReplyMeta& meta) { return std::make_unique<AnthropicWriter>(meta); },
                 .renamed = {{"stop", "stop_sequences"}, {"response_format.json_schema", "output_config.format"}}});
}

void handle_count_tokens(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  auto body = read_body(*call);
  if (!body) return;
  if (const auto error = translate(*body)) return call->reply(*error);
  const auto request = parse_generation_request(*body, ApiKind::kChat, model.defaults);
  if (!request) return call->reply(request.error());
  if (const auto error = check_model(context, request->model)) return call->reply(*error);
  auto prompt = render_chat(model, request->messages, request->tools, request->chat);
  if (!prompt) return call->reply(prompt.error());
  const size_t count = model.tokenizer.encode(*prompt, false, true).size();
  call->reply_json(dump_json({{"input_tokens", count}}));
}

}  // namespace bam
