#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bam::client {

using TokenIds = std::vector<int32_t>;
// Text to ids without special tokens.
using EncodeFn = std::function<TokenIds(std::string_view)>;

// Encodes pieces that are concatenated as ids. sentencepiece puts a space before every piece by itself; byte-level
// BPE does not, so all but the first piece get one. Which kind it is, is found out once.
class PieceEncoder {
 public:
  explicit PieceEncoder(EncodeFn encode);
  TokenIds first(std::string_view text) const { return encode_(text); }
  TokenIds next(std::string_view text) const;
  bool adds_space() const { return adds_space_; }

 private:
  EncodeFn encode_;
  bool adds_space_ = false;
};

// A prompt = head, then filler with inserts in it, then tail:
//
//   | head | cut unit | unit | unit | INSERT | unit | … | unit | tail |
//                                   ^ a unit boundary, the nearest to depth * filler tokens
//
// Units (a filler paragraph, a sentence of a text) are repeated in order as often as needed. The exact total length is
// reached by leaving out the first tokens of the filler: what precedes an insert or the question stays whole.
struct Insert {
  TokenIds ids;
  double depth = 0;  // 0: before all filler, 1: after it
};

struct PromptParts {
  TokenIds head;
  std::vector<Insert> inserts;
  TokenIds tail;
  int64_t fixed_tokens() const;  // everything but the filler
};

struct AssembledPrompt {
  TokenIds ids;
  std::vector<int64_t> insert_at;  // token index where inserts[i] begins
};

// ids.size() == length exactly. Throws Error when the parts alone are longer, or when there is no filler.
AssembledPrompt assemble_prompt(const PromptParts& parts, const std::vector<TokenIds>& units, int64_t length);

// Sentences of a text: cut after . ! ? and at line ends, whitespace trimmed, never empty.
std::vector<std::string> split_sentences(std::string_view text);

// Stands in for a tokenizer when the server offers none: one id per word. Lengths are then words, scaled by the
// tokens per word that the server's usage reports.
class WordVocabulary {
 public:
  TokenIds encode(std::string_view text);
  std::string decode(const TokenIds& ids) const;

 private:
  std::vector<std::string> words_;
  std::unordered_map<std::string, int32_t> ids_;
};

}  // namespace bam::client
