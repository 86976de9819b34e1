#include "server/grammar/regex.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/error.h"
#include "server/grammar/regex_ast.h"

namespace bam::constraints {
namespace {

using Kind = RegexAst::Kind;

// Gives ^ and $ their meaning and removes them: at the ends of the pattern they are what keeps a
// search from adding "anything" there; anywhere else no text could match in general, which is
// refused.
class AnchorResolver {
 public:
  AnchorResolver(RegexAst& ast, RegexMatch match) : ast_(ast), match_(match) {}

  void run() {
    ast_.root = resolve(ast_.root, Kind::kBegin);
    ast_.root = resolve(ast_.root, Kind::kEnd);
    check_none_left(ast_.root);
  }

 private:
  bool contains(uint32_t id, Kind anchor) const {
    const auto& node = ast_.nodes[id];
    if (node.kind == anchor) return true;
    if (node.kind == Kind::kRepeat) return false;
    for (uint32_t child : node.children) {
      if (contains(child, anchor)) return true;
    }
    return false;
  }

  uint32_t anything() {
    ast_.sets.push_back(CodepointSet::all());
    const auto set = static_cast<uint32_t>(ast_.sets.size() - 1);
    const uint32_t any = ast_.add({.kind = Kind::kSet, .set = set});
    return ast_.add({.kind = Kind::kRepeat, .min = 0, .max = kNoLimit, .children = {any}});
  }

  uint32_t resolve(uint32_t id, Kind anchor) {
    const RegexAst::Node node = ast_.nodes[id];
    if (node.kind == anchor) return ast_.add({.kind = Kind::kEmpty, .offset = node.offset});
    if (!contains(id, anchor)) {
      if (match_ == RegexMatch::kWhole) return id;
      const uint32_t any = anything();
      RegexAst::Node both{.kind = Kind::kConcat, .offset = node.offset};
      both.children = anchor == Kind::kBegin ? std::vector{any, id} : std::vector{id, any};
      return ast_.add(std::move(both));
    }
    RegexAst::Node copy = node;
    if (node.kind == Kind::kAlternate) {
      for (uint32_t& child : copy.children) child = resolve(child, anchor);
    } else {  // kConcat: only its outermost part may hold the anchor; check_none_left() sees to the
              // others
      uint32_t& edge = anchor == Kind::kBegin ? copy.children.front() : copy.children.back();
      if (match_ == RegexMatch::kSearch || contains(edge, anchor)) edge = resolve(edge, anchor);
    }
    return ast_.add(std::move(copy));
  }

  void check_none_left(uint32_t id) const {
    const auto& node = ast_.nodes[id];
    if (node.kind == Kind::kBegin || node.kind == Kind::kEnd) {
      throw Error("'{}' in the middle of the pattern is not supported, at offset {}",
                  node.kind == Kind::kBegin ? '^' : '$', node.offset);
    }
    for (uint32_t child : node.children) check_none_left(child);
  }

  RegexAst& ast_;
  const RegexMatch match_;
};

// Rewrites repeats of what may be empty: (x?){n} and ((x{0,9}){0,9}){0,9} say no more than x{0,n}, but as an automaton
// each has a state for every way to leave some out, all of them reached at once.
class RepeatSimplifier {
 public:
  explicit RepeatSimplifier(RegexAst& ast) : ast_(ast) {}
  void run() { ast_.root = simplified(ast_.root); }

 private:
  // A part that reads nothing in one more way costs a copy of what follows it.
  static constexpr size_t kMaxNullableParts = 4;

  bool nullable(uint32_t id) const {
    const auto& node = ast_.nodes[id];
    const auto may_be_empty = [this](uint32_t child) { return nullable(child); };
    switch (node.kind) {
      case Kind::kSet: return false;
      case Kind::kConcat: return std::all_of(node.children.begin(), node.children.end(), may_be_empty);
      case Kind::kAlternate: return std::any_of(node.children.begin(), node.children.end(), may_be_empty);
      case Kind::kRepeat: return node.min == 0 || nullable(node.children[0]);
      default: return true;
    }
  }

  uint32_t simplified(uint32_t id) {
    RegexAst::Node node = ast_.nodes[id];
    for (uint32_t& child : node.children) child = simplified(child);
    if (node.kind == Kind::kRepeat && nullable(node.children[0])) {
      if (const auto inner = without_empty(node.children[0])) {
        node.children[0] = *inner;
        node.min = 0;
      }
    }
    if (node.kind == Kind::kRepeat) join_counts(node);
    return ast_.add(std::move(node));
  }

  // (x{c,d}){a,b} is x{ac,bd} when no count between is left out, which is so for c <= 1.
  void join_counts(RegexAst::Node& node) const {
    const auto& inner = ast_.nodes[node.children[0]];
    if (inner.kind != Kind::kRepeat || inner.min > 1) return;
    const auto product = [](uint64_t a, uint64_t b) {
      if (a == kNoLimit || b == kNoLimit) return kNoLimit;
      return static_cast<uint32_t>(std::min<uint64_t>(a * b, kNoLimit - 1));
    };
    node.min *= inner.min;
    node.max = product(node.max, inner.max);
    node.children = inner.children;
  }

  // The same but for the empty text; nullopt where nothing is left or it is not worth writing down.
  std::optional<uint32_t> without_empty(uint32_t id) {
    if (!nullable(id)) return id;
    const RegexAst::Node node = ast_.nodes[id];
    switch (node.kind) {
      case Kind::kRepeat: {
        const auto child = without_empty(node.children[0]);
        if (!child) return std::nullopt;
        RegexAst::Node some = node;
        some.min = 1;
        some.children = {*child};
        if (some.max == 1) return *child;
        return ast_.add(std::move(some));
      }
      case Kind::kAlternate: {
        RegexAst::Node some = node;
        some.children.clear();
        for (uint32_t part : node.children) {
          if (const auto child = without_empty(part))
            some.children.push_back(*child);
          else if (ast_.nodes[part].kind != Kind::kEmpty)
            return std::nullopt;
        }
        if (some.children.empty()) return std::nullopt;
        return ast_.add(std::move(some));
      }
      case Kind::kConcat: return concat_without_empty(node);
      default: return std::nullopt;
    }
  }

  // xyz, all of them optional: x'yz | y'z | z'.
  std::optional<uint32_t> concat_without_empty(const RegexAst::Node& node) {
    if (node.children.size() > kMaxNullableParts) return std::nullopt;
    RegexAst::Node some{.kind = Kind::kAlternate, .offset = node.offset};
    for (size_t i = 0; i < node.children.size(); ++i) {
      const auto first = without_empty(node.children[i]);
      if (!first) return std::nullopt;
      RegexAst::Node rest{.kind = Kind::kConcat, .offset = node.offset, .children = {*first}};
      rest.children.insert(rest.children.end(), node.children.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                           node.children.end());
      some.children.push_back(ast_.add(std::move(rest)));
    }
    return ast_.add(std::move(some));
  }

  RegexAst& ast_;
};

class NfaBuilder {
 public:
  explicit NfaBuilder(RegexAst& ast) : ast_(ast) {}

  CodepointNfa run() {
    nfa_.sets = std::move(ast_.sets);
    const uint32_t start = add_state(), end = add_state();
    build(ast_.root, start, end);
    nfa_.nodes[end].accepting = true;
    return std::move(nfa_);
  }

 private:
  uint32_t add_state() {
    if (nfa_.nodes.size() >= kMaxRegexStates) {
      throw Error("the pattern needs more than {} states: lower its repeat counts", kMaxRegexStates);
    }
    return nfa_.add_state();
  }
  void epsilon(uint32_t from, uint32_t to) { nfa_.nodes[from].epsilons.push_back(to); }

  // Adds no edge into `from` and none out of `to`, so that parts can share both.
  void build(uint32_t id, uint32_t from, uint32_t to) {
    const auto& node = ast_.nodes[id];
    switch (node.kind) {
      case Kind::kSet: nfa_.nodes[from].edges.push_back({node.set, to}); return;
      case Kind::kConcat:
        for (size_t i = 0; i < node.children.size(); ++i) {
          const uint32_t next = i + 1 == node.children.size() ? to : add_state();
          build(node.children[i], from, next);
          from = next;
        }
        return;
      case Kind::kAlternate:
        for (uint32_t child : node.children) build(child, from, to);
        return;
      case Kind::kRepeat: build_repeat(node, from, to); return;
      case Kind::kEmpty:
      case Kind::kBegin:
      case Kind::kEnd: epsilon(from, to); return;
    }
  }

  void build_repeat(const RegexAst::Node& node, uint32_t from, uint32_t to) {
    const uint32_t child = node.children[0];
    for (uint32_t i = 0; i < node.min; ++i) {
      const uint32_t next = add_state();
      build(child, from, next);
      from = next;
    }
    if (node.max == kNoLimit) {
      const uint32_t loop = add_state();
      epsilon(from, loop);
      build(child, loop, loop);
      epsilon(loop, to);
      return;
    }
    for (uint32_t i = node.min; i < node.max; ++i) {
      const uint32_t next = add_state();
      epsilon(from, to);
      build(child, from, next);
      from = next;
    }
    epsilon(from, to);
  }

  RegexAst& ast_;
  CodepointNfa nfa_;
};

}  // namespace

CodepointNfa compile_pattern(std::string_view pattern, RegexMatch match) {
  RegexAst ast = parse_regex(pattern);
  AnchorResolver(ast, match).run();
  RepeatSimplifier(ast).run();
  return NfaBuilder(ast).run();
}

}  // namespace bam::constraints
