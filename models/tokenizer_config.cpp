#include "models/tokenizer_config.h"

#include "base/json_fields.h"

namespace bam {
namespace {

void fail(FieldReader& fields, const char* key, const char* wanted, const Json& value) {
  fields.fail(key, fmt::format("'{}' must {}, got {}", key, wanted, quote_json(value)));
}

std::optional<std::string> read_token(FieldReader& fields, const char* key) {
  const Json* value = fields.raw(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  const auto content = value->is_object() ? value->find("content") : value->end();
  if (!value->is_object() || content == value->end() || !content->is_string()) {
    fail(fields, key, "be a string or an object with a string \"content\"", *value);
    return std::nullopt;
  }
  return content->get<std::string>();
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
  config.chat_template = read_chat_template(fields, "chat_template");
  return config;
}

}  // namespace bam
