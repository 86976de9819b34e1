#include "server/grammar/automaton.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace bam::constraints {
namespace {

constexpr uint16_t kDead = 0xFFFF;
constexpr std::array<bool, 256> kAllBytes = [] {
  std::array<bool, 256> all{};
  all.fill(true);
  return all;
}();

bool any_spelled(const AutomatonBuilder::ByteEdge& edge, const std::array<bool, 256>& spells) {
  return std::any_of(spells.begin() + edge.lo, spells.begin() + edge.hi + 1, [](bool s) { return s; });
}

// The minimax path length from every state to its rule's end, where a call costs 1 + the callee's
// height: Dijkstra with one bucket per height.
std::vector<uint16_t> compute_heights(const AutomatonBuilder& builder, const std::array<bool, 256>& spells) {
  const auto& nodes = builder.nodes();
  struct Caller {
    State from;
    RuleId rule;
    State to;
  };
  std::vector<std::vector<State>> preds(nodes.size());
  std::vector<Caller> callers;
  std::vector<std::vector<uint32_t>> callers_of_return(nodes.size()), callers_of_start(nodes.size());
  for (State s = 0; s < nodes.size(); ++s) {
    for (const auto& edge : nodes[s].bytes) {
      if (any_spelled(edge, spells)) preds[edge.to].push_back(s);
    }
    for (State to : nodes[s].epsilons) preds[to].push_back(s);
    for (const auto& edge : nodes[s].calls) {
      const auto index = static_cast<uint32_t>(callers.size());
      callers.push_back({s, edge.rule, edge.to});
      callers_of_return[edge.to].push_back(index);
      callers_of_start[builder.start(edge.rule)].push_back(index);
    }
  }

  std::vector<uint16_t> heights(nodes.size(), kDead);
  const uint16_t max_depth = builder.max_depth();
  std::vector<std::vector<State>> buckets(max_depth + 1u);
  for (const auto& rule : builder.rules()) buckets[0].push_back(rule.end);
  for (uint16_t level = 0; level <= max_depth; ++level) {
    auto& bucket = buckets[level];
    while (!bucket.empty()) {
      const State s = bucket.back();
      bucket.pop_back();
      if (heights[s] != kDead) continue;
      heights[s] = level;
      for (State pred : preds[s]) {
        if (heights[pred] == kDead) bucket.push_back(pred);
      }
      auto relax = [&](uint32_t index) {
        const Caller& caller = callers[index];
        const uint16_t callee = heights[builder.start(caller.rule)], after = heights[caller.to];
        if (callee == kDead || after == kDead || heights[caller.from] != kDead) return;
        const auto height = std::max<uint16_t>(after, static_cast<uint16_t>(callee + 1));
        if (height <= max_depth) buckets[height].push_back(caller.from);
      };
      for (uint32_t index : callers_of_return[s]) relax(index);
      for (uint32_t index : callers_of_start[s]) relax(index);
    }
  }
  return heights;
}

// States reachable from the rule's start without reading a byte, calls not entered.
template <typename Visit>
void visit_left_corner(const AutomatonBuilder& builder, RuleId rule, std::vector<uint32_t>& stamps, Visit visit) {
  std::vector<State> todo{builder.start(rule)};
  while (!todo.empty()) {
    const State s = todo.back();
    todo.pop_back();
    if (stamps[s] == rule + 1) continue;
    stamps[s] = rule + 1;
    visit(s);
    for (State to : builder.nodes()[s].epsilons) todo.push_back(to);
  }
}

// A rule that calls itself before reading anything would push calls forever.
void check_left_recursion(const AutomatonBuilder& builder) {
  const auto num_rules = static_cast<RuleId>(builder.rules().size());
  std::vector<std::vector<RuleId>> first_calls(num_rules);
  std::vector<uint32_t> num_callers(num_rules, 0);
  std::vector<uint32_t> stamps(builder.nodes().size(), 0);
  for (RuleId rule = 0; rule < num_rules; ++rule) {
    visit_left_corner(builder, rule, stamps, [&](State s) {
      for (const auto& edge : builder.nodes()[s].calls) first_calls[rule].push_back(edge.rule);
      BAM_CHECK_MSG(rule == 0 || s != builder.end(rule), "a called rule must read something");
    });
    auto& calls = first_calls[rule];
    std::sort(calls.begin(), calls.end());
    calls.erase(std::unique(calls.begin(), calls.end()), calls.end());
    for (RuleId callee : calls) ++num_callers[callee];
  }
  // Kahn's topological order; what is left over lies on or behind a cycle.
  std::vector<RuleId> ready;
  for (RuleId rule = 0; rule < num_rules; ++rule) {
    if (num_callers[rule] == 0) ready.push_back(rule);
  }
  uint32_t ordered = 0;
  while (!ready.empty()) {
    const RuleId rule = ready.back();
    ready.pop_back();
    ++ordered;
    for (RuleId callee : first_calls[rule]) {
      if (--num_callers[callee] == 0) ready.push_back(callee);
    }
  }
  if (ordered != num_rules) throw Error("a reference that refers to itself directly");
}

}  // namespace

RuleId AutomatonBuilder::add_rule() {
  const State start = add_state(), end = add_state();
  rules_.push_back({start, end});
  return static_cast<RuleId>(rules_.size() - 1);
}

State AutomatonBuilder::add_state() {
  if (nodes_.size() >= kMaxStates) {
    throw Error("too large: it needs more than {} automaton states", kMaxStates);
  }
  nodes_.emplace_back();
  return static_cast<State>(nodes_.size() - 1);
}

void AutomatonBuilder::count_edge() {
  if (++num_edges_ > kMaxEdges) throw Error("too large: it needs more than {} automaton edges", kMaxEdges);
}

void AutomatonBuilder::bytes(State from, uint8_t lo, uint8_t hi, State to) {
  count_edge();
  nodes_[from].bytes.push_back({lo, hi, to});
}

void AutomatonBuilder::byte(State from, char c, State to) {
  bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
}

void AutomatonBuilder::epsilon(State from, State to) {
  count_edge();
  nodes_[from].epsilons.push_back(to);
}

void AutomatonBuilder::call(State from, RuleId rule, State to) {
  count_edge();
  nodes_[from].calls.push_back({rule, to});
}

void AutomatonBuilder::literal(State from, std::string_view text, State to) {
  if (text.empty()) return epsilon(from, to);
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    const State next = add_state();
    byte(from, text[i], next);
    from = next;
  }
  byte(from, text.back(), to);
}

Automaton::Automaton(const AutomatonBuilder& builder, const std::array<bool, 256>& spells)
    : root_(builder.start(0)), max_depth_(builder.max_depth()) {
  check_left_recursion(builder);
  if (compute_heights(builder, kAllBytes)[root_] == kDead) {
    throw Error("no text can satisfy it within {} levels of nesting", max_depth_);
  }
  heights_ = compute_heights(builder, spells);
  if (heights_[root_] == kDead) {
    for (const auto& node : builder.nodes()) {
      for (const auto& edge : node.bytes) {
        if (any_spelled(edge, spells)) continue;
        throw Error("the model's vocabulary cannot spell it: no token for byte 0x{:02X}", edge.lo);
      }
    }
  }
  assign_classes(builder, spells);
  freeze(builder);
}

// Bytes that no edge tells apart share a class; classes are contiguous, so a byte range is a class
// range.
void Automaton::assign_classes(const AutomatonBuilder& builder, const std::array<bool, 256>& spells) {
  std::array<bool, 257> boundary{};
  for (const auto& node : builder.nodes()) {
    for (const auto& edge : node.bytes) {
      boundary[edge.lo] = true;
      boundary[edge.hi + 1] = true;
    }
  }
  class_spelled_.push_back(spells[0]);
  for (size_t b = 1; b < 256; ++b) {
    if (boundary[b] || spells[b] != spells[b - 1]) class_spelled_.push_back(spells[b]);
    classes_[b] = static_cast<uint8_t>(class_spelled_.size() - 1);
  }
  num_classes_ = static_cast<uint32_t>(class_spelled_.size());
}

void Automaton::freeze(const AutomatonBuilder& builder) {
  const auto& nodes = builder.nodes();
  ends_.assign(nodes.size(), 0);
  for (const auto& rule : builder.rules()) {
    ends_[rule.end] = 1;
    rule_starts_.push_back(rule.start);
  }
  auto alive = [&](State s) { return heights_[s] != kDead; };
  // A state with nothing but one epsilon is that epsilon's target.
  auto forward = [&](State s) {
    for (int hops = 0; hops < 64; ++hops) {
      const auto& node = nodes[s];
      if (ends_[s] || node.epsilons.size() != 1 || !node.bytes.empty() || !node.calls.empty()) break;
      s = node.epsilons[0];
    }
    return s;
  };
  for (State s = 0; s < nodes.size(); ++s) {
    byte_index_.push_back(static_cast<uint32_t>(byte_edges_.size()));
    epsilon_index_.push_back(static_cast<uint32_t>(epsilons_.size()));
    call_index_.push_back(static_cast<uint32_t>(calls_.size()));
    for (const auto& edge : nodes[s].bytes) {
      if (!alive(edge.to)) continue;
      const uint8_t last = classes_[edge.hi];
      for (uint32_t c = classes_[edge.lo]; c <= last; ++c) {
        if (!class_spelled_[c]) continue;
        const auto first = static_cast<uint8_t>(c);
        while (c < last && class_spelled_[c + 1]) ++c;
        byte_edges_.push_back({first, static_cast<uint8_t>(c), forward(edge.to)});
      }
    }
    for (State to : nodes[s].epsilons) {
      if (alive(to)) epsilons_.push_back(forward(to));
    }
    for (const auto& edge : nodes[s].calls) {
      if (alive(edge.to) && alive(builder.start(edge.rule))) {
        calls_.push_back({edge.rule, forward(edge.to)});
      }
    }
  }
  byte_index_.push_back(static_cast<uint32_t>(byte_edges_.size()));
  epsilon_index_.push_back(static_cast<uint32_t>(epsilons_.size()));
  call_index_.push_back(static_cast<uint32_t>(calls_.size()));
}

}  // namespace bam::constraints
