#include "models/tokenizer_config.h"

#include "base/error.h"
#include "models/strict_json.h"

namespace bam {
namespace {

using nlohmann::json;

class Reader {
 public:
  Reader(const json& object, const std::string& origin) : object_(object), origin_(origin) {}

  std::optional<bool> boolean(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) fail(key, "must be true or false", *value);
    return value->get<bool>();
  }

  std::optional<std::string> token(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_string()) return value->get<std::string>();
    const auto content = value->is_object() ? value->find("content") : value->end();
    if (!value->is_object() || content == value->end() || !content->is_string()) {
      fail(key, "must be a string or an object with a string \"content\"", *value);
    }
    return content->get<std::string>();
  }

  std::string chat_template(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return {};
    if (value->is_string()) return value->get<std::string>();
    if (!value->is_array()) fail(key, "must be a string or a list of named templates", *value);
    std::string chosen;
    for (const json& entry : *value) {
      const auto is_text = [&entry](const char* field) {
        const auto found = entry.find(field);
        return found != entry.end() && found->is_string();
      };
      if (!entry.is_object() || !is_text("name") || !is_text("template")) {
        fail(key, "must list objects with a \"name\" and a \"template\"", entry);
      }
      if (entry["name"] == "default") chosen = entry["template"].get<std::string>();
    }
    return chosen;
  }

 private:
  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  [[noreturn]] void fail(const char* key, const char* what, const json& value) const {
    throw Error("{}: key '{}' {}, got {}", origin_, key, what, quote_json(value));
  }

  const json& object_;
  const std::string& origin_;
};

}  // namespace

TokenizerConfig parse_tokenizer_config(std::string_view json_text, const std::string& origin) {
  const Result<json> document = parse_strict_json(json_text);
  if (!document) throw Error("{}: {}", origin, document.error().what());
  if (!document->is_object()) throw Error("{}: must be a JSON object", origin);
  const Reader reader(*document, origin);
  TokenizerConfig config;
  config.add_bos_token = reader.boolean("add_bos_token");
  config.add_eos_token = reader.boolean("add_eos_token");
  config.bos_token = reader.token("bos_token");
  config.eos_token = reader.token("eos_token");
  config.chat_template = reader.chat_template("chat_template");
  return config;
}

}  // namespace bam
