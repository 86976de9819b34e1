#include "models/tokenizer_config.h"

#include <charconv>

#include "base/json_fields.h"

namespace bam {
namespace {

void fail(FieldReader& fields, const char* key, const char* wanted, const Json& value) {
  fields.fail(key, fmt::format("'{}' must {}, got {}", key, wanted, quote_json(value)));
}

constexpr size_t kMaxAddedTokens = 65'536;

// A string, or {"content": string}; null when it is neither.
const std::string* token_content(const Json& value) {
  if (!value.is_object()) return value.get_ptr<const std::string*>();
  const auto content = value.find("content");
  return content == value.end() ? nullptr : content->get_ptr<const std::string*>();
}

std::optional<std::string> read_token(FieldReader& fields, const char* key) {
  const Json* value = fields.raw(key);
  if (value == nullptr) return std::nullopt;
  if (const std::string* content = token_content(*value)) return *content;
  fail(fields, key, "be a string or an object with a string \"content\"", *value);
  return std::nullopt;
}

std::vector<std::string> read_tokens(FieldReader& fields, const char* key) {
  std::vector<std::string> tokens;
  const Json* list = fields.array(key, kMaxAddedTokens);
  for (const Json& entry : list ? *list : Json::array()) {
    if (const std::string* content = token_content(entry)) {
      tokens.push_back(*content);
    } else {
      fail(fields, key, "list strings or objects with a string \"content\"", entry);
    }
  }
  return tokens;
}

std::vector<TokenizerConfig::AddedToken> read_added_tokens(FieldReader& fields, const char* key) {
  std::vector<TokenizerConfig::AddedToken> tokens;
  const Json* object = fields.object(key);
  if (object == nullptr) return tokens;
  if (object->size() > kMaxAddedTokens) {
    fields.fail(key, fmt::format("'{}' has {} entries; at most {} are read", key, object->size(), kMaxAddedTokens));
  }
  for (const auto& [name, value] : object->items()) {
    int32_t id = -1;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), id);
    const std::string* content = value.is_object() ? token_content(value) : nullptr;
    if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size() || id < 0 || !content || content->empty()) {
      fail(fields, key, "map token ids to objects with a \"content\"", value);
      return tokens;
    }
    const auto special = value.find("special");
    tokens.push_back({id, *content, special != value.end() && *special == true});
  }
  return tokens;
}

std::string read_chat_template(FieldReader& fields, const char* key) {
  const Json* value = fields.raw(key);
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array()) {
    fail(fields, key, "be a string or a list of named templates", *value);
    return {};
  }
  std::string chosen;
  for (const Json& entry : *value) {
    const auto is_text = [&entry](const char* field) {
      const auto found = entry.find(field);
      return found != entry.end() && found->is_string();
    };
    if (!entry.is_object() || !is_text("name") || !is_text("template")) {
      fail(fields, key, "list objects with a \"name\" and a \"template\"", entry);
      return {};
    }
    if (entry["name"] == "default") chosen = entry["template"].get<std::string>();
  }
  return chosen;
}

}  // namespace

TokenizerConfig parse_tokenizer_config(std::string_view json_text, const std::string& origin) {
  const Result<Json> document = parse_json(json_text);
  if (!document) throw Error("{}: {}", origin, document.error().what());
  if (!document->is_object()) throw Error("{}: must be a JSON object", origin);
  FieldReader fields(*document, {}, throw_field_error(origin));
  TokenizerConfig config;
  config.add_bos_token = fields.boolean("add_bos_token");
  config.add_eos_token = fields.boolean("add_eos_token");
  config.bos_token = read_token(fields, "bos_token");
  config.eos_token = read_token(fields, "eos_token");
  config.unk_token = read_token(fields, "unk_token");
  config.special_tokens = read_tokens(fields, "additional_special_tokens");
  config.added_tokens = read_added_tokens(fields, "added_tokens_decoder");
  config.chat_template = read_chat_template(fields, "chat_template");
  return config;
}

}  // namespace bam
