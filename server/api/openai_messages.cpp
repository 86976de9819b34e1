#include <fmt/format.h>

#include "server/api/openai_api.h"

namespace bam {

namespace {

// Text of a message: a string, null, or a list of {"type": "text", "text": ...} parts.
std::string read_content(FieldReader& message, const std::string& key) {
  const Json* content = message.raw(key);
  if (!content) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    message.fail(key, fmt::format("'{}' must be a string or an array of text parts.", message.name_of(key)));
    return {};
  }
  std::string text;
  for (const Json& part : *content) {
    const std::string type =
        part.is_object() && part.contains("type") && part["type"].is_string() ? part["type"].get<std::string>() : "";
    // An assistant that refused said so in words.
    if (type == "refusal" && part.contains(type) && part[type].is_string()) {
      text += part[type].get_ref<const std::string&>();
      continue;
    }
    if (type != "text" || !part.contains("text") || !part["text"].is_string()) {
      message.fail(key,
                   type.empty() || type == "text"
                       ? fmt::format("'{}' must hold {{\"type\": \"text\", \"text\": …}} parts.", message.name_of(key))
                       : fmt::format("'{}' has a part of type '{}'; this model reads text only.", message.name_of(key),
                                     type.substr(0, 40)));
      return {};
    }
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

}  // namespace

Json template_variables_schema() { return {{"type", "object"}}; }

Json read_template_variables(FieldReader& reader, const std::string& key) {
  const Json* object = reader.object(key);
  if (!object) return {};
  // What the server says itself, and what Hugging Face's function of that name takes for something else.
  for (const char* own : {"messages", "tools", "bos_token", "eos_token", "add_generation_prompt",
                          "continue_final_message", "chat_template", "tokenize"}) {
    if (object->contains(own)) reader.fail(key, fmt::format("'{}' may not set '{}'.", key, own));
  }
  if (dump_json(*object).size() > limits::kTemplateVariableBytes) {
    reader.fail(key, fmt::format("'{}' is larger than {} bytes.", key, limits::kTemplateVariableBytes));
  }
  return *object;
}

std::vector<ChatMessage> read_messages(FieldReader& reader, const std::string& key) {
  std::vector<ChatMessage> messages;
  const Json* list = reader.array(key, limits::kMessages);
  if (!list || list->empty()) {
    reader.fail(key, fmt::format("'{}' is missing or empty.", key));
    return messages;
  }
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string name = fmt::format("{}[{}]", key, i);
    if (!(*list)[i].is_object()) {
      reader.fail(key, fmt::format("'{}' must be an object with 'role' and 'content'.", name));
      return messages;
    }
    FieldReader fields((*list)[i], name);
    ChatMessage message;
    message.role = fields.text("role", 64).value_or("");
    if (fields.ok() && message.role.empty()) fields.fail("role", fmt::format("'{}.role' is missing.", name));
    if (message.role == "function" || fields.has("function_call")) {
      fields.fail("role",
                  fmt::format("'{}' is of the old form of tool calls; use 'tool_calls' and the role 'tool'.", name));
    }
    message.content = read_content(fields, "content");
    read_tool_fields(fields, message);
    reader.adopt(fields);
    if (!reader.ok()) return messages;
    messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace bam
