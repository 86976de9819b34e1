#include "server/jinja/renderer.h"

#include <algorithm>

namespace bam::jinja {
namespace {

// Calls of evaluate() and execute() inside each other: bounds the stack, also for recursive macros.
constexpr int kMaxDepth = 600;

// An error that already says where it happened.
class LocatedError : public Error {
 public:
  using Error::Error;
};

}  // namespace

struct Renderer::Depth {
  explicit Depth(Renderer& r) : renderer(r) {
    renderer.budget_.charge(1);
    if (renderer.depth_ >= kMaxDepth) throw Error("calls nested too deep");
    ++renderer.depth_;
  }
  ~Depth() { --renderer.depth_; }
  Renderer& renderer;
};

Renderer::Renderer(Variables context, uint64_t max_steps, size_t max_output_bytes)
    : context_(std::move(context)), budget_(max_steps, max_output_bytes), scopes_(1) {
  context_.emplace_back("range", Value::function(Function::kRange));
  context_.emplace_back("namespace", Value::function(Function::kNamespace));
  context_.emplace_back("dict", Value::function(Function::kDict));
  context_.emplace_back("raise_exception", Value::function(Function::kRaiseException));
  context_.emplace_back("strftime_now", Value::function(Function::kStrftimeNow));
}

std::string Renderer::run(const Body& body) { return capture(body); }

std::string Renderer::capture(const Body& body) {
  std::string text;
  std::string* const outer = std::exchange(output_, &text);
  execute(body);
  output_ = outer;
  return text;
}

void Renderer::print(std::string_view text) {
  budget_.charge_text(text.size());
  if (output_->size() + text.size() > budget_.max_text_bytes()) throw Error("the template produces too much text");
  *output_ += text;
}

Renderer::Flow Renderer::execute(const Body& body) {
  for (const auto& node : body) {
    try {
      const Flow flow = execute(*node);
      if (flow != Flow::kNext) return flow;
    } catch (const RaisedByTemplate&) {
      throw;
    } catch (const LocatedError&) {
      throw;
    } catch (const Error& error) {
      throw LocatedError("line {}: {}", node->line, error.what());
    }
  }
  return Flow::kNext;
}

Renderer::Flow Renderer::execute(const Node& node) {
  const Depth depth(*this);
  switch (node.kind) {
    case Node::Kind::kText: print(node.text); break;
    case Node::Kind::kPrint: {
      const Value value = evaluate(*node.expr);
      if (value.is_string()) {
        print(value.as_string());
      } else {
        print(printed(value, budget_));
      }
      break;
    }
    case Node::Kind::kIf: return execute_if(node);
    case Node::Kind::kFor: return execute_for(node);
    case Node::Kind::kSet: assign(node.target, evaluate(*node.expr)); break;
    case Node::Kind::kSetBlock:
    case Node::Kind::kFilterBlock: execute_block(node); break;
    case Node::Kind::kMacro: assign(node.macro.name, Value::macro(&node.macro)); break;
    case Node::Kind::kScope: return execute(node.body);
    case Node::Kind::kBreak: return Flow::kBreak;
    case Node::Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

Renderer::Flow Renderer::execute_if(const Node& node) {
  for (const auto& branch : node.branches) {
    if (!branch.condition || evaluate(*branch.condition).truthy()) return execute(branch.body);
  }
  return Flow::kNext;
}

Renderer::Flow Renderer::execute_for(const Node& node) {
  auto items = std::make_shared<std::vector<Value>>(iterate(evaluate(*node.expr), budget_));
  if (node.condition) {
    std::vector<Value> kept;
    for (const Value& item : *items) {
      scopes_.emplace_back();
      assign(node.target, item);
      if (evaluate(*node.condition).truthy()) kept.push_back(item);
      scopes_.pop_back();
    }
    *items = std::move(kept);
  }
  if (items->empty()) return execute(node.otherwise);
  for (size_t i = 0; i < items->size(); ++i) {
    budget_.charge(1);
    scopes_.emplace_back();
    assign("loop", Value::loop(std::make_shared<const Loop>(Loop{.items = items, .index = i})));
    assign(node.target, (*items)[i]);
    const Flow flow = execute(node.body);
    scopes_.pop_back();
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

void Renderer::execute_block(const Node& node) {
  scopes_.emplace_back();
  Value text = Value::string(capture(node.body));
  scopes_.pop_back();
  if (node.expr) {
    const Value outer = std::exchange(block_text_, text);
    text = evaluate(*node.expr);
    block_text_ = outer;
  }
  if (node.kind == Node::Kind::kSetBlock) {
    assign(node.target, text);
  } else {
    print(printed(text, budget_));
  }
}

Value Renderer::lookup(const std::string& name) const {
  auto find = [&](const Variables& variables) -> const Value* {
    for (auto it = variables.rbegin(); it != variables.rend(); ++it) {
      if (it->first == name) return &it->second;
    }
    return nullptr;
  };
  for (size_t i = scopes_.size(); i > frame_; --i) {
    if (const Value* value = find(scopes_[i - 1])) return *value;
  }
  if (const Value* value = find(scopes_[0])) return *value;
  if (const Value* value = find(context_)) return *value;
  return Value::undefined(name);
}

void Renderer::assign(const std::string& name, Value value) {
  for (auto& [key, old] : scopes_.back()) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  scopes_.back().emplace_back(name, std::move(value));
}

void Renderer::assign(const Target& target, const Value& value) {
  if (!target.attribute.empty()) {
    Namespace* ns = lookup(target.names[0]).as_namespace();
    if (!ns) throw Error("cannot assign attribute on non-namespace object");
    if (value.as_namespace()) throw Error("a namespace cannot be stored in another value");
    for (auto& [key, old] : ns->items) {
      if (key == target.attribute) {
        old = value;
        return;
      }
    }
    ns->items.emplace_back(target.attribute, value);
    return;
  }
  if (target.names.size() == 1) return assign(target.names[0], value);
  const auto parts = iterate(value, budget_);
  if (parts.size() != target.names.size()) {
    throw Error("{} values to unpack into {} names", parts.size(), target.names.size());
  }
  for (size_t i = 0; i < parts.size(); ++i) assign(target.names[i], parts[i]);
}

Value Renderer::evaluate_optional(const ExprPtr& expr) { return expr ? evaluate(*expr) : Value(); }

Value Renderer::evaluate(const Expr& expr) {
  const Depth depth(*this);
  const auto& children = expr.children;
  switch (expr.kind) {
    case Expr::Kind::kLiteral: return expr.literal;
    case Expr::Kind::kName: return expr.name.empty() ? block_text_ : lookup(expr.name);
    case Expr::Kind::kList: {
      std::vector<Value> items;
      for (const auto& child : children) items.push_back(evaluate(*child));
      return Value::list(std::move(items));
    }
    case Expr::Kind::kDict: return evaluate_dict(expr);
    case Expr::Kind::kAttribute: return get_attribute(evaluate(*children[0]), expr.name);
    case Expr::Kind::kItem: {
      const Value object = evaluate(*children[0]);
      if (object.is_string()) budget_.charge_text(object.as_string().size());
      return get_item(object, evaluate(*children[1]));
    }
    case Expr::Kind::kSlice: {
      const Value object = evaluate(*children[0]);
      if (object.is_undefined()) throw Error("'{}' is undefined", object.undefined_name());
      const Value start = evaluate_optional(children[1]), stop = evaluate_optional(children[2]);
      return get_slice(object, start, stop, evaluate_optional(children[3]), budget_);
    }
    case Expr::Kind::kCall: return evaluate_call(expr);
    case Expr::Kind::kFilter: {
      const Value value = evaluate(*children[0]);
      return apply_filter(expr.name, value, evaluate_arguments(expr), budget_);
    }
    case Expr::Kind::kTest: {
      const Value value = evaluate(*children[0]);
      return Value::boolean(apply_test(expr.name, value, evaluate_arguments(expr), budget_));
    }
    case Expr::Kind::kNot: return Value::boolean(!evaluate(*children[0]).truthy());
    case Expr::Kind::kNegate: return binary_operation("*", evaluate(*children[0]), Value::integer(-1), budget_);
    case Expr::Kind::kPlus: return binary_operation("*", evaluate(*children[0]), Value::integer(1), budget_);
    case Expr::Kind::kBinary: {
      const Value left = evaluate(*children[0]);
      return binary_operation(expr.name, left, evaluate(*children[1]), budget_);
    }
    case Expr::Kind::kCompare: return evaluate_compare(expr);
    case Expr::Kind::kAnd: {
      Value left = evaluate(*children[0]);
      return left.truthy() ? evaluate(*children[1]) : left;
    }
    case Expr::Kind::kOr: {
      Value left = evaluate(*children[0]);
      return left.truthy() ? left : evaluate(*children[1]);
    }
    case Expr::Kind::kConcat: return evaluate_concat(expr);
    case Expr::Kind::kConditional:
      return evaluate(*children[1]).truthy() ? evaluate(*children[0]) : evaluate_optional(children[2]);
  }
  return Value();
}

Value Renderer::evaluate_dict(const Expr& expr) {
  std::vector<std::pair<std::string, Value>> items;
  for (size_t i = 0; i + 1 < expr.children.size(); i += 2) {
    const Value key = evaluate(*expr.children[i]);
    if (!key.is_string()) throw Error("only strings are supported as keys of a dict");
    items.emplace_back(key.as_string(), evaluate(*expr.children[i + 1]));
  }
  budget_.charge(1 + items.size() * items.size() / 64);
  return Value::dict(std::move(items));
}

Value Renderer::evaluate_compare(const Expr& expr) {
  Value left = evaluate(*expr.children[0]);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    const std::string& op = expr.operators[i];
    Value right = evaluate(*expr.children[i + 1]);
    budget_.charge_value(right);
    if (left.is_string() && right.is_string()) budget_.charge_search(right.as_string().size(), left.as_string().size());
    bool holds = false;
    if (op == "==") holds = equal(left, right);
    if (op == "!=") holds = !equal(left, right);
    if (op == "<") holds = less(left, right);
    if (op == ">") holds = less(right, left);
    if (op == "<=") holds = less(left, right) || equal(left, right);
    if (op == ">=") holds = less(right, left) || equal(left, right);
    if (op == "in") holds = contains(right, left);
    if (op == "not in") holds = !contains(right, left);
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Renderer::evaluate_concat(const Expr& expr) {
  std::string text;
  for (const auto& child : expr.children) {
    const std::string part = printed(evaluate(*child), budget_);
    budget_.charge_text(text.size() + part.size());
    text += part;
  }
  return Value::string(std::move(text));
}

Arguments Renderer::evaluate_arguments(const Expr& expr) {
  Arguments arguments;
  for (size_t i = 1; i < expr.children.size(); ++i) arguments.positional.push_back(evaluate(*expr.children[i]));
  for (const auto& [name, value] : expr.keywords) arguments.keywords.emplace_back(name, evaluate(*value));
  return arguments;
}

Value Renderer::evaluate_call(const Expr& expr) {
  const Expr& callee = *expr.children[0];
  Value function;
  if (callee.kind == Expr::Kind::kAttribute) {
    const Value object = evaluate(*callee.children[0]);
    // A member that can be called hides nothing: dicts in templates hold data.
    function = object.as_namespace() ? get_attribute(object, callee.name) : Value();
    if (!function.is_callable()) return call_method(object, callee.name, evaluate_arguments(expr), budget_);
  } else {
    function = evaluate(callee);
  }
  if (function.is_undefined()) throw Error("'{}' is undefined", function.undefined_name());
  if (const Macro* macro = function.as_macro()) return call_macro(*macro, evaluate_arguments(expr));
  if (const Function* builtin = function.as_function())
    return call_function(*builtin, evaluate_arguments(expr), budget_);
  throw Error("'{}' object is not callable", function.type_name());
}

Value Renderer::call_macro(const Macro& macro, const Arguments& arguments) {
  if (arguments.positional.size() > macro.parameters.size()) {
    throw Error("macro '{}' takes not more than {} arguments", macro.name, macro.parameters.size());
  }
  const size_t outer = std::exchange(frame_, scopes_.size());
  scopes_.emplace_back();
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [name, otherwise] = macro.parameters[i];
    const auto keyword = std::find_if(arguments.keywords.begin(), arguments.keywords.end(),
                                      [&name = name](const auto& k) { return k.first == name; });
    if (i < arguments.positional.size()) {
      assign(name, arguments.positional[i]);
    } else if (keyword != arguments.keywords.end()) {
      assign(name, keyword->second);
    } else {
      assign(name, otherwise ? evaluate(*otherwise) : Value::undefined(name));
    }
  }
  std::string text = capture(macro.body);
  scopes_.pop_back();
  frame_ = outer;
  return Value::string(std::move(text));
}

}  // namespace bam::jinja
