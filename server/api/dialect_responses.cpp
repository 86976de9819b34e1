// OpenAI's /v1/responses: https://platform.openai.com/docs/api-reference/responses
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/api/dialect.h"
#include "server/api/handlers.h"
#include "server/api/response_store.h"

namespace bam {

namespace {

// The text of a message's content or of a tool's output: a string, or a list of parts with texts.
std::optional<std::string> text_of_parts(const Json& content) {
  if (content.is_null()) return "";
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (const Json& part : content) {
    const std::string type = part.is_object() ? part.value("type", Json("")).dump() : "";
    const bool known = type == "\"input_text\"" || type == "\"output_text\"" || type == "\"text\"";
    if (!known || !part.contains("text") || !part["text"].is_string()) return std::nullopt;
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

// Items of `input` become messages of a chat; calls join the assistant's message that they belong to.
ApiResult<Json> messages_of(const Json& items, Json messages) {
  for (size_t i = 0; i < items.size(); ++i) {
    const Json& item = items[i];
    const std::string where = fmt::format("input[{}]", i);
    const auto refuse = [&where](const std::string& why) {
      return ApiError::invalid(fmt::format("'{}' {}", where, why), where);
    };
    if (!item.is_object()) return refuse("must be an object.");
    const Json type = item.value("type", Json("message"));
    if (type == "message") {
      const auto text = text_of_parts(item.value("content", Json()));
      const Json role = item.value("role", Json());
      if (!role.is_string()) return refuse("needs a 'role'.");
      if (!text) return refuse("must have text as its content; this model reads text only.");
      messages.push_back({{"role", role}, {"content", *text}});
    } else if (type == "function_call") {
      Json call = {
          {"id", item.value("call_id", Json(""))},
          {"type", "function"},
          {"function", {{"name", item.value("name", Json())}, {"arguments", item.value("arguments", Json("{}"))}}}};
      if (messages.empty() || messages.back()["role"] != "assistant") {
        messages.push_back({{"role", "assistant"}, {"content", ""}});
      }
      Json& calls = messages.back()["tool_calls"];
      if (calls.is_null()) calls = Json::array();
      calls.push_back(std::move(call));
    } else if (type == "function_call_output") {
      const auto text = text_of_parts(item.value("output", Json()));
      if (!text) return refuse("must have text as its output.");
      messages.push_back({{"role", "tool"}, {"tool_call_id", item.value("call_id", Json(""))}, {"content", *text}});
    } else if (type != "reasoning") {  // another model's thoughts: there is no place for them in a template
      return refuse(fmt::format("has the type {}; messages, function_call and function_call_output are known.",
                                quote_json(type)));
    }
  }
  return messages;
}

// {"type": "function", "name", …} with the function's fields one level up.
Json nested_function(const Json& flat) {
  if (!flat.is_object() || flat.value("type", Json()) != "function" || flat.contains("function")) return flat;
  Json function = flat;
  function.erase("type");
  return {{"type", "function"}, {"function", std::move(function)}};
}

void tools_from_responses(Json& body) {
  if (const auto tools = body.find("tools"); tools != body.end() && tools->is_array()) {
    for (Json& tool : *tools) tool = nested_function(tool);
  }
  const auto choice = body.find("tool_choice");
  if (choice == body.end() || !choice->is_object()) return;
  if (choice->value("type", Json()) != "allowed_tools") {
    *choice = nested_function(*choice);
  } else if (choice->contains("tools") && (*choice)["tools"].is_array()) {
    Json tools = (*choice)["tools"];
    for (Json& tool : tools) tool = nested_function(tool);
    *choice = {{"type", "allowed_tools"},
               {"allowed_tools", {{"mode", choice->value("mode", Json("auto"))}, {"tools", std::move(tools)}}}};
  }
}

// text.format becomes response_format.
std::optional<ApiError> format_from_responses(Json& body) {
  Json text = take(body, "text");
  if (text.is_null()) return std::nullopt;
  if (!text.is_object()) return ApiError::invalid("'text' must be an object with 'format'.", "text");
  Json format = take(text, "format");
  text.erase("verbosity");
  if (!text.empty()) {
    const std::string name = "text." + text.items().begin().key();
    return ApiError::invalid(fmt::format("'{}' is not supported.", name), name);
  }
  if (format.is_null()) return std::nullopt;
  if (!format.is_object()) return ApiError::invalid("'text.format' must be an object.", "text.format");
  if (format.value("type", Json()) == "json_schema") {
    format.erase("type");
    format = {{"type", "json_schema"}, {"json_schema", std::move(format)}};
  }
  return set_response_format(body, std::move(format), "text.format");
}

std::optional<ApiError> refuse_unknown(const Json& body) {
  const auto given = [&body](const char* key) {
    return body.contains(key) && !body[key].is_null() && body[key] != false;
  };
  for (const char* key : {"background", "conversation", "prompt", "n"}) {
    if (given(key) && !(std::string_view(key) == "n" && body[key] == 1)) {
      return ApiError::invalid(fmt::format("'{}' is not supported by /v1/responses.", key), key);
    }
  }
  if (body.contains("messages")) return ApiError::invalid("'messages' are called 'input' here.", "messages");
  return std::nullopt;
}

// What is not used but repeated in the reply, where clients rely on its type.
std::optional<ApiError> check_repeated(const Json& body) {
  FieldReader in(body);
  static constexpr std::pair<std::string_view, bool> kTruncations[] = {{"auto", true}, {"disabled", false}};
  in.choice<bool>("truncation", kTruncations);
  in.text("user", limits::kModelBytes);
  if (const Json* metadata = in.object("metadata")) {
    const bool texts = std::ranges::all_of(*metadata, [](const Json& value) { return value.is_string(); });
    if (!texts) in.fail("metadata", "'metadata' must be an object of texts.");
  }
  return in.ok() ? std::nullopt : std::optional(ApiError::invalid(in.error()));
}

// What the reply repeats of the request.
Json settings_of(const Json& body) {
  const auto given = [&body](const char* key, Json otherwise) {
    const auto it = body.find(key);
    return it == body.end() || it->is_null() ? std::move(otherwise) : *it;
  };
  return {{"instructions", given("instructions", Json())},
          {"max_output_tokens", given("max_output_tokens", Json())},
          {"metadata", given("metadata", Json::object())},
          {"parallel_tool_calls", given("parallel_tool_calls", true)},
          {"previous_response_id", given("previous_response_id", Json())},
          {"temperature", given("temperature", Json())},
          {"text", given("text", {{"format", {{"type", "text"}}}})},
          {"tool_choice", given("tool_choice", "auto")},
          {"tools", given("tools", Json::array())},
          {"top_p", given("top_p", Json())},
          {"truncation", given("truncation", "disabled")},
          {"store", given("store", true)},
          {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
          {"user", given("user", Json())}};
}

// What becomes of a reply that may be asked for again.
struct Keeping {
  ResponseStore* store = nullptr;  // null: it is not kept
  std::string tenant;
  Json input, messages;
};

class ResponsesWriter final : public ReplyWriter {
 public:
  // num_top: alternatives of every token's log-probability, if these are asked for.
  ResponsesWriter(const Tokenizer& tokenizer, const ReplyMeta& meta, Json settings, Keeping keeping,
                  std::optional<size_t> num_top)
      : tokenizer_(tokenizer),
        meta_(meta),
        settings_(std::move(settings)),
        keeping_(std::move(keeping)),
        num_top_(num_top) {}

  std::string begin(int32_t, const Usage&) override {
    begun_ = true;
    const Json now = response("in_progress", Json());
    std::string out = event("response.created", {{"response", now}});
    out += event("response.in_progress", {{"response", now}});
    return out;
  }

  std::string delta(int32_t, const ChoiceDelta& delta, const Usage&, const std::vector<int32_t>*) override {
    std::string out;
    if (!delta.text.empty() || (num_top_ && !delta.tokens.empty() && delta.tool_calls.empty())) {
      if (!open_) out += open_message();
      Json& part = items_.back()["content"][0];
      part["text"].get_ref<std::string&>() += delta.text;
      const Json logprobs = logprobs_json(delta.tokens);
      for (const Json& token : logprobs) part["logprobs"].push_back(token);
      out += event("response.output_text.delta",
                   at_item({{"content_index", 0}, {"delta", delta.text}, {"logprobs", logprobs}}));
    }
    for (const ToolCallDelta& call : delta.tool_calls) {
      if (!call.name.empty()) {
        out += close_item("completed");
        out += open_item(call_item(call, ""));
      }
      if (call.arguments.empty()) continue;
      items_.back()["arguments"].get_ref<std::string&>() += call.arguments;
      out += event("response.function_call_arguments.delta", at_item({{"delta", call.arguments}}));
    }
    return out;
  }

  std::string finish(int32_t, const char* reason, const StopReason&, const Usage&) override {
    reason_ = reason;
    std::string out;
    if (items_.empty()) out += open_message();
    return out + close_item(item_status());
  }

  std::string end(const Usage& usage) override {
    Json done = response(status(), usage_json(usage));
    keep(done);
    return event(std::string("response.") + item_status(), {{"response", std::move(done)}});
  }

  std::string error(const ApiError& error) override {
    std::string out = begun_ ? std::string() : begin(0, {});
    Json failed = response("failed", Json());
    // Clients have a closed list of codes.
    const char* code = error.status == 429   ? "rate_limit_exceeded"
                       : error.status == 400 ? "invalid_prompt"
                                             : "server_error";
    failed["error"] = {{"code", code}, {"message", error.message}};
    return out + event("response.failed", {{"response", std::move(failed)}});
  }

  TextSource reply(std::vector<ChoiceReply> choices, const Usage& usage) override {
    return [this, choice = choices.front(), usage](std::string& out) {
      reason_ = choice.finish_reason;
      for (const ReplyPart& part : parts_of(choice)) {
        items_.push_back(part.call ? call_item(*part.call, part.call->arguments) : message_item(part.text));
        if (!part.call) items_.back()["content"][0]["logprobs"] = logprobs_json(choice.tokens);
        items_.back()["status"] = "completed";
      }
      items_.back()["status"] = item_status();
      const Json done = response(status(), usage_json(usage));
      keep(done);
      out += dump_json(done);
      return false;
    };
  }

 private:
  const char* item_status() const { return reason_ == "length" || reason_ == kAborted ? "incomplete" : "completed"; }
  const char* status() const { return reason_ == kAborted ? "cancelled" : item_status(); }

  static Json usage_json(const Usage& usage) {
    return {{"input_tokens", usage.prompt_tokens},
            {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
            {"output_tokens", usage.completion_tokens},
            {"output_tokens_details", {{"reasoning_tokens", 0}}},
            {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
  }

  Json logprobs_json(TokenRecords tokens) const {
    return num_top_ ? logprobs_of(tokenizer_, tokens, *num_top_) : Json::array();
  }

  std::string new_item_id(const char* prefix) const { return fmt::format("{}{}_{}", prefix, meta_.id, items_.size()); }

  Json message_item(std::string text) const {
    return {{"type", "message"},
            {"id", new_item_id("msg_")},
            {"status", "in_progress"},
            {"role", "assistant"},
            {"content", Json::array({output_text(std::move(text))})}};
  }
  static Json output_text(std::string text) {
    return {{"type", "output_text"},
            {"text", std::move(text)},
            {"annotations", Json::array()},
            {"logprobs", Json::array()}};
  }
  Json call_item(const ToolCallDelta& call, std::string arguments) const {
    return {{"type", "function_call"}, {"id", new_item_id("fc_")}, {"status", "in_progress"},
            {"call_id", call.id},      {"name", call.name},        {"arguments", std::move(arguments)}};
  }

  std::string open_item(Json item) {
    items_.push_back(item);
    open_ = true;
    return event("response.output_item.added", {{"output_index", items_.size() - 1}, {"item", std::move(item)}});
  }
  std::string open_message() {
    Json item = message_item("");
    item["content"] = Json::array();
    std::string out = open_item(std::move(item));
    items_.back()["content"] = Json::array({output_text("")});
    return out + event("response.content_part.added", at_item({{"content_index", 0}, {"part", output_text("")}}));
  }
  std::string close_item(const char* status) {
    if (!std::exchange(open_, false)) return {};
    Json& item = items_.back();
    item["status"] = status;
    std::string out;
    if (item["type"] == "message") {
      const Json& part = item["content"][0];
      out = event("response.output_text.done",
                  at_item({{"content_index", 0}, {"text", part["text"]}, {"logprobs", part["logprobs"]}}));
      out += event("response.content_part.done", at_item({{"content_index", 0}, {"part", part}}));
    } else {
      out = event("response.function_call_arguments.done",
                  at_item({{"name", item["name"]}, {"arguments", item["arguments"]}}));
    }
    return out + event("response.output_item.done", {{"output_index", items_.size() - 1}, {"item", item}});
  }

  Json at_item(Json fields) const {
    Json data = {{"item_id", items_.back()["id"]}, {"output_index", items_.size() - 1}};
    data.update(fields);
    return data;
  }
  std::string event(const std::string& type, Json fields) {
    Json data = {{"type", type}, {"sequence_number", next_sequence_++}};
    data.update(fields);
    return named_event(type, data);
  }

  Json response(const char* status, Json usage) const {
    Json json = {{"id", meta_.id},
                 {"object", "response"},
                 {"created_at", meta_.created},
                 {"status", status},
                 {"error", nullptr}};
    json["incomplete_details"] = Json();
    if (std::string_view(status) == "incomplete") json["incomplete_details"] = {{"reason", "max_output_tokens"}};
    json["model"] = meta_.model;
    json["output"] = items_;
    json.update(settings_);
    json["usage"] = std::move(usage);
    return json;
  }

  // The next request may go on from here.
  void keep(const Json& done) {
    if (!keeping_.store) return;
    auto messages = messages_of(items_, std::move(keeping_.messages));
    if (!messages) return;  // what we wrote ourselves can be read
    keeping_.store->put(keeping_.tenant, meta_.id, {dump_json(done), std::move(keeping_.input), *std::move(messages)});
  }

  const Tokenizer& tokenizer_;
  const ReplyMeta meta_;
  const Json settings_;
  Keeping keeping_;
  const std::optional<size_t> num_top_;
  Json items_ = Json::array();
  bool begun_ = false, open_ = false;
  std::string reason_;
  int64_t next_sequence_ = 0;
};

// include: ["message.output_text.logprobs"] is chat's logprobs; top_logprobs says how many alternatives.
std::optional<size_t> translate_logprobs(Json& body) {
  const Json include = body.value("include", Json());
  const auto wanted = [](const Json& what) { return what == "message.output_text.logprobs"; };
  if (!include.is_array() || std::none_of(include.begin(), include.end(), wanted)) {
    body.erase("top_logprobs");
    return std::nullopt;
  }
  if (include.size() == 1) body.erase("include");
  body["logprobs"] = true;
  return static_cast<size_t>(as_integer(body.value("top_logprobs", Json(0)), 0, limits::kLogprobs).value_or(0));
}

// `input` as a list of items.
ApiResult<Json> items_of(Json input) {
  if (input.is_string()) return Json::array({{{"type", "message"}, {"role", "user"}, {"content", std::move(input)}}});
  if (input.is_array() && !input.empty() && input.size() <= limits::kMessages) return input;
  return ApiError::invalid(fmt::format("'input' must be a text or an array of 1 to {} items.", limits::kMessages),
                           "input");
}

}  // namespace

void handle_responses(ServerContext& context, CallPtr call) {
  auto body = read_body(*call);
  if (!body) return;
  if (const auto error = refuse_unknown(*body)) return call->reply(*error);
  if (const auto error = check_repeated(*body)) return call->reply(*error);
  Json settings = settings_of(*body);
  auto items = items_of(take(*body, "input"));
  if (!items) return call->reply(items.error());
  Json earlier = Json::array();
  if (const Json previous = take(*body, "previous_response_id"); previous.is_string()) {
    const auto stored = context.responses.find(call->caller.tenant, previous.get<std::string>());
    if (!stored) {
      return call->reply(ApiError::invalid(
          fmt::format("Previous response with id '{}' not found.", previous.get<std::string>().substr(0, 200)),
          "previous_response_id", "previous_response_not_found"));
    }
    earlier = stored->messages;
  } else if (!previous.is_null()) {
    return call->reply(ApiError::invalid("'previous_response_id' must be a text.", "previous_response_id"));
  }
  auto messages = messages_of(*items, std::move(earlier));
  if (!messages) return call->reply(messages.error());
  Keeping keeping{.tenant = call->caller.tenant};
  const Json store = take(*body, "store");
  if (!store.is_null() && !store.is_boolean())
    return call->reply(ApiError::invalid("'store' must be true or false.", "store"));
  if (store != false) {
    keeping.store = &context.responses;
    keeping.input = *std::move(items);
    keeping.messages = *messages;
  }
  // Instructions hold for this reply only.
  if (Json instructions = take(*body, "instructions"); instructions.is_string()) {
    const Json system = {{"role", "system"}, {"content", std::move(instructions)}};
    messages->insert(messages->begin(), system);
  } else if (!instructions.is_null()) {
    return call->reply(ApiError::invalid("'instructions' must be a text.", "instructions"));
  }
  (*body)["messages"] = *std::move(messages);
  if (const auto error = format_from_responses(*body)) return call->reply(*error);
  tools_from_responses(*body);
  rename(*body, "max_output_tokens", "max_tokens");
  if (take(*body, "truncation") == "auto") (*body)["truncate_prompt_tokens"] = -1;
  const std::optional<size_t> num_top = translate_logprobs(*body);
  const Tokenizer& tokenizer = context.model.load(std::memory_order_acquire)->tokenizer;
  for (const char* key : {"stream_options", "metadata", "background"}) body->erase(key);
  start_dialect(
      context, std::move(call), *body, ApiKind::kChat,
      {.id_prefix = kResponseIdPrefix,
       .make_writer =
           [&tokenizer, settings = std::move(settings), keeping = std::move(keeping), num_top](const ReplyMeta& meta) {
             return std::make_unique<ResponsesWriter>(tokenizer, meta, settings, keeping, num_top);
           },
       .keeps_stream = true,
       .renamed = {{"max_tokens", "max_output_tokens"},
                   {"response_format.json_schema", "text.format"},
                   {"response_format", "text.format"},
                   {"messages", "input"}}});
}

}  // namespace bam
