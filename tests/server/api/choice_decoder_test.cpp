#include "server/api/choice_decoder.h"

#include <gtest/gtest.h>

#include "tests/support/paths.h"

namespace bam {
namespace {

class ChoiceDecoderTest : public ::testing::Test {
 protected:
  // Pushes tokens one by one and returns the whole text and records.
  ChoiceDelta run(const DecodeOptions& options, const std::vector<int32_t>& ids,
                  FinishReason reason = FinishReason::kLength) {
    decoder_ = std::make_unique<ChoiceDecoder>(*tokenizer_, options_ = options, 0);
    ChoiceDelta all;
    const auto collect = [&] {
      ChoiceDelta delta = decoder_->take();
      all.text += delta.text;
      for (TokenRecord& record : delta.tokens) all.tokens.push_back(std::move(record));
    };
    for (const int32_t id : ids) {
      decoder_->push(id, TokenLogprobs{-1.0f, 1, {}});
      collect();
    }
    decoder_->finish(reason);
    collect();
    return all;
  }

  std::vector<int32_t> encode(const std::string& text) { return tokenizer_->encode(text, false); }

  std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::load(testing::fixtures_dir());
  DecodeOptions options_;
  std::unique_ptr<ChoiceDecoder> decoder_;
};

TEST_F(ChoiceDecoderTest, TextAndOffsetsOfEveryToken) {
  const auto ids = encode("the grass is green \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 end");
  const ChoiceDelta all = run({.at_text_start = true}, ids);
  EXPECT_EQ(all.text, "the grass is green \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 end");
  ASSERT_EQ(all.tokens.size(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(all.tokens[i].id, ids[i]);
    if (i > 0) EXPECT_GE(all.tokens[i].text_offset, all.tokens[i - 1].text_offset);
    EXPECT_LE(all.tokens[i].text_offset, count_characters(all.text));
  }
  EXPECT_STREQ(decoder_->finish_reason(), "length");
  EXPECT_EQ(decoder_->num_tokens(), static_cast<int64_t>(ids.size()));
}

TEST_F(ChoiceDecoderTest, WhatWaitsForTheNextTokenIsSaidWhenNoneWillCome) {
  decoder_ = std::make_unique<ChoiceDecoder>(*tokenizer_, options_ = {.at_text_start = true, .stop = {"ends"}}, 0);
  const std::vector<int32_t> ids = encode("the end\xf0\x9f\x98\x80");
  for (size_t i = 0; i + 1 < ids.size(); ++i) decoder_->push(ids[i], std::nullopt);
  const ChoiceDelta before = decoder_->take();
  ASSERT_LT(before.tokens.size(), ids.size() - 1) << "a part of a character waits";
  decoder_->end_text();
  const ChoiceDelta after = decoder_->take();
  EXPECT_EQ(before.tokens.size() + after.tokens.size(), ids.size() - 1);
  EXPECT_EQ(before.text + after.text, "the end\xef\xbf\xbd");
  EXPECT_FALSE(decoder_->finished());
}

TEST_F(ChoiceDecoderTest, PiecesAreAlwaysWholeUtf8) {
  decoder_ = std::make_unique<ChoiceDecoder>(*tokenizer_, options_, 0);
  for (const int32_t id : encode("\xf0\x9f\x98\x80\xe6\xbc\xa2\xe5\xad\x97")) {
    decoder_->push(id, std::nullopt);
    const std::string text = decoder_->take().text;
    EXPECT_TRUE(text.empty() || (static_cast<unsigned char>(text[0]) & 0xc0) != 0x80) << text;
    EXPECT_EQ(text.find("\xef\xbf\xbd"), std::string::npos);
  }
}

TEST_F(ChoiceDecoderTest, ACutOffCharacterAtTheEndBecomesAReplacement) {
  auto ids = encode("\xf0\x9f\x98\x80");
  ids.pop_back();
  const ChoiceDelta all = run({}, ids);
  EXPECT_NE(all.text.find("\xef\xbf\xbd"), std::string::npos);
  EXPECT_EQ(all.tokens.size(), ids.size());
}

TEST_F(ChoiceDecoderTest, StopStringLeaksNothing) {
  const auto ids = encode("the sky is blue and the sun is yellow");
  DecodeOptions options{.at_text_start = true, .stop = {"e and"}};
  const ChoiceDelta all = run(options, ids, FinishReason::kLength);
  EXPECT_EQ(all.text, "the sky is blu");
  EXPECT_TRUE(decoder_->stopped());
  EXPECT_STREQ(decoder_->finish_reason(), "stop");
  EXPECT_EQ(std::get<std::string>(decoder_->stop_reason()), "e and");
  for (const TokenRecord& record : all.tokens) EXPECT_LT(record.text_offset, count_characters(all.text));
  EXPECT_LT(decoder_->num_tokens(), static_cast<int64_t>(ids.size())) << "tokens after the stop are not counted";
  options.include_stop_str = true;
  EXPECT_EQ(run(options, ids).text, "the sky is blue and");
}

TEST_F(ChoiceDecoderTest, AnUnfinishedStopStringComesOutAtTheEnd) {
  const ChoiceDelta all = run({.at_text_start = true, .stop = {"blue!"}}, encode("the sky is blue"));
  EXPECT_EQ(all.text, "the sky is blue");
  EXPECT_FALSE(decoder_->stopped());
  EXPECT_EQ(all.tokens.size(), encode("the sky is blue").size());
}

TEST_F(ChoiceDecoderTest, StopTokensAreCountedButHaveNoText) {
  auto ids = encode("the sky");
  const int32_t extra = encode("blue").back();
  ids.push_back(extra);
  DecodeOptions options{.at_text_start = true, .stop_ids = {extra}};
  const ChoiceDelta all = run(options, ids, FinishReason::kStop);
  EXPECT_EQ(all.text, "the sky");
  EXPECT_EQ(all.tokens.size(), ids.size()) << "scoring clients count on one record per token";
  EXPECT_EQ(std::get<int32_t>(decoder_->stop_reason()), extra);
  options.eos_ids = {extra};
  run(options, ids, FinishReason::kStop);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(decoder_->stop_reason())) << "EOS is no stop reason";
}

TEST_F(ChoiceDecoderTest, FinishReasons) {
  run({}, encode("x"), FinishReason::kStop);
  EXPECT_STREQ(decoder_->finish_reason(), "stop");
  run({}, encode("x"), FinishReason::kCancelled);
  EXPECT_STREQ(decoder_->finish_reason(), "abort");
}

TEST_F(ChoiceDecoderTest, ByteTokensAreSpelledAsBytes) {
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    const std::string text = token_text(*tokenizer_, id);
    if (!tokenizer_->is_special(id) && tokenizer_->token_bytes(id) == "\xe2") {
      EXPECT_EQ(text, "bytes:\\xe2");
      return;
    }
  }
  FAIL() << "the fixture tokenizer has no byte pieces";
}

}  // namespace
}  // namespace bam
