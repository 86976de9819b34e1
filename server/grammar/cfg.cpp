#include "server/grammar/cfg.h"

#include <algorithm>

#include "base/error.h"
#include "server/grammar/recursion.h"

namespace bam::constraints {

Cfg::NodeId Cfg::add(Node node) {
  nodes_.push_back(std::move(node));
  return static_cast<NodeId>(nodes_.size() - 1);
}

Cfg::NodeId Cfg::literal(std::string bytes) {
  texts_.push_back(std::move(bytes));
  return add({.kind = Kind::kLiteral, .index = static_cast<uint32_t>(texts_.size() - 1)});
}

Cfg::NodeId Cfg::set(CodepointSet set) {
  sets_.push_back(std::move(set));
  return add({.kind = Kind::kSet, .index = static_cast<uint32_t>(sets_.size() - 1)});
}

Cfg::NodeId Cfg::pattern(CodepointNfa nfa) {
  patterns_.push_back(std::move(nfa));
  return add({.kind = Kind::kPattern, .index = static_cast<uint32_t>(patterns_.size() - 1)});
}

Cfg::NodeId Cfg::sequence(std::vector<NodeId> parts) {
  return parts.size() == 1 ? parts[0] : add({.kind = Kind::kSequence, .children = std::move(parts)});
}

Cfg::NodeId Cfg::either(std::vector<NodeId> parts) {
  return parts.size() == 1 ? parts[0] : add({.kind = Kind::kEither, .children = std::move(parts)});
}

Cfg::NodeId Cfg::repeat(NodeId part, uint32_t min, uint32_t max) {
  return add({.kind = Kind::kRepeat, .min = min, .max = max, .children = {part}});
}

Cfg::NodeId Cfg::rule(const std::string& name, size_t line) {
  return add({.kind = Kind::kRule, .index = rule_index(name, line)});
}

uint32_t Cfg::rule_index(const std::string& name, size_t line) {
  const auto [it, added] = rule_ids_.try_emplace(name, static_cast<uint32_t>(rules_.size()));
  if (added) rules_.push_back({.name = name, .line = line});
  return it->second;
}

void Cfg::define(const std::string& name, NodeId body, size_t line) {
  Rule& rule = rules_[rule_index(name, line)];
  if (rule.defined) throw Error("line {}: the rule \"{}\" is defined twice", line, name);
  rule.body = body;
  rule.defined = true;
}

bool Cfg::defined(const std::string& name) const {
  const auto it = rule_ids_.find(name);
  return it != rule_ids_.end() && rules_[it->second].defined;
}

void Cfg::build(const std::string& root, AutomatonBuilder& out) const {
  if (!defined(root)) throw Error("the grammar has no rule \"{}\", which is where it starts", root);
  AutomatonBuilder raw(out.max_depth());
  for (const Rule& rule : rules_) {
    if (!rule.defined) throw Error("line {}: the rule \"{}\" is not defined", rule.line, rule.name);
    raw.add_rule();
  }
  for (RuleId id = 0; id < rules_.size(); ++id) emit_node(rules_[id].body, raw, raw.start(id), raw.end(id));
  resolve_recursion(raw, rule_ids_.at(root), out);
}

// Adds no edge into `from` and none out of `to`, so that parts can share both.
void Cfg::emit_node(NodeId id, AutomatonBuilder& out, State from, State to) const {
  const Node& node = nodes_[id];
  switch (node.kind) {
    case Kind::kLiteral: return out.literal(from, texts_[node.index], to);
    case Kind::kSet: return emit(sets_[node.index], TextEncoding::kUtf8, out, from, to);
    case Kind::kPattern: return emit(patterns_[node.index], TextEncoding::kUtf8, out, from, to);
    case Kind::kRule: return out.call(from, node.index, to);
    case Kind::kRepeat: return emit_repeat(node, out, from, to);
    case Kind::kEither:
      for (NodeId child : node.children) emit_node(child, out, from, to);
      return;
    case Kind::kSequence:
      for (size_t i = 0; i < node.children.size(); ++i) {
        const State next = i + 1 == node.children.size() ? to : out.add_state();
        emit_node(node.children[i], out, from, next);
        from = next;
      }
      if (node.children.empty()) out.epsilon(from, to);
      return;
  }
}

void Cfg::emit_repeat(const Node& node, AutomatonBuilder& out, State from, State to) const {
  const NodeId child = node.children[0];
  const uint32_t counted = node.max == kNoLimit ? node.min : node.max;
  for (uint32_t i = 0; i < counted; ++i) {
    const State next = out.add_state();
    if (i >= node.min) out.epsilon(from, to);
    emit_node(child, out, from, next);
    from = next;
  }
  if (node.max == kNoLimit) {
    const State loop = out.add_state();
    out.epsilon(from, loop);
    emit_node(child, out, loop, loop);
    from = loop;
  }
  out.epsilon(from, to);
}

}  // namespace bam::constraints
