#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/jinja/ast.h"
#include "server/jinja/builtins.h"

namespace bam::jinja {

using Variables = std::vector<std::pair<std::string, Value>>;

// Runs one template once.
class Renderer {
 public:
  // `context`: the variables the template finds. Both budgets hold for the whole rendering.
  Renderer(Variables context, uint64_t max_steps, size_t max_output_bytes);

  // Throws RaisedByTemplate, or Error with the line.
  std::string run(const Body& body);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  struct Depth;

  Flow execute(const Body& body);
  Flow execute(const Node& node);
  Flow execute_if(const Node& node);
  Flow execute_for(const Node& node);
  void execute_block(const Node& node);
  std::string capture(const Body& body);
  void print(std::string_view text);

  Value evaluate(const Expr& expr);
  Value evaluate_optional(const ExprPtr& expr);
  Value evaluate_call(const Expr& expr);
  Value evaluate_compare(const Expr& expr);
  Value evaluate_concat(const Expr& expr);
  Value evaluate_dict(const Expr& expr);
  // Of a filter, test or call: children after the first, and keywords.
  Arguments evaluate_arguments(const Expr& expr);
  Value call_macro(const Macro& macro, const Arguments& arguments);

  Value lookup(const std::string& name) const;
  void assign(const std::string& name, Value value);
  void assign(const Target& target, const Value& value);

  Variables context_;
  Budget budget_;
  std::vector<Variables> scopes_;  // scopes_[0]: the template's own variables
  size_t frame_ = 0;               // the first scope of the running macro
  std::string* output_ = nullptr;
  Value block_text_;  // what the filters of a block are applied to
  int depth_ = 0;
};

}  // namespace bam::jinja
