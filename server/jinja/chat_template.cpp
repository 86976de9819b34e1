#include "server/jinja/chat_template.h"

#include "server/jinja/ast.h"
#include "server/jinja/renderer.h"

namespace bam {
namespace {

constexpr size_t kMaxSourceBytes = 256 * 1024;
constexpr uint64_t kMaxSteps = 1'000'000;
constexpr size_t kMaxOutputBytes = size_t{4} << 20;

}  // namespace

struct ChatTemplate::Impl {
  jinja::Body body;
};

Result<ChatTemplate> ChatTemplate::compile(const std::string& source) {
  if (source.size() > kMaxSourceBytes) {
    return Error("chat template: {} bytes, at most {} are allowed", source.size(), kMaxSourceBytes);
  }
  try {
    auto impl = std::make_shared<Impl>();
    impl->body = jinja::parse_template(source);
    return ChatTemplate(std::move(impl));
  } catch (const Error& error) {
    return Error("chat template: {}", error.what());
  }
}

Result<std::string> ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                         const TemplateContext& context) const {
  using jinja::Value;
  std::vector<Value> list;
  size_t bytes = 0;
  for (const ChatMessage& message : messages) {
    bytes += message.role.size() + message.content.size() + 64;
    list.push_back(Value::dict({{"role", Value::string(message.role)}, {"content", Value::string(message.content)}}));
  }
  jinja::Variables variables = {
      {"messages", Value::list(std::move(list))},
      {"add_generation_prompt", Value::boolean(context.add_generation_prompt)},
      {"bos_token", Value::string(context.bos_token)},
      {"eos_token", Value::string(context.eos_token)},
      // Given as None, as the reference implementation does when a request has none.
      {"tools", Value::none()},
      {"documents", Value::none()},
  };
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
