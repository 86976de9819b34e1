#include "app/client/passkey_prompt.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "app/client/retrieval_task.h"
#include "base/error.h"
#include "models/tokenizer.h"
#include "tests/support/paths.h"

namespace bam::client {
namespace {

// A real sentencepiece model: digits are single tokens, pieces carry their own leading space.
const Tokenizer& fixture_tokenizer() {
  static const auto tokenizer = Tokenizer::load(testing::fixtures_dir());
  return *tokenizer;
}

TokenIds encode_fixture(std::string_view text) { return fixture_tokenizer().encode(text, false); }

// Byte-level: one id per character, a space is a token of its own.
TokenIds encode_bytes(std::string_view text) {
  TokenIds ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string bytes_to_text(const TokenIds& ids) {
  std::string text;
  for (const int32_t id : ids) text.push_back(static_cast<char>(id));
  return text;
}

bool contains_at(const TokenIds& ids, int64_t at, const TokenIds& piece) {
  return at >= 0 && at + static_cast<int64_t>(piece.size()) <= static_cast<int64_t>(ids.size()) &&
         std::equal(piece.begin(), piece.end(), ids.begin() + at);
}

const std::string kText =
    "It was a bright cold day in spring. The clocks were striking noon! A man walked by, quickly.\n"
    "Nobody looked up? The price was 3.14 in total. Then it rained.\n";

TEST(PieceEncoder, FindsOutWhoAddsSpaces) {
  EXPECT_FALSE(PieceEncoder(encode_fixture).adds_space());
  const PieceEncoder bytes(encode_bytes);
  EXPECT_TRUE(bytes.adds_space());
  EXPECT_EQ(bytes_to_text(bytes.next("a")), " a");
  EXPECT_EQ(bytes_to_text(bytes.first("a")), "a");
}

TEST(PasskeyPrompt, ExactLengthAndPaperWording) {
  const PieceEncoder encoder(encode_fixture);
  const TokenIds task = encoder.first(PasskeyWording::kTask), question = encoder.next(PasskeyWording::kQuestion);
  const TokenIds filler = encoder.next(PasskeyWording::kFiller);
  for (const int64_t length : {300, 301, 512, 1000, 4096, 65536}) {
    for (const double depth : {0.0, 0.25, 0.5, 0.999, 1.0}) {
      const std::string key = make_passkey(1, length, depth, 0);
      const PasskeyPrompt prompt = make_passkey_prompt(encoder, length, depth, key);
      ASSERT_EQ(static_cast<int64_t>(prompt.ids.size()), length);
      const TokenIds line = encoder.next("The pass key is " + key + ". Remember it. " + key + " is the pass key.");
      EXPECT_TRUE(contains_at(prompt.ids, 0, task));
      EXPECT_TRUE(contains_at(prompt.ids, prompt.line_at, line));
      EXPECT_TRUE(contains_at(prompt.ids, length - static_cast<int64_t>(question.size()), question));
      // The line sits at the filler boundary nearest to the depth.
      const auto filler_tokens =
          static_cast<double>(length) - static_cast<double>(task.size() + line.size() + question.size());
      const double at = static_cast<double>(prompt.line_at) - static_cast<double>(task.size());
      EXPECT_LE(std::abs(at - depth * filler_tokens), static_cast<double>(filler.size()) / 2 + 1);
      // What stands before the question is a whole filler, or the line itself.
      const int64_t before = length - static_cast<int64_t>(question.size() + filler.size());
      if (depth == 1) {
        EXPECT_EQ(prompt.line_at + static_cast<int64_t>(line.size() + question.size()), length);
      } else if (length >= 512 && depth < 0.9) {
        EXPECT_TRUE(contains_at(prompt.ids, before, filler));
      }
      EXPECT_GE(prompt.max_tokens, 6);
    }
  }
}

TEST(PasskeyPrompt, ReadsAsTextWithByteLevelTokens) {
  const PieceEncoder encoder(encode_bytes);
  const PasskeyPrompt prompt = make_passkey_prompt(encoder, 900, 0.5, "12345");
  const std::string text = bytes_to_text(prompt.ids);
  EXPECT_EQ(text.size(), 900u);
  EXPECT_NE(text.find(". The pass key is 12345. Remember it. 12345 is the pass key. The grass"), text.npos) << text;
  EXPECT_TRUE(text.ends_with("There and back again. What is the pass key? The pass key is"));
}

TEST(PasskeyPrompt, TooShortIsAnErrorThatSaysHowLong) {
  const PieceEncoder encoder(encode_fixture);
  try {
    make_passkey_prompt(encoder, 20, 0.5, "12345");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("20 tokens"), std::string::npos);
  }
}

TEST(PasskeyPrompt, KeysAreFixedByTheCell) {
  std::set<std::string> keys;
  for (int repeat = 0; repeat < 200; ++repeat) {
    const std::string key = make_passkey(5, 1024, 0.5, repeat);
    EXPECT_EQ(key.size(), 5u);
    EXPECT_NE(key[0], '0');
    EXPECT_EQ(key, make_passkey(5, 1024, 0.5, repeat));
    keys.insert(key);
  }
  EXPECT_GT(keys.size(), 190u);
  EXPECT_NE(make_passkey(5, 1024, 0.5, 0), make_passkey(6, 1024, 0.5, 0));
  EXPECT_EQ(make_passkey(5, 1024, 0.5, 0, 9).size(), 9u);
}

TEST(PasskeyPrompt, HitsAndMisses) {
  EXPECT_TRUE(is_passkey_hit(" 12345. Remember", "12345"));
  EXPECT_TRUE(is_passkey_hit("1234567", "12345"));  // the first five digits decide
  EXPECT_TRUE(is_passkey_hit("The pass key is 12345", "12345"));
  EXPECT_FALSE(is_passkey_hit("1234", "12345"));
  EXPECT_FALSE(is_passkey_hit("54321 12345", "12345"));
  EXPECT_FALSE(is_passkey_hit("", "12345"));
  EXPECT_FALSE(is_passkey_hit("none", "12345"));
}

TEST(AssemblePrompt, InsertsKeepOrderAndCutIsAtTheStart) {
  PromptParts parts;
  parts.head = {1};
  parts.inserts = {{{100}, 1.0}, {{200}, 0.0}, {{300}, 0.0}, {{400}, 0.5}};
  parts.tail = {9};
  const std::vector<TokenIds> units = {{11, 12, 13}, {21, 22, 23}};
  const AssembledPrompt prompt = assemble_prompt(parts, units, 6 + 8);
  EXPECT_EQ(prompt.ids, (TokenIds{1, 200, 300, 12, 13, 21, 22, 23, 400, 11, 12, 13, 100, 9}));
  EXPECT_EQ(prompt.insert_at, (std::vector<int64_t>{12, 1, 2, 8}));
  // No room for filler at all.
  EXPECT_EQ(assemble_prompt(parts, units, 6).ids, (TokenIds{1, 100, 200, 300, 400, 9}));
  EXPECT_THROW(assemble_prompt(parts, units, 5), Error);
  EXPECT_THROW(assemble_prompt(parts, {}, 10), Error);
}

TEST(AssemblePrompt, ShortUnitsBeforeALongOne) {
  // The cut is larger than the first units: they go whole, the next one in part.
  const std::vector<TokenIds> units = {{1}, {2, 3}, {4, 5, 6, 7, 8, 9}};
  for (int64_t filler = 0; filler <= 40; ++filler) {
    for (const double depth : {0.0, 0.3, 1.0}) {
      PromptParts parts;
      parts.head = {100};
      parts.inserts = {{{200}, depth}};
      parts.tail = {300};
      const AssembledPrompt prompt = assemble_prompt(parts, units, 3 + filler);
      ASSERT_EQ(prompt.ids.size(), static_cast<size_t>(3 + filler));
      ASSERT_EQ(prompt.ids[static_cast<size_t>(prompt.insert_at[0])], 200);
      EXPECT_LE(std::abs(static_cast<double>(prompt.insert_at[0] - 1) - depth * static_cast<double>(filler)), 3.0);
      // Without head, insert and tail the units follow each other, up to the end of one.
      TokenIds rest(prompt.ids.begin() + 1, prompt.ids.end() - 1);
      rest.erase(rest.begin() + prompt.insert_at[0] - 1);
      for (size_t i = 1; i < rest.size(); ++i) EXPECT_EQ(rest[i], rest[i - 1] % 9 + 1);
      if (filler > 0) EXPECT_TRUE(rest.back() == 1 || rest.back() == 3 || rest.back() == 9);
    }
  }
}

TEST(SplitSentences, Boundaries) {
  EXPECT_EQ(split_sentences(kText),
            (std::vector<std::string>{"It was a bright cold day in spring.", "The clocks were striking noon!",
                                      "A man walked by, quickly.", "Nobody looked up?", "The price was 3.14 in total.",
                                      "Then it rained."}));
  EXPECT_TRUE(split_sentences(" \n\n").empty());
}

TEST(WordVocabulary, RoundTrip) {
  WordVocabulary words;
  const TokenIds ids = words.encode("the  sky is\nthe sky");
  EXPECT_EQ(ids.size(), 5u);
  EXPECT_EQ(ids[0], ids[3]);
  EXPECT_EQ(words.decode(ids), "the sky is the sky");
}

class RetrievalTask : public ::testing::TestWithParam<std::string> {};

TEST_P(RetrievalTask, ExactLengthAnswersPresentAndScored) {
  TaskConfig config;
  config.task = GetParam();
  config.seed = 3;
  const TaskInfo& info = *find_task(config.task);
  if (info.haystack == HaystackKind::kText) config.filler_text = kText;
  TaskBuilder builder(config, encode_bytes);
  for (const int64_t length : {3000, 9001}) {
    const TaskPrompt prompt = builder.build(length, 0.3, 1);
    ASSERT_EQ(static_cast<int64_t>(prompt.ids.size()), length);
    ASSERT_EQ(static_cast<int>(prompt.answers.size()), info.num_queries * info.num_values);
    const std::string text = bytes_to_text(prompt.ids);
    for (size_t i = 0; i < prompt.answers.size(); ++i) {
      const std::string& answer = prompt.answers[i];
      const size_t at = text.find(answer);
      ASSERT_NE(at, text.npos);
      EXPECT_GT(static_cast<int64_t>(at), prompt.needle_at[i]);
      EXPECT_LT(static_cast<int64_t>(at), prompt.needle_at[i] + 120);
    }
    EXPECT_NEAR(static_cast<double>(prompt.needle_at[0]) / static_cast<double>(length), 0.3, 0.12);
    std::string all;
    for (const std::string& answer : prompt.answers) all += " " + answer + ",";
    EXPECT_DOUBLE_EQ(builder.score(prompt.answers, all), 1);
    EXPECT_DOUBLE_EQ(builder.score(prompt.answers, "no idea"), 0);
    // Deterministic, whatever was built in between.
    builder.build(length + 500, 0.9, 0);
    EXPECT_EQ(builder.build(length, 0.3, 1).ids, prompt.ids);
    EXPECT_NE(builder.build(length, 0.3, 2).answers, prompt.answers);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RetrievalTask,
                         ::testing::Values("passkey", "niah_single_1", "niah_single_2", "niah_single_3",
                                           "niah_multikey_1", "niah_multikey_2", "niah_multikey_3", "niah_multivalue",
                                           "niah_multiquery"));

TEST(RetrievalTaskRules, PartialScoreAndDistractors) {
  TaskConfig config;
  config.task = "niah_multivalue";
  config.filler_text = kText;
  TaskBuilder builder(config, encode_bytes);
  const TaskPrompt prompt = builder.build(4000, 0.5, 0);
  EXPECT_DOUBLE_EQ(builder.score(prompt.answers, prompt.answers[0] + " and " + prompt.answers[2]), 0.5);

  TaskConfig noisy;
  noisy.distractors_per_1k = 5;
  TaskBuilder with_noise(noisy, encode_bytes);
  const TaskPrompt noise = with_noise.build(4000, 0.5, 0);
  ASSERT_EQ(noise.ids.size(), 4000u);
  const std::string text = bytes_to_text(noise.ids);
  int sentences = 0;
  for (const char* kind : {" code is ", " number is ", " count is ", " price is ", " score is "}) {
    for (size_t at = 0; (at = text.find(kind, at)) != text.npos; ++at) ++sentences;
  }
  EXPECT_EQ(sentences, 20);
}

TEST(RetrievalTaskRules, MultiKeyAsksForOneOfFour) {
  TaskConfig config;
  config.task = "niah_multikey";
  config.filler_text = kText;
  TaskBuilder builder(config, encode_bytes);
  const std::string text = bytes_to_text(builder.build(4000, 0.5, 0).ids);
  int needles = 0;
  for (size_t at = 0; (at = text.find("A special magic number for ", at)) != text.npos; ++at) ++needles;
  EXPECT_EQ(needles, 4);
}

TEST(RetrievalTaskRules, WrongCombinationsAreNamed) {
  TaskConfig config;
  config.task = "niah_nothing";
  EXPECT_THROW(check_task(config), UsageError);
  config.task = "niah_single_2";
  EXPECT_THROW(check_task(config), UsageError);  // no text
  config.task = "niah_multikey_2";
  config.filler_text = kText;
  EXPECT_THROW(check_task(config), UsageError);  // makes its own haystack
  TaskConfig passkey;
  TaskBuilder builder(passkey, encode_bytes);
  EXPECT_THROW(builder.build(100, 0.5, 0), Error);
}

}  // namespace
}  // namespace bam::client
