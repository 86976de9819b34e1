// The tokenizer of the paper's checkpoints, where its file is at hand.
#include <chrono>
#include <filesystem>
#include <random>

#include <gtest/gtest.h>

#include "models/tokenizer.h"
#include "tests/support/tokenizer_subject.h"

namespace bam {
namespace {

using testing::compare_decoders;
using testing::Ids;
using testing::random_text;
using testing::read_file;
using testing::sample_texts;
using testing::shared_data_dir;
using testing::stream;
using testing::TokenizerSubject;

class MistralTokenizer : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto path = shared_data_dir() / "mistral-7b-v0.3.tokenizer.model";
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "the Mistral v0.3 tokenizer is not at " << path;
    subject_ = std::make_unique<TokenizerSubject>(read_file(path));
  }
  std::unique_ptr<TokenizerSubject> subject_;
};

TEST_F(MistralTokenizer, RoundTripsAndAgreesWithTheLibrary) {
  const Tokenizer& tokenizer = *subject_->tokenizer;
  EXPECT_EQ(tokenizer.vocab_size(), 32768);
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  for (const std::string& text : sample_texts()) {
    const Ids ids = tokenizer.encode(text, false);
    EXPECT_EQ(ids, subject_->library_encode(text)) << text;
    EXPECT_EQ(tokenizer.decode(ids), text);
    EXPECT_EQ(stream(tokenizer, ids), text);
  }
  std::mt19937 rng(17);
  for (int i = 0; i < 40; ++i) {
    const std::string text = random_text(rng, 2000);
    ASSERT_EQ(tokenizer.encode(text, false), subject_->library_encode(text));
  }
  compare_decoders(*subject_, 19);
}

TEST_F(MistralTokenizer, PasskeyDigitsAndControls) {
  const Tokenizer& tokenizer = *subject_->tokenizer;
  const Ids ids = tokenizer.encode("The pass key is 71432", false);
  ASSERT_GE(ids.size(), 5u);
  std::string digits;
  for (size_t i = ids.size() - 5; i < ids.size(); ++i) digits += tokenizer.piece(ids[i]);
  EXPECT_EQ(digits, "71432") << "each digit is its own token";
  EXPECT_EQ(tokenizer.encode("<s>[INST] Hi[/INST]", false, true),
            subject_->pieces({"<s>", "[INST]", "\xe2\x96\x81Hi", "[/INST]"}));
  EXPECT_EQ(tokenizer.token_bytes(771), std::string(1, '\0'));
}

TEST_F(MistralTokenizer, LongTextIsEncodedExactlyAndFaster) {
  const auto path = shared_data_dir() / "wikitext2_test.txt";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no text at " << path;
  const std::string text = read_file(path);
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto start = now();
  const Ids ids = subject_->tokenizer->encode(text, false);
  const auto middle = now();
  EXPECT_EQ(ids, subject_->library_encode(text));
  // Cutting the text makes it about twenty times faster; less than that much is left for a busy machine.
  EXPECT_LT((middle - start) * 2, now() - middle);
  EXPECT_EQ(subject_->tokenizer->decode(ids), text);
}

}  // namespace
}  // namespace bam
