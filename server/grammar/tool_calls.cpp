#include "server/grammar/tool_calls.h"

#include "base/error.h"
#include "server/grammar/json_rules.h"
#include "server/grammar/json_schema.h"

namespace bam::constraints {
namespace {

using namespace tool_call_text;

// From behind the opening marker to behind the closing one.
RuleId add_call(const ToolCallGrammar& grammar, AutomatonBuilder& out) {
  const RuleId rule = out.add_rule();
  const State name = out.add_state();
  out.literal(out.start(rule), kBeforeName, name);
  for (const ToolCallGrammar::Tool& tool : grammar.tools) {
    const State arguments = out.add_state(), close = out.add_state();
    out.literal(name, tool.name + std::string(kBeforeArguments), arguments);
    try {
      out.call(arguments, add_json_schema(tool.schema, out), close);
    } catch (const Error& error) {
      throw Error("{}: {}", tool.where, error.what());
    }
    out.literal(close, kClose, out.end(rule));
  }
  return rule;
}

// Any bytes without the marker, from `from` to `end`; a text that has the marker goes on in `marked`.
void add_free_text(AutomatonBuilder& out, State from, State end, State marked) {
  // A partial match can only begin again with the marker's first byte, which it has once.
  static_assert(kOpen.find(kOpen[0], 1) == std::string_view::npos);
  std::vector<State> matched{from};
  for (size_t i = 1; i < kOpen.size(); ++i) matched.push_back(out.add_state());
  matched.push_back(marked);
  for (size_t i = 0; i < kOpen.size(); ++i) {
    out.epsilon(matched[i], end);
    const auto leads_to = [&](int byte) {
      return byte == kOpen[i] ? matched[i + 1] : byte == kOpen[0] ? matched[1] : from;
    };
    for (int first = 0, last; first < 256; first = last + 1) {
      for (last = first; last < 255 && leads_to(last + 1) == leads_to(first);) ++last;
      out.bytes(matched[i], static_cast<uint8_t>(first), static_cast<uint8_t>(last), leads_to(first));
    }
  }
}

void add_content(const ToolCallGrammar& grammar, AutomatonBuilder& out, State from, State end, State marked) {
  using Content = ToolCallGrammar::Content;
  if (grammar.content == Content::kAnyText) return add_free_text(out, from, end, marked);
  out.literal(from, kOpen, marked);
  JsonRules rules(out);
  if (grammar.content == Content::kJsonObject) {
    out.call(rules.space(from), rules.object(), end);
  } else if (grammar.content == Content::kJsonSchema) {
    out.call(rules.space(from), add_json_schema(grammar.content_schema, out), end);
  }
}

}  // namespace

void build_tool_calls(const ToolCallGrammar& grammar, AutomatonBuilder& out) {
  const RuleId root = out.add_rule();
  State marked = out.add_state();
  add_content(grammar, out, out.start(root), out.end(root), marked);
  const RuleId call = add_call(grammar, out);
  const std::string next = std::string(kBetween) + std::string(kOpen);
  for (size_t i = 1;; ++i) {
    const State called = out.add_state();
    out.call(marked, call, called);
    out.epsilon(called, out.end(root));
    if (i >= grammar.max_calls) break;
    marked = out.add_state();
    out.literal(called, next, marked);
  }
}

}  // namespace bam::constraints
