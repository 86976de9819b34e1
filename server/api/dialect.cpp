#include "server/api/dialect.h"

#include <algorithm>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "server/api/completions.h"
#include "server/api/json_body.h"

namespace bam {

ApiError Dialect::in_own_words(ApiError error) const {
  for (const auto& [from, to] : renamed) {
    const auto names = [&from](std::string_view text) {
      return text.starts_with(from) &&
             (text.size() == from.size() || text[from.size()] == '[' || text[from.size()] == '.');
    };
    if (names(error.param)) error.param.replace(0, from.size(), to);
    const std::string quoted = "'" + from;
    for (size_t at = error.message.find(quoted); at != std::string::npos; at = error.message.find(quoted, at + 1)) {
      const size_t end = error.message.find('\'', at + 1);
      if (names(std::string_view(error.message).substr(at + 1, end - at - 1))) {
        error.message.replace(at + 1, from.size(), to);
      }
    }
  }
  return error;
}

Json take(Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end()) return Json();
  Json value = std::move(*it);
  object.erase(it);
  return value;
}

void rename(Json& object, const char* from, const char* to) {
  Json value = take(object, from);
  if (!value.is_null()) object[to] = std::move(value);
}

std::optional<ApiError> set_response_format(Json& body, Json format, const std::string& name) {
  if (body.contains("response_format") && !body["response_format"].is_null()) {
    return ApiError::invalid(fmt::format("'{}' and 'response_format' cannot be combined.", name), name);
  }
  body["response_format"] = std::move(format);
  return std::nullopt;
}

std::string utc_time(int64_t unix_seconds) { return fmt::format("{:%Y-%m-%dT%H:%M:%S}Z", fmt::gmtime(unix_seconds)); }

std::string named_event(std::string_view type, const Json& data) {
  return fmt::format("event: {}\ndata: {}\n\n", type, dump_json(data));
}

std::optional<Json> read_body(Call& call) {
  auto json = parse_json_object(call.body);
  call.drop_body();
  if (json) return *std::move(json);
  call.reply(json.error());
  return std::nullopt;
}

std::vector<ReplyPart> parts_of(const ChoiceReply& choice) {
  std::vector<ReplyPart> parts;
  if (!choice.text.empty() || choice.tool_calls.empty()) parts.push_back({std::string(choice.text), std::nullopt});
  for (const ToolCallDelta& call : choice.tool_calls) parts.push_back({{}, call});
  return parts;
}

Json logprobs_of(const Tokenizer& tokenizer, TokenRecords tokens, size_t num_top, bool with_ids) {
  const auto describe = [&tokenizer, with_ids](int32_t id, float logprob) {
    Json entry = Json::object(), bytes = Json::array();
    for (const char c : tokenizer.token_bytes(id)) bytes.push_back(static_cast<int>(static_cast<unsigned char>(c)));
    if (with_ids) entry["id"] = id;
    entry["token"] = token_text(tokenizer, id);
    entry["bytes"] = std::move(bytes);
    entry["logprob"] = std::max(logprob, -9999.0f);
    return entry;
  };
  Json list = Json::array();
  for (const TokenRecord& token : tokens) {
    if (!token.logprobs) continue;
    Json entry = describe(token.id, token.logprobs->logprob);
    entry["top_logprobs"] = Json::array();
    for (size_t i = 0; i < token.logprobs->top.size() && i < num_top; ++i) {
      entry["top_logprobs"].push_back(describe(token.logprobs->top[i].first, token.logprobs->top[i].second));
    }
    list.push_back(std::move(entry));
  }
  return list;
}

Json arguments_of(const ToolCallDelta& call) {
  auto parsed = parse_json(call.arguments);
  return parsed && parsed->is_object() ? *std::move(parsed) : Json::object();
}

}  // namespace bam
