// A tokenizer side by side with the library's own view of the same model.
#pragma once

#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "base/utf8.h"
#include "models/tokenizer.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace bam::testing {

using Ids = std::vector<int32_t>;

inline std::string train_tokenizer(const std::string& options) {
  const std::string input = "--input=" + (fixtures_dir() / "tokenizer_corpus.txt").string();
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(input + " --num_threads=1 --minloglevel=2 " + options,
                                                                 nullptr, &model);
  if (!status.ok()) throw std::runtime_error(status.ToString());
  return model;
}

// The options of tests/fixtures/README.md.
inline constexpr const char* kFixtureOptions =
    "--model_type=bpe --vocab_size=512 --byte_fallback=true --split_digits=true --normalization_rule_name=identity "
    "--remove_extra_whitespaces=false --allow_whitespace_only_pieces=true --character_coverage=1.0 "
    "--control_symbols=[INST],[/INST],[TOOL] --user_defined_symbols=[REF]";

inline std::unique_ptr<Tokenizer> load_tokenizer(const std::string& model, const std::string& config = "") {
  TempDir dir;
  write_file(dir / "tokenizer.model", model);
  if (!config.empty()) write_file(dir / "tokenizer_config.json", config);
  return Tokenizer::load(dir.path());
}

inline std::string fixture_model() { return read_file(fixtures_dir() / "tokenizer.model"); }

// One tokenizer together with the library's own view of the same model.
struct TokenizerSubject {
  explicit TokenizerSubject(const std::string& model) : tokenizer(load_tokenizer(model)) {
    const auto status = library.LoadFromSerializedProto(model);
    if (!status.ok()) throw std::runtime_error(status.ToString());
  }
  Ids library_encode(const std::string& text) const {
    std::vector<int> ids;
    const auto status = library.Encode(text, &ids);
    if (!status.ok()) throw std::runtime_error(status.ToString());
    return {ids.begin(), ids.end()};
  }
  std::string library_decode(const Ids& ids) const {
    std::string text;
    const auto status = library.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    if (!status.ok()) throw std::runtime_error(status.ToString());
    return text;
  }
  Ids pieces(const std::vector<std::string>& names) const {
    Ids ids;
    for (const std::string& name : names) {
      ids.push_back(library.PieceToId(name));
      EXPECT_EQ(tokenizer->piece(ids.back()), name) << "not in the vocabulary";
    }
    return ids;
  }

  std::unique_ptr<Tokenizer> tokenizer;
  sentencepiece::SentencePieceProcessor library;
};

inline std::string stream(const Tokenizer& tokenizer, const Ids& ids, bool at_start = true, bool skip_special = true) {
  StreamDetokenizer detokenizer(tokenizer, at_start, skip_special);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = detokenizer.push(id);
    EXPECT_TRUE(is_valid_utf8(part));
    text += part;
  }
  return text + detokenizer.flush();
}

// Every class of byte sequence.
inline const std::vector<std::string>& sample_texts() {
  static const std::vector<std::string> all = {
      "", "a", " ", "  ", "   leading", "trailing   ", "The pass key is 71432.", "two  spaces   three", "\n", "\n\n\n",
      "line\nline\r\nline\ttab", "    indented(code);\n        more();\n", "1234567890", "3.14159e-10",
      "caf\xc3\xa9 na\xc3\xafve \xc3\x9f \xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82",  // 2 bytes
      "\xe4\xb8\xad\xe6\x96\x87 \xe2\x82\xac \xe0\xa4\xb9\xe0\xa4\xbf\xe0\xa4\x82",          // 3 bytes
      "\xf0\x9f\x98\x80 \xf0\x9d\x94\x98 \xf4\x8f\xbf\xbf",                                  // 4 bytes
      "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7\xe2\x80\x8d\xf0\x9f\x91\xa6",  // ZWJ
                                                                                                               // family
      "e\xcc\x81 combining \xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d right to left", std::string("nul\0inside\0", 11),
      "\x01\x02\x7f control",
      "\xef\xbb\xbf"
      "byte order mark",
      "\xef\xbf\xbd replacement already", "<s>not special</s> [INST] plain [/INST]", "[REF]", "a[REF]b [REF] c",
      "<0x41> is text", "<unk>", std::string(300, 'a'), std::string(300, ' '), std::string(5000, 'x') + " end"};
  return all;
}

inline std::string random_text(std::mt19937& rng, size_t length) {
  static const std::vector<std::string> kParts = {"the ",
                                                  " ",
                                                  "a",
                                                  "e",
                                                  "1",
                                                  "\n",
                                                  "lighthouse",
                                                  "\xc3\xa9",
                                                  "[REF]",
                                                  "[INST]",
                                                  "\xe4\xb8\xad",
                                                  "\xf0\x9f\x98\x80",
                                                  "  ",
                                                  ".",
                                                  "ing",
                                                  "Th",
                                                  "\"",
                                                  "\xe2\x96\x81",
                                                  "\t",
                                                  "zq"};
  std::string text;
  while (text.size() < length) text += kParts[rng() % kParts.size()];
  return text;
}

// Wherever the library's own decoder can show valid text, ours shows the same; for sequences that no text encodes to as
// well.
inline void compare_decoders(const TokenizerSubject& subject, uint32_t seed) {
  std::mt19937 rng(seed);
  const int32_t vocab = subject.tokenizer->vocab_size();
  const Ids spaces = {subject.library.PieceToId("\xe2\x96\x81"), subject.library.PieceToId("\xe2\x96\x81the"), 1, 2, 0};
  for (int i = 0; i < 3000; ++i) {
    Ids ids;
    for (uint32_t n = rng() % 8; n > 0; --n) {
      int32_t id =
          rng() % 3 == 0 ? spaces[rng() % spaces.size()] : static_cast<int32_t>(rng() % static_cast<uint32_t>(vocab));
      // Broken bytes are shown differently (one U+FFFD per byte there), so here only whole ones.
      while (subject.library.IsByte(id) && static_cast<uint8_t>(subject.tokenizer->token_bytes(id)[0]) >= 0x80) ++id;
      ids.push_back(id % vocab);
    }
    const std::string ours = subject.tokenizer->decode(ids);
    ASSERT_EQ(ours, subject.library_decode(ids));
    ASSERT_EQ(stream(*subject.tokenizer, ids), ours);
  }
}

}  // namespace bam::testing
