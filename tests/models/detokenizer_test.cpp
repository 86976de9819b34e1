#include <random>

#include <gtest/gtest.h>

#include "base/utf8.h"
#include "models/tokenizer.h"
#include "tests/support/tokenizer_subject.h"

namespace bam {
namespace {

using testing::compare_decoders;
using testing::fixture_model;
using testing::Ids;
using testing::load_tokenizer;
using testing::stream;
using testing::TokenizerSubject;
using testing::train_tokenizer;

TEST(Tokenizer, DecodesLikeTheLibrary) {
  compare_decoders(TokenizerSubject(fixture_model()), 3);
  // Removes all leading spaces.
  compare_decoders(TokenizerSubject(train_tokenizer("--model_type=bpe --vocab_size=300")), 4);
  compare_decoders(TokenizerSubject(train_tokenizer("--model_type=unigram --vocab_size=250 --add_dummy_prefix=false")),
                   5);
  compare_decoders(TokenizerSubject(train_tokenizer(
                       "--model_type=bpe --vocab_size=300 --add_dummy_prefix=false --remove_extra_whitespaces=false "
                       "--normalization_rule_name=identity --unk_surface=?")),
                   6);
}

TEST(Tokenizer, StreamEqualsDecodeForEverySequence) {
  const auto tokenizer = load_tokenizer(fixture_model());
  std::mt19937 rng(5);
  for (int i = 0; i < 3000; ++i) {
    Ids ids;
    for (uint32_t n = rng() % 12; n > 0; --n) {
      // Mostly byte pieces, which build, break and interrupt characters; some ids that do not exist.
      ids.push_back(rng() % 4 != 0 ? static_cast<int32_t>(7 + rng() % 256) : static_cast<int32_t>(rng() % 530) - 5);
    }
    for (const bool skip_special : {true, false}) {
      const std::string text = tokenizer->decode(ids, skip_special);
      ASSERT_TRUE(is_valid_utf8(text));
      ASSERT_EQ(stream(*tokenizer, ids, true, skip_special), text);
    }
  }
}

TEST(StreamDetokenizer, HoldsBackPartsOfCharacters) {
  const TokenizerSubject subject(fixture_model());
  StreamDetokenizer detokenizer(*subject.tokenizer, true);
  const auto push = [&](const char* piece) { return detokenizer.push(subject.library.PieceToId(piece)); };
  EXPECT_EQ(push("<0xF0>"), "");
  EXPECT_EQ(push("<0x9F>"), "");
  EXPECT_EQ(push("<0x98>"), "");
  EXPECT_EQ(push("<0x80>"), "\xf0\x9f\x98\x80");
  EXPECT_EQ(push("<0xE2>"), "");
  EXPECT_EQ(push("<0x82>"), "");
  EXPECT_EQ(push("a"),
            "\xef\xbf\xbd"
            "a")
      << "the unfinished character is given up";
  EXPECT_EQ(push("<0x80>"), "\xef\xbf\xbd");
  EXPECT_EQ(push("<0xC3>"), "");
  EXPECT_EQ(push("</s>"), "\xef\xbf\xbd");
  EXPECT_EQ(push("<0xC3>"), "");
  EXPECT_EQ(detokenizer.flush(), "\xef\xbf\xbd");
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(StreamDetokenizer, LeadingSpace) {
  const TokenizerSubject subject(fixture_model());
  const std::string space = "\xe2\x96\x81";
  const Ids ids = subject.pieces({space + "the", space + "a"});
  EXPECT_EQ(stream(*subject.tokenizer, ids, true), "the a");
  EXPECT_EQ(stream(*subject.tokenizer, ids, false), " the a");
  EXPECT_EQ(stream(*subject.tokenizer, subject.pieces({space, space + "a"}), true), " a");
  EXPECT_EQ(stream(*subject.tokenizer, subject.pieces({"<s>", space + "a"}), true), "a");
  EXPECT_EQ(stream(*subject.tokenizer, subject.pieces({"<0x0A>", space + "a"}), true), "\n a");
}

// Text split between prompt and continuation: decoding both parts gives the text back.
TEST(StreamDetokenizer, ContinuesAPrompt) {
  const auto tokenizer = load_tokenizer(fixture_model());
  const std::string text = "The keeper \xf0\x9f\x98\x80 lived in  1908.";
  const Ids ids = tokenizer->encode(text, true);
  for (size_t cut = 1; cut < ids.size(); ++cut) {
    const std::string head = stream(*tokenizer, Ids(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(cut)), true);
    const std::string tail = stream(*tokenizer, Ids(ids.begin() + static_cast<ptrdiff_t>(cut), ids.end()), cut == 1);
    if (head.find("\xef\xbf\xbd") != std::string::npos) continue;  // cut inside the emoji
    EXPECT_EQ(head + tail, text) << cut;
  }
}

}  // namespace
}  // namespace bam
