#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "server/grammar/codepoints.h"

namespace bam::constraints {

// A parsed pattern. Nodes refer to each other by index; children come before their parents.
struct RegexAst {
  enum class Kind : uint8_t { kEmpty, kSet, kConcat, kAlternate, kRepeat, kBegin, kEnd };
  struct Node {
    Kind kind = Kind::kEmpty;
    uint32_t offset = 0;             // in the pattern, for messages
    uint32_t set = 0;                // kSet: index into sets
    uint32_t min = 0, max = 0;       // kRepeat; max may be kNoLimit
    std::vector<uint32_t> children;  // kConcat, kAlternate: any number; kRepeat: one
  };
  std::vector<Node> nodes;
  std::vector<CodepointSet> sets;
  uint32_t root = 0;

  uint32_t add(Node node) {
    nodes.push_back(std::move(node));
    return static_cast<uint32_t>(nodes.size() - 1);
  }
};

// Throws Error with the construct and its offset.
RegexAst parse_regex(std::string_view pattern);

}  // namespace bam::constraints
