// Text as Unicode code points: sets of them, and finite automata over them that can be
// written out as bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/grammar/automaton.h"

namespace bam::constraints {

inline constexpr char32_t kMaxCodepoint = 0x10FFFF;

// Sorted, disjoint, non-adjacent ranges. Surrogates (U+D800..DFFF) are never members: UTF-8 has
// none.
class CodepointSet {
 public:
  struct Range {
    char32_t lo, hi;
    bool operator==(const Range&) const = default;
  };
  CodepointSet() = default;
  explicit CodepointSet(std::vector<Range> ranges);
  static CodepointSet all() { return CodepointSet({{0, kMaxCodepoint}}); }

  CodepointSet complement() const;
  CodepointSet united(const CodepointSet& other) const;
  CodepointSet minus(const CodepointSet& other) const;
  bool contains(char32_t c) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

// The text's code points, or nullopt when it is not UTF-8.
std::optional<std::u32string> to_codepoints(std::string_view text);
std::string to_utf8(std::u32string_view text);

// Nondeterministic automaton over code points. State 0 is the start.
struct CodepointNfa {
  struct Edge {
    uint32_t set;  // index into sets
    uint32_t to;
  };
  struct Node {
    std::vector<Edge> edges;
    std::vector<uint32_t> epsilons;
    bool accepting = false;
  };
  std::vector<CodepointSet> sets;
  std::vector<Node> nodes;

  uint32_t add_state() {
    nodes.emplace_back();
    return static_cast<uint32_t>(nodes.size() - 1);
  }
};

inline constexpr uint32_t kNoLimit = std::numeric_limits<uint32_t>::max();
// The same language restricted to texts of min to max code points; max = kNoLimit: no upper bound.
// Throws Error when it would have more than max_states states.
CodepointNfa limit_length(const CodepointNfa& nfa, uint32_t min, uint32_t max, uint32_t max_states);

enum class TextEncoding {
  kUtf8,
  kJsonString,  // as inside a JSON string: every code point in its one usual spelling, escaped only
                // where it must be
};
// Adds the bytes of the NFA's texts as paths between two states.
void emit(const CodepointNfa& nfa, TextEncoding encoding, AutomatonBuilder& out, State from, State to);
// One edge's worth: the bytes of any single member of the set.
void emit(const CodepointSet& set, TextEncoding encoding, AutomatonBuilder& out, State from, State to);

}  // namespace bam::constraints
