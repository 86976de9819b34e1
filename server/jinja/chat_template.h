#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace bam {

struct ChatMessage {
  std::string role;
  std::string content;
  // Of an assistant that called tools: [{"id", "type", "function": {"name", "arguments": {…}}}]; null: it called none.
  Json tool_calls = {};
  std::string tool_call_id = {};  // of a tool's answer
  std::string name = {};
};

struct TemplateContext {
  std::string bos_token;
  std::string eos_token;
  bool add_generation_prompt = true;
  Json tools = {};      // as the request describes them; null: none
  Json variables = {};  // an object: what else the template may read; null: nothing
};

// A checkpoint's chat template: the subset of Jinja that real templates use, with Hugging Face's settings
// (trim_blocks, lstrip_blocks, loop controls, generation blocks). Rendering is bounded in steps, output and nesting, so
// a hostile template costs one error. Immutable after compile(): any number of threads may render at once.
class ChatTemplate {
 public:
  // Fails with the line and what was not understood.
  static Result<ChatTemplate> compile(const std::string& source);
  // It tells the model about tools; and it writes their calls and answers.
  bool knows_tools() const;
  bool knows_tool_messages() const;
  bool knows_developers() const;
  // Fails when the template does: raise_exception("…") gives exactly its message, anything else says where and why.
  Result<std::string> render(const std::vector<ChatMessage>& messages, const TemplateContext& context) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace bam
