// Vocabularies for constraint tests, and ways to drive a constraint as the engine does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "server/grammar/constraint.h"

namespace bam::testing {

struct TestVocabulary {
  explicit TestVocabulary(std::vector<std::string> tokens)
      : token_bytes(std::move(tokens)),
        eos(static_cast<int32_t>(token_bytes.size())),
        vocabulary(with_eos(token_bytes), {eos}) {}

  static std::vector<std::string> with_eos(std::vector<std::string> tokens) {
    tokens.emplace_back();
    return tokens;
  }
  // Every byte, plus pieces of the kinds real vocabularies have: words, JSON punctuation runs, halves of characters.
  static const TestVocabulary& usual() {
    static const TestVocabulary vocabulary([] {
      std::vector<std::string> tokens;
      for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
      for (const char* piece :
           {"{\"", "\":", "\": ", "\": \"",   "\", \"", "\",\"",    "\"}",      "\"}}",  "\"]",  "]}",    "}}",
            "},",  "},{", "[[",   "[{",       "[\"",    "true",     "false",    " true", "null", " null", "tr",
            "ue",  "10",  "12",   "00",       "-1",     ".5",       "e1",       "abc",   "a",    "name",  " name",
            "é",   "ü",   "漢",   "\xE6\xBC", "\xA2",   "\xF0\x9F", "\x98\x80", "  ",    "    ", "\n  ",  "\n    ",
            " {",  "\\u", "\\n",  "\\\"",     "00e",    "yes",      "no",       "cat"}) {
        tokens.emplace_back(piece);
      }
      return tokens;
    }());
    return vocabulary;
  }

  std::vector<std::string> token_bytes;
  int32_t eos;
  ConstraintVocabulary vocabulary;
};

class Driver {
 public:
  Driver(const Constraint& prototype, const TestVocabulary& vocabulary)
      : vocabulary_(vocabulary), constraint_(prototype.clone_initial()) {}

  std::vector<int32_t> allowed() {
    std::vector<uint32_t> mask((vocabulary_.token_bytes.size() + 1 + 31) / 32, 0);
    constraint_->allowed_tokens(mask);
    std::vector<int32_t> tokens;
    for (size_t t = 0; t < mask.size() * 32; ++t) {
      if (mask[t / 32] >> (t % 32) & 1) tokens.push_back(static_cast<int32_t>(t));
    }
    return tokens;
  }
  bool allows(int32_t token) {
    const auto tokens = allowed();
    return std::binary_search(tokens.begin(), tokens.end(), token);
  }
  bool may_end() { return allows(vocabulary_.eos); }
  void accept(int32_t token) { constraint_->accept(token); }
  bool finished() const { return constraint_->finished(); }
  const Constraint& constraint() const { return *constraint_; }

  // Spells the text with the longest tokens that fit (or single bytes) and accepts them as long as they are allowed.
  bool accept_text(std::string_view text, bool single_bytes = false) {
    while (!text.empty()) {
      int32_t best = -1;
      for (size_t t = 0; t < vocabulary_.token_bytes.size(); ++t) {
        const std::string& bytes = vocabulary_.token_bytes[t];
        if (bytes.empty() || !text.starts_with(bytes) || (single_bytes && bytes.size() > 1)) continue;
        if (best < 0 || bytes.size() > vocabulary_.token_bytes[static_cast<size_t>(best)].size()) {
          best = static_cast<int32_t>(t);
        }
      }
      if (best < 0 || !allows(best)) return false;
      accept(best);
      text.remove_prefix(vocabulary_.token_bytes[static_cast<size_t>(best)].size());
    }
    return true;
  }

 private:
  const TestVocabulary& vocabulary_;
  std::unique_ptr<Constraint> constraint_;
};

// The whole text is allowed, token by token, and may end there; long tokens and single bytes must agree.
inline bool accepts(const Constraint& constraint, std::string_view text,
                    const TestVocabulary& vocabulary = TestVocabulary::usual()) {
  Driver long_tokens(constraint, vocabulary), bytes(constraint, vocabulary);
  const bool by_tokens = long_tokens.accept_text(text) && long_tokens.may_end();
  const bool by_bytes = bytes.accept_text(text, true) && bytes.may_end();
  if (by_tokens != by_bytes) throw std::logic_error("tokens and bytes disagree about: " + std::string(text));
  return by_tokens;
}

// A random text made of allowed tokens only. After `max_tokens` it prefers whatever closes the text; nullopt when that
// does not end it either. Throws when no token is allowed.
inline std::optional<std::string> sample(const Constraint& constraint, std::mt19937& random, int max_tokens = 40,
                                         const TestVocabulary& vocabulary = TestVocabulary::usual()) {
  Driver driver(constraint, vocabulary);
  std::string text;
  for (int step = 0; step < max_tokens + 4000; ++step) {
    const auto allowed = driver.allowed();
    if (allowed.empty()) throw std::logic_error("no token is allowed after: " + text);
    const bool hurry = step >= max_tokens;
    const bool may_end = allowed.back() == vocabulary.eos;
    if (may_end && (hurry || allowed.size() == 1 || random() % 4 == 0)) return text;
    std::vector<int32_t> preferred;
    for (int32_t token : allowed) {
      if (token == vocabulary.eos) continue;
      const std::string& bytes = vocabulary.token_bytes[static_cast<size_t>(token)];
      if (hurry ? bytes == "\"" || bytes == "}" || bytes == "]" : bytes.size() > 1) preferred.push_back(token);
    }
    const bool pick = !preferred.empty() && (hurry || random() % 2 == 0);
    const size_t count = pick ? preferred.size() : allowed.size() - (may_end ? 1 : 0);
    const int32_t token = (pick ? preferred : allowed)[random() % count];
    text += vocabulary.token_bytes[static_cast<size_t>(token)];
    driver.accept(token);
  }
  return std::nullopt;
}

}  // namespace bam::testing
