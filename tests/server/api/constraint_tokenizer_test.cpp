// Constraints over real tokenizers: the fixture's, and Mistral's with its 32K pieces where it is at hand.
#include <chrono>
#include <filesystem>
#include <iostream>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "models/tokenizer.h"
#include "server/api/engine_constraint.h"
#include "tests/server/grammar/constraint_testing.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace bam {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& model) {
  testing::TempDir dir;
  fs::copy_file(model, dir / "tokenizer.model");
  return Tokenizer::load(dir.path());
}

fs::path mistral_model() { return testing::shared_data_dir() / "mistral-7b-v0.3.tokenizer.model"; }

std::shared_ptr<const Constraint> compiled(ConstraintResult result) {
  if (!result.ok()) throw result.error();
  return std::move(result).value();
}

std::vector<uint32_t> mask_of(Constraint& constraint, const Tokenizer& tokenizer) {
  std::vector<uint32_t> mask((static_cast<size_t>(tokenizer.vocab_size()) + 31) / 32, 0);
  constraint.allowed_tokens(mask);
  return mask;
}

bool has(const std::vector<uint32_t>& mask, int32_t token) {
  return mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1;
}

// Longest pieces first, without the leading space that encode() adds.
std::vector<int32_t> spell(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> tokens;
  while (!text.empty()) {
    int32_t best = -1;
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      const std::string& bytes = tokenizer.token_bytes(id);
      if (tokenizer.is_special(id) || bytes.empty() || !text.starts_with(bytes)) continue;
      if (best < 0 || bytes.size() > tokenizer.token_bytes(best).size()) best = id;
    }
    tokens.push_back(best);
    text.remove_prefix(tokenizer.token_bytes(best).size());
  }
  return tokens;
}

void check_with(const Tokenizer& tokenizer) {
  const ConstraintVocabulary vocabulary = constraint_vocabulary(tokenizer, {tokenizer.eos_id()});
  const auto object = compiled(compile_json_object(vocabulary));
  // The tokenizer's own segmentation of a valid text is allowed piece by piece. The leading space is the tokenizer's.
  const std::string text = "{\"name\": \"Zoë 漢字 😀\", \"n\": [1, 2.5, -3e2], \"ok\": true}";
  const auto clone = object->clone_initial();
  for (int32_t token : tokenizer.encode(text, false)) {
    ASSERT_FALSE(clone->finished());
    const auto mask = mask_of(*clone, tokenizer);
    ASSERT_TRUE(has(mask, token)) << tokenizer.piece(token);
    ASSERT_FALSE(has(mask, tokenizer.eos_id()));
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      ASSERT_FALSE(tokenizer.is_special(id) && has(mask, id)) << tokenizer.piece(id);
    }
    clone->accept(token);
  }
  EXPECT_TRUE(clone->finished());
  EXPECT_TRUE(has(mask_of(*clone, tokenizer), tokenizer.eos_id()));

  // A mask says of every token what following its bytes one by one says.
  const auto half = object->clone_initial();
  for (int32_t token : tokenizer.encode("{\"a\": [tru", false)) half->accept(token);
  const auto mask = mask_of(*half, tokenizer);
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string& bytes = tokenizer.token_bytes(id);
    const bool continues =
        !tokenizer.is_special(id) && (bytes == "e" || bytes == "e," || bytes == "e]" || bytes == "e]," ||
                                      bytes == "e]}" || bytes == "e ]" || bytes == "e\n");
    EXPECT_EQ(has(mask, id), continues) << tokenizer.piece(id);
  }
}

// The engine ends a request with these words: they have to come through.
TEST(EngineConstraint, SaysWhyItGaveUp) {
  const auto tokenizer = load_tokenizer(testing::fixtures_dir() / "tokenizer.model");
  std::string pattern = "(x";  // counters that no two texts share
  for (int i = 0; i < 250; ++i) pattern += fmt::format("|[abet]*{}[abet]{{{}}}", "abet"[i % 4], 20 + i % 200);
  const auto regex = compiled(compile_regex(pattern + ")", constraint_vocabulary(*tokenizer, {tokenizer->eos_id()})));
  const auto constraint = engine_constraint(*regex)->clone_initial();
  EXPECT_EQ(constraint->failure(), "");
  std::mt19937 random(3);
  std::vector<int32_t> allowed = {0};
  for (int i = 0; i < 900 && !allowed.empty(); ++i) {
    std::vector<uint32_t> mask((static_cast<size_t>(tokenizer->vocab_size()) + 31) / 32, 0);
    constraint->allowed_tokens(mask);
    allowed.clear();
    for (int32_t token = 0; token < tokenizer->vocab_size(); ++token) {
      if (has(mask, token) && token != tokenizer->eos_id()) allowed.push_back(token);
    }
    if (!allowed.empty()) constraint->accept(allowed[random() % allowed.size()]);
  }
  EXPECT_TRUE(allowed.empty());
  EXPECT_NE(constraint->failure().find("too expensive"), std::string_view::npos) << constraint->failure();
}

TEST(ConstraintTokenizer, Fixture) { check_with(*load_tokenizer(testing::fixtures_dir() / "tokenizer.model")); }

TEST(ConstraintTokenizer, Mistral) {
  if (!fs::exists(mistral_model())) GTEST_SKIP() << "no ../shared/data/mistral-7b-v0.3.tokenizer.model";
  check_with(*load_tokenizer(mistral_model()));
}

TEST(ConstraintTokenizer, StrictAboutTheLeadingSpace) {
  const auto tokenizer = load_tokenizer(testing::fixtures_dir() / "tokenizer.model");
  const ConstraintVocabulary vocabulary = constraint_vocabulary(*tokenizer, {tokenizer->eos_id()});
  const auto begins_with_space = [&](const std::shared_ptr<const Constraint>& constraint) {
    const auto clone = constraint->clone_initial();
    const auto mask = mask_of(*clone, *tokenizer);
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      if (has(mask, id) && tokenizer->token_bytes(id).starts_with(' ')) return true;
    }
    return false;
  };
  EXPECT_TRUE(begins_with_space(compiled(compile_json_object(vocabulary))));
  EXPECT_FALSE(begins_with_space(compiled(compile_regex("[a-z]+", vocabulary))));
  EXPECT_FALSE(begins_with_space(compiled(compile_choice({"the"}, vocabulary))));
  EXPECT_TRUE(begins_with_space(compiled(compile_choice({" the"}, vocabulary))));
}

TEST(ConstraintTokenizer, MasksAreCheap) {
  if (!fs::exists(mistral_model())) GTEST_SKIP() << "no ../shared/data/mistral-7b-v0.3.tokenizer.model";
  using Clock = std::chrono::steady_clock;
  const auto tokenizer = load_tokenizer(mistral_model());
  auto milliseconds = [](Clock::time_point since) {
    return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
  };
  auto start = Clock::now();
  const ConstraintVocabulary vocabulary = constraint_vocabulary(*tokenizer, {tokenizer->eos_id()});
  std::cout << "vocabulary " << milliseconds(start) << " ms, " << vocabulary.trie()->num_nodes() << " trie nodes\n";
  const std::string text =
      R"({"name": "Ada Lovelace, comtesse", "age": 36, "tags": ["mathematics", "poetry", "Zoë 漢字"], "score": 0.75})";
  const std::vector<std::pair<const char*, std::shared_ptr<const Constraint>>> constraints = {
      {"json_object", compiled(compile_json_object(vocabulary))},
      {"json_schema",
       compiled(compile_json_schema(
           R"({"type":"object","properties":{"name":{"type":"string","maxLength":100},"age":{"type":"integer","minimum":0,"maximum":150},
                              "tags":{"type":"array","items":{"type":"string"},"maxItems":10},"score":{"type":"number","minimum":0,"maximum":1}},
                              "required":["name","age","tags","score"]})",
           vocabulary))},
      {"regex .*", compiled(compile_regex(".*", vocabulary))},
      {"regex \\{.{1,1000}\\}", compiled(compile_regex("\\{.{1,1000}\\}", vocabulary))},
  };
  const auto tokens = spell(*tokenizer, text);
  for (const auto& [name, constraint] : constraints) {
    for (const char* pass : {"cold", "warm"}) {
      const auto clone = constraint->clone_initial();
      double worst = 0, total = 0;
      for (int32_t token : tokens) {
        start = Clock::now();
        const auto mask = mask_of(*clone, *tokenizer);
        const double elapsed = milliseconds(start);
        ASSERT_TRUE(has(mask, token)) << name;
        clone->accept(token);
        worst = std::max(worst, elapsed);
        total += elapsed;
      }
      std::cout << name << ", " << pass << ": mean " << total / static_cast<double>(tokens.size()) << " ms, worst "
                << worst << " ms\n";
      EXPECT_LT(worst, 500) << name;  // a bound that holds on a loaded machine under sanitizers
    }
  }
}

}  // namespace
}  // namespace bam
