#include "models/tokenizer.h"

#include <random>

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include "base/error.h"
#include "base/utf8.h"
#include "tests/support/tokenizer_subject.h"

namespace bam {
namespace {

using testing::fixture_model;
using testing::Ids;
using testing::kFixtureOptions;
using testing::load_tokenizer;
using testing::random_text;
using testing::sample_texts;
using testing::stream;
using testing::TempDir;
using testing::TokenizerSubject;
using testing::train_tokenizer;

TEST(Tokenizer, FixtureIsWhatItsReadmeSays) {
  sentencepiece::SentencePieceProcessor committed, trained;
  ASSERT_TRUE(committed.LoadFromSerializedProto(fixture_model()).ok());
  ASSERT_TRUE(trained.LoadFromSerializedProto(train_tokenizer(kFixtureOptions)).ok());
  ASSERT_EQ(committed.GetPieceSize(), trained.GetPieceSize());
  for (int id = 0; id < committed.GetPieceSize(); ++id) EXPECT_EQ(committed.IdToPiece(id), trained.IdToPiece(id));
}

TEST(Tokenizer, EncodesLikeTheLibrary) {
  const TokenizerSubject subject(fixture_model());
  for (const std::string& text : sample_texts())
    EXPECT_EQ(subject.tokenizer->encode(text, false), subject.library_encode(text)) << text;
  // Long texts take the path that cuts and remembers parts.
  std::mt19937 rng(7);
  for (int i = 0; i < 60; ++i) {
    const std::string text = random_text(rng, 1 + rng() % 3000);
    ASSERT_EQ(subject.tokenizer->encode(text, false), subject.library_encode(text)) << text;
  }
}

TEST(Tokenizer, RoundTripsEveryText) {
  const TokenizerSubject subject(fixture_model());
  for (const std::string& text : sample_texts()) {
    const Ids ids = subject.tokenizer->encode(text, false);
    EXPECT_EQ(subject.tokenizer->decode(ids), text);
    EXPECT_EQ(stream(*subject.tokenizer, ids), text);
  }
}

TEST(Tokenizer, InvalidBytesBecomeReplacementCharacters) {
  const TokenizerSubject subject(fixture_model());
  for (const std::string text : {"\xff",
                                 "a\x80"
                                 "b",
                                 "\xc3", "\xe2\x82", "ok \xf0\x9f\x98", "\xed\xa0\x80", "\xc0\x80"}) {
    EXPECT_EQ(subject.tokenizer->decode(subject.tokenizer->encode(text, false)), sanitize_utf8(text));
  }
  std::mt19937 rng(11);
  for (int i = 0; i < 200; ++i) {
    std::string text(rng() % 700, '\0');
    for (char& byte : text) byte = static_cast<char>(rng());
    // U+2581 is sentencepiece's own sign for a space; random bytes hardly ever spell it.
    if (text.find("\xe2\x96\x81") != std::string::npos) continue;
    ASSERT_EQ(subject.tokenizer->decode(subject.tokenizer->encode(text, false)), sanitize_utf8(text));
  }
}

TEST(Tokenizer, DigitsStandAlone) {
  const TokenizerSubject subject(fixture_model());
  const Ids ids = subject.tokenizer->encode("71432", false);
  EXPECT_EQ(ids, subject.pieces({"\xe2\x96\x81", "7", "1", "4", "3", "2"}));
}

TEST(Tokenizer, BosAndEosRules) {
  const auto ids = [](const std::string& config) { return load_tokenizer(fixture_model(), config)->encode("a", true); };
  const TokenizerSubject subject(fixture_model());
  const int32_t a = subject.library.PieceToId(
      "\xe2\x96\x81"
      "a");
  EXPECT_EQ(ids(""), (Ids{1, a}));
  EXPECT_EQ(ids("{}"), (Ids{1, a}));
  EXPECT_EQ(ids(R"({"add_bos_token": null})"), (Ids{1, a}));
  EXPECT_EQ(ids(R"({"add_bos_token": true, "add_eos_token": true})"), (Ids{1, a, 2}));
  EXPECT_EQ(ids(R"({"add_bos_token": false})"), (Ids{a}));
  EXPECT_EQ(ids(R"({"add_bos_token": false, "add_eos_token": true})"), (Ids{a, 2}));
  EXPECT_EQ(ids(R"({"eos_token": {"content": "[/INST]", "lstrip": false}, "add_eos_token": true})"), (Ids{1, a, 4}));
  EXPECT_EQ(ids(R"({"bos_token": "[INST]"})"), (Ids{3, a}));
  EXPECT_EQ(subject.tokenizer->encode("a", false), (Ids{a}));
  EXPECT_EQ(subject.tokenizer->encode("", true), (Ids{1}));
  EXPECT_EQ(subject.tokenizer->bos_token(), "<s>");
  EXPECT_EQ(subject.tokenizer->eos_token(), "</s>");
  EXPECT_TRUE(subject.tokenizer->add_bos());

  const auto without = load_tokenizer(train_tokenizer("--model_type=bpe --vocab_size=200 --bos_id=-1 --eos_id=-1"));
  EXPECT_EQ(without->bos_id(), -1);
  EXPECT_EQ(without->eos_id(), -1);
  EXPECT_FALSE(without->add_bos());
  EXPECT_EQ(without->bos_token(), "");
  EXPECT_EQ(without->encode("a", true), without->encode("a", false));
}

TEST(Tokenizer, ChatTemplate) {
  EXPECT_EQ(load_tokenizer(fixture_model())->chat_template(), "");
  EXPECT_EQ(load_tokenizer(fixture_model(), R"({"chat_template": "{{ x }}"})")->chat_template(), "{{ x }}");
  EXPECT_EQ(load_tokenizer(fixture_model(), R"({"chat_template": [{"name": "tool_use", "template": "t"},
                                                        {"name": "default", "template": "d"}]})")
                ->chat_template(),
            "d");
  EXPECT_EQ(load_tokenizer(fixture_model(), R"({"chat_template": []})")->chat_template(), "");
}

TEST(Tokenizer, ParseSpecial) {
  const TokenizerSubject subject(fixture_model());
  const Tokenizer& tokenizer = *subject.tokenizer;
  const std::string space = "\xe2\x96\x81";
  // As text: no control ids.
  for (const int32_t id : tokenizer.encode("<s>[INST] a[/INST]", false, false)) EXPECT_FALSE(tokenizer.is_special(id));
  // No space is invented or lost around special pieces; only the start of the text has sentencepiece's extra one.
  EXPECT_EQ(tokenizer.encode("<s>[INST] a[/INST]b</s>", false, true),
            subject.pieces({"<s>", "[INST]", space + "a", "[/INST]", "b", "</s>"}));
  EXPECT_EQ(tokenizer.encode("a[INST]a", false, true), subject.pieces({space + "a", "[INST]", "a"}));
  EXPECT_EQ(tokenizer.encode("[INST]", false, true), subject.pieces({"[INST]"}));
  EXPECT_EQ(tokenizer.encode("[INST][INST]", false, true), subject.pieces({"[INST]", "[INST]"}));
  EXPECT_EQ(tokenizer.encode(" [INST] ", false, true), subject.pieces({space, space, "[INST]", space}));
  EXPECT_EQ(tokenizer.encode("b[REF]b", false, true), subject.pieces({space + "b", "[REF]", "b"}));
  EXPECT_EQ(tokenizer.encode("[REF]a", false, true), subject.pieces({"[REF]", "a"}));
  EXPECT_EQ(tokenizer.encode("[INST", false, true), tokenizer.encode("[INST", false, false));
  EXPECT_EQ(tokenizer.encode("", true, true), (Ids{1}));
  EXPECT_EQ(tokenizer.encode("a", true, true), tokenizer.encode("a", true, false));
  // The long path after a special piece.
  const std::string body(2000, 'b');
  Ids expected = subject.pieces({"[INST]"});
  const Ids with_start = tokenizer.encode("[REF]" + body, false, true);
  expected.insert(expected.end(), with_start.begin() + 1, with_start.end());
  EXPECT_EQ(tokenizer.encode("[INST]" + body, false, true), expected);
  EXPECT_EQ(tokenizer.decode(expected), body);
}

TEST(Tokenizer, LongestSpecialWins) {
  const TokenizerSubject subject(
      train_tokenizer("--model_type=bpe --vocab_size=400 --byte_fallback=true --control_symbols=<a>,<a><b>,<b>c"));
  EXPECT_EQ(subject.tokenizer->encode("<a><b>c<a><a><b>", false, true),
            (Ids{subject.library.PieceToId("<a><b>"), subject.tokenizer->encode("[INST]c", false, true).back(),
                 subject.library.PieceToId("<a>"), subject.library.PieceToId("<a><b>")}));
}

TEST(Tokenizer, SpecialPiecesInDecodedText) {
  const TokenizerSubject subject(fixture_model());
  const Tokenizer& tokenizer = *subject.tokenizer;
  const std::string space = "\xe2\x96\x81";
  const Ids ids = subject.pieces({"<s>", "[INST]", space + "a", "[/INST]", space + "b", "[REF]", "</s>"});
  EXPECT_EQ(tokenizer.decode(ids), "a b[REF]");
  EXPECT_EQ(tokenizer.decode(ids, false), "<s>[INST]a[/INST] b[REF]</s>");
  EXPECT_TRUE(tokenizer.is_special(1));
  EXPECT_FALSE(tokenizer.is_special(subject.library.PieceToId("[REF]")));
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_FALSE(tokenizer.is_special(512));
}

TEST(Tokenizer, SpecialPiecesOfTheConfiguration) {
  const std::string space = "\xe2\x96\x81";
  const auto tokenizer = load_tokenizer(fixture_model(), R"({"unk_token": "<unk>", "eos_token": {"content": "<|end|>"},
      "additional_special_tokens": ["[REF]", {"content": "<nowhere>"}],
      "added_tokens_decoder": {"0": {"content": "<unk>", "special": true}, "512": {"content": "<|end|>", "special": true},
                               "514": {"content": "<think>", "special": false}}})");
  EXPECT_EQ(tokenizer->vocab_size(), 515);
  EXPECT_EQ(tokenizer->eos_id(), 512);
  const int32_t ref = tokenizer->encode("[REF]", false, true).at(0);
  const Ids a = tokenizer->encode("a", false);
  Ids expected = {0, ref, 512, 514};
  EXPECT_EQ(tokenizer->encode("<unk>[REF]<|end|><think>", false, true), expected);
  for (const int32_t id : {0, 1, ref, 512}) EXPECT_TRUE(tokenizer->is_special(id)) << id;
  for (const int32_t id : {513, 514}) EXPECT_FALSE(tokenizer->is_special(id)) << id;
  EXPECT_EQ(tokenizer->piece(514), "<think>");
  EXPECT_EQ(tokenizer->token_bytes(514), "<think>");
  EXPECT_EQ(tokenizer->token_bytes(ref), "");
  expected.insert(expected.end(), a.begin(), a.end());
  EXPECT_EQ(tokenizer->decode(expected), "<think> a");
  EXPECT_EQ(tokenizer->decode(expected, false), "<unk>[REF]<|end|><think> a");
  EXPECT_EQ(tokenizer->decode(expected, false, true), "<unk> [REF] <|end|><think> a");
  for (const char* config :
       {R"({"added_tokens_decoder": {"x": {"content": "a"}}})", R"({"additional_special_tokens": [5]})",
        R"({"added_tokens_decoder": {"5": "a"}})", R"({"added_tokens_decoder": {"-1": {"content": "a"}}})",
        R"({"added_tokens_decoder": {"2000000000": {"content": "a"}}})"}) {
    EXPECT_THROW(load_tokenizer(fixture_model(), config), Error) << config;
  }
}

TEST(Tokenizer, TokenBytes) {
  const TokenizerSubject subject(fixture_model());
  const auto bytes = [&](const std::string& piece) {
    return subject.tokenizer->token_bytes(subject.library.PieceToId(piece));
  };
  EXPECT_EQ(bytes("\xe2\x96\x81the"), " the");
  EXPECT_EQ(bytes("<0x00>"), std::string(1, '\0'));
  EXPECT_EQ(bytes("<0xE2>"), "\xe2");
  EXPECT_EQ(bytes("[INST]"), "");
  EXPECT_EQ(bytes("[REF]"), "[REF]");
  EXPECT_EQ(bytes("<unk>"), " \xe2\x81\x87 ");
  EXPECT_EQ(subject.tokenizer->token_bytes(-1), "");
  EXPECT_EQ(subject.tokenizer->token_bytes(1'000'000), "");
  EXPECT_EQ(subject.tokenizer->piece(512), "");
  EXPECT_EQ(subject.tokenizer->vocab_size(), 512);
}

// Models that change the text (NFKC, single spaces) or know no bytes still agree with the library.
TEST(Tokenizer, OtherKindsOfModels) {
  for (const char* options :
       {"--model_type=bpe --vocab_size=300", "--model_type=unigram --vocab_size=250",
        "--model_type=bpe --vocab_size=300 --normalization_rule_name=identity --remove_extra_whitespaces=false",
        "--model_type=bpe --vocab_size=300 --normalization_rule_name=identity "
        "--remove_extra_whitespaces=false --add_dummy_prefix=false --user_defined_symbols=ab,bc",
        "--model_type=char --vocab_size=60", "--model_type=word --vocab_size=100"}) {
    const TokenizerSubject subject(train_tokenizer(options));
    for (const std::string& text : sample_texts())
      EXPECT_EQ(subject.tokenizer->encode(text, false), subject.library_encode(text)) << options << text;
    std::mt19937 rng(13);
    for (int i = 0; i < 20; ++i) {
      const std::string text = random_text(rng, 2000);
      ASSERT_EQ(subject.tokenizer->encode(text, false), subject.library_encode(text)) << options;
    }
  }
}

std::string failure(const std::string& model, const std::string& config = "") {
  try {
    load_tokenizer(model, config);
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(Tokenizer, BadFilesAreNamed) {
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  };
  TempDir empty;
  try {
    Tokenizer::load(empty.path());
    FAIL() << "loaded nothing";
  } catch (const Error& error) {
    expect(error.what(), (empty / "tokenizer.model").string() + ": cannot open");
  }
  expect(failure(""), "tokenizer.model: not a sentencepiece model");
  expect(failure("{\"version\": \"1.0\"}"), "tokenizer.model: not a sentencepiece model");
  expect(failure(fixture_model().substr(0, 3000)), "tokenizer.model: ");
  expect(failure(train_tokenizer("--model_type=bpe --vocab_size=300 --treat_whitespace_as_suffix=true")),
         "treat_whitespace_as_suffix are not supported");
  const std::vector<std::pair<std::string, std::string>> configs = {
      {"[]", "tokenizer_config.json: must be a JSON object"},
      {"{", "tokenizer_config.json: not valid JSON"},
      {R"({"add_bos_token": 1})", "'add_bos_token' must be true or false, got 1"},
      {R"({"add_eos_token": "yes"})", "'add_eos_token' must be true or false, got \"yes\""},
      {R"({"chat_template": 5})", "'chat_template' must be a string or a list of named templates, got 5"},
      {R"({"chat_template": [{"name": "default"}]})", "must list objects with a \"name\" and a \"template\""},
      {R"({"chat_template": ["x"]})", "must list objects"},
      {R"({"bos_token": 3})", "'bos_token' must be a string or an object"},
      {R"({"eos_token": {"id": 2}})", "'eos_token' must be a string or an object"},
      {R"({"eos_token": "<|im_end|>"})", "key 'eos_token' names '<|im_end|>', which is not in tokenizer.model"},
      {R"({"add_bos_token": true, "add_bos_token": true})", "key 'add_bos_token' appears twice"},
  };
  for (const auto& [config, message] : configs) expect(failure(fixture_model(), config), message);
}

TEST(Tokenizer, FingerprintFollowsTheModel) {
  EXPECT_EQ(load_tokenizer(fixture_model())->fingerprint(), load_tokenizer(fixture_model(), "{}")->fingerprint());
  EXPECT_EQ(load_tokenizer(fixture_model())->fingerprint(), 0xc2403438f6d36d42u) << "the same in every build";
  EXPECT_NE(load_tokenizer(fixture_model())->fingerprint(),
            load_tokenizer(train_tokenizer("--model_type=bpe --vocab_size=300"))->fingerprint());
}

}  // namespace
}  // namespace bam
