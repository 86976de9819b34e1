#include "server/jinja/chat_template.h"

#include <cctype>

#include "server/jinja/ast.h"
#include "server/jinja/renderer.h"

namespace bam {
namespace {

constexpr size_t kMaxSourceBytes = 256 * 1024;
constexpr uint64_t kMaxSteps = 1'000'000;
constexpr size_t kMaxOutputBytes = size_t{4} << 20;

// As a word of its own.
bool mentions(std::string_view source, std::string_view word) {
  const auto is_letter = [&](size_t at) {
    const auto c = at < source.size() ? static_cast<unsigned char>(source[at]) : ' ';
    return std::isalnum(c) != 0 || c == '_';
  };
  for (size_t at = source.find(word); at != std::string_view::npos; at = source.find(word, at + 1)) {
    if ((at == 0 || !is_letter(at - 1)) && !is_letter(at + word.size())) return true;
  }
  return false;
}

}  // namespace

struct ChatTemplate::Impl {
  jinja::Body body;
  bool knows_tools = false, knows_tool_messages = false, knows_developers = false;
};

Result<ChatTemplate> ChatTemplate::compile(const std::string& source) {
  if (source.size() > kMaxSourceBytes) {
    return Error("chat template: {} bytes, at most {} are allowed", source.size(), kMaxSourceBytes);
  }
  try {
    auto impl = std::make_shared<Impl>();
    impl->body = jinja::parse_template(source);
    impl->knows_tools = mentions(source, "tools");
    impl->knows_tool_messages = mentions(source, "tool_calls");
    impl->knows_developers = mentions(source, "developer");
    return ChatTemplate(std::move(impl));
  } catch (const Error& error) {
    return Error("chat template: {}", error.what());
  }
}

bool ChatTemplate::knows_tools() const { return impl_->knows_tools; }
bool ChatTemplate::knows_tool_messages() const { return impl_->knows_tool_messages; }
bool ChatTemplate::knows_developers() const { return impl_->knows_developers; }

Result<std::string> ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                         const TemplateContext& context) const {
  using jinja::Value;
  std::vector<Value> list;
  size_t bytes = 0;
  jinja::Variables variables;
  try {
    for (const auto& [name, value] : context.variables.items()) variables.emplace_back(name, jinja::from_json(value));
    for (const auto& [name, value] : variables) bytes += jinja::written_size(value, SIZE_MAX);
    for (const ChatMessage& message : messages) {
      bytes += message.role.size() + message.content.size() + 64;
      std::vector<std::pair<std::string, Value>> members = {{"role", Value::string(message.role)},
                                                            {"content", Value::string(message.content)}};
      if (!message.name.empty()) members.emplace_back("name", Value::string(message.name));
      if (!message.tool_call_id.empty()) members.emplace_back("tool_call_id", Value::string(message.tool_call_id));
      if (!message.tool_calls.is_null()) {
        members.emplace_back("tool_calls", jinja::from_json(message.tool_calls));
        bytes += jinja::written_size(members.back().second, SIZE_MAX);
      }
      list.push_back(Value::dict(std::move(members)));
    }
    // Given as None, as the reference implementation does when a request has none.
    variables.emplace_back("tools", jinja::from_json(context.tools));
    bytes += jinja::written_size(variables.back().second, SIZE_MAX);
  } catch (const Error& error) {
    return Error("chat template: {}", error.what());
  }
  const jinja::Variables others = {
      {"messages", Value::list(std::move(list))},
      {"add_generation_prompt", Value::boolean(context.add_generation_prompt)},
      {"bos_token", Value::string(context.bos_token)},
      {"eos_token", Value::string(context.eos_token)},
      {"documents", Value::none()},
  };
  variables.insert(variables.end(), others.begin(), others.end());
  // Long conversations need room: the limits grow with what they are about.
  jinja::Renderer renderer(std::move(variables), kMaxSteps + bytes, kMaxOutputBytes + 4 * bytes);
  try {
    return renderer.run(impl_->body);
  } catch (const jinja::RaisedByTemplate& raised) {
    return Error(raised);
  } catch (const Error& error) {
    return Error("chat template: {}", error.what());
  }
}

}  // namespace bam
