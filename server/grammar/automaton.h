// The one machine behind every constraint: a recursive transition network over bytes. A rule is a
// finite automaton whose edges read a byte range, read nothing, or call another rule and continue
// when that rule has ended.
//
//   rule "array":  o --'['--> o --call value--> o --']'--> o end
//                             ^                 |
//                             +------ ',' ------+
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace bam::constraints {

using State = uint32_t;
using RuleId = uint32_t;

inline constexpr uint32_t kMaxStates = 200'000;
inline constexpr uint32_t kMaxEdges = 2'000'000;
// Calls that may be open at once: nesting of the generated text, not of what describes it.
inline constexpr uint16_t kMaxJsonDepth = 64;
inline constexpr uint16_t kMaxGrammarDepth = 256;  // a level of an expression may take ten rules

// Throws Error when the automaton would grow past kMaxStates or kMaxEdges.
class AutomatonBuilder {
 public:
  explicit AutomatonBuilder(uint16_t max_depth = kMaxJsonDepth) : max_depth_(max_depth) {}

  struct ByteEdge {
    uint8_t lo, hi;
    State to;
  };
  struct CallEdge {
    RuleId rule;
    State to;
  };
  struct Node {
    std::vector<ByteEdge> bytes;
    std::vector<State> epsilons;
    std::vector<CallEdge> calls;
  };
  struct Rule {
    State start, end;
  };

  // Rule 0 is the root. A called rule reads at least one byte.
  RuleId add_rule();
  State start(RuleId rule) const { return rules_[rule].start; }
  State end(RuleId rule) const { return rules_[rule].end; }

  State add_state();
  void bytes(State from, uint8_t lo, uint8_t hi, State to);
  void byte(State from, char c, State to);
  void epsilon(State from, State to);
  void call(State from, RuleId rule, State to);
  void literal(State from, std::string_view text, State to);

  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<Rule>& rules() const { return rules_; }
  uint16_t max_depth() const { return max_depth_; }

 private:
  void count_edge();

  uint16_t max_depth_;
  uint32_t num_edges_ = 0;
  std::vector<Node> nodes_;
  std::vector<Rule> rules_;
};

// The frozen network: only edges that can still lead to the end, laid out flat. Immutable.
//
// height(s) is the number of calls that must be open at once to get from s to its rule's end. A
// state at call depth d can be completed iff d + height(s) <= max_depth(), so following only such
// states never meets a dead end: neither a string that cannot be finished nor a recursion that may
// not go deeper.
class Automaton {
 public:
  struct ByteEdge {
    uint8_t lo, hi;  // byte classes
    State to;
  };
  using CallEdge = AutomatonBuilder::CallEdge;

  // spells[b]: the vocabulary has a token that is exactly the byte b; other bytes are never
  // produced. Throws Error when no text can be produced at all, or when a rule calls itself without
  // reading anything.
  Automaton(const AutomatonBuilder& builder, const std::array<bool, 256>& spells);

  State root() const { return root_; }
  uint16_t max_depth() const { return max_depth_; }
  uint32_t num_states() const { return static_cast<uint32_t>(heights_.size()); }
  uint32_t num_classes() const { return num_classes_; }
  uint8_t class_of(uint8_t byte) const { return classes_[byte]; }
  uint16_t height(State s) const { return heights_[s]; }
  bool is_end(State s) const { return ends_[s] != 0; }
  State rule_start(RuleId rule) const { return rule_starts_[rule]; }
  std::span<const ByteEdge> byte_edges(State s) const { return row(byte_edges_, byte_index_, s); }
  std::span<const State> epsilons(State s) const { return row(epsilons_, epsilon_index_, s); }
  std::span<const CallEdge> calls(State s) const { return row(calls_, call_index_, s); }

 private:
  template <typename T>
  static std::span<const T> row(const std::vector<T>& all, const std::vector<uint32_t>& index, State s) {
    return {all.data() + index[s], all.data() + index[s + 1]};
  }
  void assign_classes(const AutomatonBuilder& builder, const std::array<bool, 256>& spells);
  void freeze(const AutomatonBuilder& builder);

  State root_ = 0;
  uint16_t max_depth_;
  uint32_t num_classes_ = 0;
  std::array<uint8_t, 256> classes_{};
  std::vector<bool> class_spelled_;
  std::vector<uint16_t> heights_;                                  // by state
  std::vector<uint8_t> ends_;                                      // by state: is the end of its rule
  std::vector<State> rule_starts_;                                 // by rule
  std::vector<uint32_t> byte_index_, epsilon_index_, call_index_;  // [states + 1]
  std::vector<ByteEdge> byte_edges_;
  std::vector<State> epsilons_;
  std::vector<CallEdge> calls_;
};

}  // namespace bam::constraints
