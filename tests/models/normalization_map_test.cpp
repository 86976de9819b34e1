#include "models/normalization_map.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"
#include "tests/support/tokenizer_subject.h"

namespace bam {
namespace {

using testing::fixture_model;
using testing::kFixtureOptions;
using testing::load_tokenizer;
using testing::random_text;
using testing::TokenizerSubject;
using testing::train_tokenizer;

// A map made by hand. Nodes are named by their base; the root's is 1.
class Map {
 public:
  // Units that are not used have a label that no byte equals, NUL neither.
  explicit Map(size_t units = 512) : units_(units, 0x80000000u) { units_[0] = offset_bits(1); }
  // From node `from`, `byte` leads to node `to`; value >= 0: the rule that ends there.
  Map& edge(uint32_t from, uint8_t byte, uint32_t to, int64_t value = -1) {
    const uint32_t at = from ^ byte;
    units_.at(at) = byte | (value >= 0 ? 0x100u : 0u) | offset_bits(at ^ to);
    if (value >= 0 && to < units_.size()) units_.at(to) = static_cast<uint32_t>(value) | 0x80000000u;
    return *this;
  }
  Map& replacements(std::string text) {
    replacements_ = std::move(text);
    return *this;
  }
  std::string bytes() const {
    const auto size = static_cast<uint32_t>(units_.size() * 4);
    std::string out(4 + size, '\0');
    std::memcpy(out.data(), &size, 4);
    std::memcpy(out.data() + 4, units_.data(), size);
    return out + replacements_;
  }

 private:
  static uint32_t offset_bits(uint32_t offset) {
    return offset < 1u << 21 ? offset << 10 : (offset >> 8) << 10 | 0x200u;
  }
  std::vector<uint32_t> units_;
  std::string replacements_ = std::string("b\0", 2);
};

// The fixture with another normalisation map: joining serialised messages merges them, later values win.
std::string model_with(const std::string& map) {
  const auto field = [](char tag, const std::string& content) {
    std::string out(1, tag);
    for (size_t n = content.size();; n >>= 7) {
      out.push_back(static_cast<char>((n & 0x7f) | (n > 0x7f ? 0x80 : 0)));
      if (n <= 0x7f) break;
    }
    return out + content;
  };
  return fixture_model() + field('\x1a', field('\x12', map));
}

TEST(NormalizationMap, AHandMadeOneWorks) {
  const std::string map = Map().edge(1, 'a', 0x90, 0).bytes();
  EXPECT_EQ(normalization_map_fault(map), "");
  const auto tokenizer = load_tokenizer(model_with(map));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a cat", false)), "b cbt");
}

TEST(NormalizationMap, WhatTheLibraryCompilesIsAccepted) {
  for (const char* rule : {"nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"}) {
    const TokenizerSubject subject(
        train_tokenizer(std::string(kFixtureOptions) + " --normalization_rule_name=" + rule));
    std::mt19937 rng(3);
    for (int i = 0; i < 20; ++i) {
      const std::string text = random_text(rng, 200);
      EXPECT_EQ(subject.tokenizer->encode(text, false), subject.library_encode(text));
    }
  }
}

TEST(NormalizationMap, WhatCouldBeReadOutOfBoundsIsRefused) {
  const auto refused = [](const std::string& map, const char* why) {
    EXPECT_EQ(normalization_map_fault(map), why);
    try {
      load_tokenizer(model_with(map));
      ADD_FAILURE() << "loaded: " << why;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("tokenizer.model: the normalisation map is broken"), std::string::npos)
          << error.what();
    }
  };
  refused("abc", "it is too short");
  refused(std::string("\x08\0\0\0abcd", 8), "its trie has an impossible size");
  refused(std::string("\x03\0\0\0abcd\0", 9), "its trie has an impossible size");
  refused(std::string("\0\0\0\0\0", 5), "its trie is empty");
  refused(Map().edge(1, 'a', 0x90, 0).replacements("b").bytes(), "its last replacement has no end");
  refused(Map(100).bytes(), "its trie points beyond its end");
  refused(Map().edge(1, 'a', 0x90).edge(0x90, 'b', 5000).bytes(), "its trie points beyond its end");
  refused(Map().edge(1, 'a', 0x1fffff00, 0).bytes(), "its trie points beyond its end");
  refused(Map().edge(1, 'a', 0x90, 2).bytes(), "a rule's replacement lies beyond its end");
  refused(Map().edge(1, 'a', 0x90, 0).replacements(std::string("\xc3\0", 2)).bytes(),
          "a rule's replacement is not UTF-8");
  refused(Map().edge(1, 'a', 0x90).edge(0x90, 'b', 1).bytes(), "its trie runs in circles");
  Map chain(64 * 256);
  for (uint32_t i = 0; i < 33; ++i) chain.edge(i == 0 ? 1 : i * 256, 'a', (i + 1) * 256, 0);
  refused(chain.bytes(), "too many of its rules are beginnings of each other");
}

// Whatever passes can be walked by the library with any text; run under a sanitizer this is a small fuzzer.
TEST(NormalizationMap, AlteredMapsAreRefusedOrHarmless) {
  const std::string good = Map().edge(1, 'a', 0x90, 0).edge(0x90, 'b', 0x1a0, 0).edge(0x1a0, 'c', 0x170).bytes();
  std::mt19937 rng(5);
  int accepted = 0;
  for (int i = 0; i < 300; ++i) {
    std::string map = good;
    for (int n = 0; n < 1 + i % 3; ++n) map[rng() % map.size()] = static_cast<char>(rng());
    if (!normalization_map_fault(map).empty()) continue;
    ++accepted;
    const auto tokenizer = load_tokenizer(model_with(map));
    for (const char* text : {"abcabc", "aab abc\xff", "\xe2\x96\x81"}) tokenizer->encode(text, false);
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace bam
