#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace bam {

// The tokens that may spell constrained text, as a byte trie laid out in preorder:
//
//   "a" "ab" "abc" "b"  ->   index  byte depth skip
//                              0     a    0     3      skip = index of the next node that is not
//                              below this one 1     b    1     3 2     c    2     3 3     b    0 4
//
// so that one forward scan with jumps visits every token that a byte automaton can follow.
struct TokenTrie {
  struct Node {
    uint32_t skip;
    uint32_t first_token;  // tokens that end here: tokens[first_token .. next node's first_token)
    uint16_t depth;
    uint8_t byte;
  };
  std::vector<Node> nodes;  // ends with a sentinel
  std::vector<int32_t> tokens;
  std::vector<std::string> token_bytes;  // by id; empty: never allowed (control, EOS, unused)
  std::vector<int32_t> eos_ids;
  std::array<bool, 256> spells{};  // some token is exactly this byte
  uint32_t max_depth = 0;          // the longest token's bytes

  uint32_t num_nodes() const { return static_cast<uint32_t>(nodes.size()) - 1; }
};

// Built once per tokenizer and shared; cheap to copy, immutable.
class ConstraintVocabulary {
 public:
  // token_bytes[id]: what the token adds to a text; empty for control tokens.
  ConstraintVocabulary(std::vector<std::string> token_bytes, std::vector<int32_t> eos_ids);

  const std::shared_ptr<const TokenTrie>& trie() const { return trie_; }

 private:
  std::shared_ptr<const TokenTrie> trie_;
};

}  // namespace bam
