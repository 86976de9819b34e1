// Context-free grammars: what both notations (GBNF, Lark) are read into.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/grammar/codepoints.h"

namespace bam::constraints {

inline constexpr size_t kMaxGrammarBytes = 64 * 1024;

class Cfg {
 public:
  using NodeId = uint32_t;

  NodeId empty() { return add({.kind = Kind::kSequence}); }
  NodeId literal(std::string bytes);
  NodeId set(CodepointSet set);
  NodeId pattern(CodepointNfa nfa);
  // A part of one is that part.
  NodeId sequence(std::vector<NodeId> parts);
  NodeId either(std::vector<NodeId> parts);
  NodeId repeat(NodeId part, uint32_t min, uint32_t max);  // max = kNoLimit: any number
  // A rule by its name, which may be defined later.
  NodeId rule(const std::string& name, size_t line);

  // Throws Error when the name has a definition.
  void define(const std::string& name, NodeId body, size_t line);
  bool defined(const std::string& name) const;

  // Adds rule 0, the texts of the rule `root`, to an empty builder. Recursion of every kind is allowed. Throws Error when
  // a rule has no definition.
  void build(const std::string& root, AutomatonBuilder& out) const;

 private:
  enum class Kind : uint8_t { kLiteral, kSet, kPattern, kSequence, kEither, kRepeat, kRule };
  struct Node {
    Kind kind = Kind::kSequence;
    uint32_t index = 0;         // of the text, set, pattern or rule
    uint32_t min = 0, max = 0;  // kRepeat
    std::vector<NodeId> children;
  };
  struct Rule {
    std::string name;
    size_t line = 0;  // where it was first named
    NodeId body = 0;
    bool defined = false;
  };

  NodeId add(Node node);
  uint32_t rule_index(const std::string& name, size_t line);
  void emit_node(NodeId id, AutomatonBuilder& out, State from, State to) const;
  void emit_repeat(const Node& node, AutomatonBuilder& out, State from, State to) const;

  std::vector<Node> nodes_;
  std::vector<std::string> texts_;
  std::vector<CodepointSet> sets_;
  std::vector<CodepointNfa> patterns_;
  std::vector<Rule> rules_;
  std::map<std::string, uint32_t> rule_ids_;
};

// GBNF, llama.cpp's notation (also XGrammar's EBNF); the text is the rule "root". Throws Error with the line.
void build_gbnf(std::string_view text, AutomatonBuilder& out);
// Lark's notation; the text is the rule "start". Throws Error with the line.
void build_lark(std::string_view text, AutomatonBuilder& out);
// Whichever it is: only GBNF has "::=".
void build_grammar(std::string_view text, AutomatonBuilder& out);

}  // namespace bam::constraints
