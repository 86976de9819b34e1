#include "server/grammar/constraint.h"

#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "server/grammar/machine.h"
#include "tests/server/grammar/constraint_testing.h"
#include "tests/support/temp_dir.h"

namespace bam {
namespace {

using testing::accepts;
using testing::Driver;
using testing::sample;
using testing::TestVocabulary;

const TestVocabulary& usual() { return TestVocabulary::usual(); }

std::shared_ptr<const Constraint> compiled(ConstraintResult result) {
  if (!result.ok()) throw result.error();
  return std::move(result).value();
}

std::vector<std::string> texts(const std::vector<int32_t>& tokens, const TestVocabulary& vocabulary) {
  std::vector<std::string> out;
  for (int32_t t : tokens)
    out.push_back(t == vocabulary.eos ? "<eos>" : vocabulary.token_bytes[static_cast<size_t>(t)]);
  std::sort(out.begin(), out.end());
  return out;
}

TEST(TokenTrie, IsAPreorderOfAllTokens) {
  const ConstraintVocabulary vocabulary({"abc", "a", "", "b", "ab", "a", "xyz"}, {2});
  const TokenTrie& trie = *vocabulary.trie();
  ASSERT_EQ(trie.num_nodes(), 7u);  // a ab abc b x xy xyz
  std::vector<std::string> spelled(trie.token_bytes.size());
  std::string path;
  for (uint32_t i = 0; i < trie.num_nodes(); ++i) {
    path.resize(trie.nodes[i].depth);
    path.push_back(static_cast<char>(trie.nodes[i].byte));
    for (uint32_t t = trie.nodes[i].first_token; t < trie.nodes[i + 1].first_token; ++t) {
      spelled[static_cast<size_t>(trie.tokens[t])] = path;
    }
    EXPECT_GT(trie.nodes[i].skip, i);
  }
  EXPECT_EQ(spelled, trie.token_bytes);
  EXPECT_EQ(trie.nodes[0].skip, 3u);
  EXPECT_TRUE(trie.spells['a'] && trie.spells['b']);
  EXPECT_FALSE(trie.spells['x']);
}

TEST(Choice, AllowsExactlyTheChoices) {
  const auto choice = compiled(compile_choice({"yes", "no", "not sure", "né"}, usual().vocabulary));
  for (const char* text : {"yes", "no", "not sure", "né"}) EXPECT_TRUE(accepts(*choice, text)) << text;
  for (const char* text : {"", "ye", "yess", " yes", "not", "n"}) EXPECT_FALSE(accepts(*choice, text)) << text;
  Driver driver(*choice, usual());
  EXPECT_EQ(texts(driver.allowed(), usual()), (std::vector<std::string>{"n", "no", "y", "yes"}));
}

TEST(Choice, FinishedOnlyWhenNothingMayFollow) {
  const auto choice = compiled(compile_choice({"no", "not"}, usual().vocabulary));
  Driver driver(*choice, usual());
  EXPECT_FALSE(driver.finished());
  ASSERT_TRUE(driver.accept_text("no"));
  EXPECT_FALSE(driver.finished());
  EXPECT_EQ(texts(driver.allowed(), usual()), (std::vector<std::string>{"<eos>", "t"}));
  ASSERT_TRUE(driver.accept_text("t"));
  EXPECT_TRUE(driver.finished());
  EXPECT_EQ(driver.allowed(), std::vector<int32_t>{usual().eos});
  driver.accept(usual().eos);
  EXPECT_TRUE(driver.finished());
  EXPECT_EQ(driver.allowed(), std::vector<int32_t>{usual().eos});
}

TEST(Choice, RefusesWhatItCannotHonour) {
  EXPECT_FALSE(compile_choice({}, usual().vocabulary).ok());
  EXPECT_FALSE(compile_choice({"a", ""}, usual().vocabulary).ok());
  EXPECT_FALSE(compile_choice({"\xFF"}, usual().vocabulary).ok());
  EXPECT_FALSE(compile_choice(std::vector<std::string>(2000, "a"), usual().vocabulary).ok());
  EXPECT_FALSE(compile_choice({std::string(100'000, 'a')}, usual().vocabulary).ok());
}

TEST(Constraint, ATokenThatIsNotAllowedEndsTheText) {
  const auto choice = compiled(compile_choice({"yes"}, usual().vocabulary));
  Driver driver(*choice, usual());
  driver.accept('z');
  EXPECT_TRUE(driver.finished());
  EXPECT_EQ(driver.allowed(), std::vector<int32_t>{usual().eos});
  Driver unknown(*choice, usual());
  unknown.accept(1'000'000);
  EXPECT_TRUE(unknown.finished());
}

TEST(Constraint, ControlTokensAreNeverAllowed) {
  const TestVocabulary vocabulary({"a", "", "b", ""});
  const auto regex = compiled(compile_regex("[ab]*", vocabulary.vocabulary));
  Driver driver(*regex, vocabulary);
  EXPECT_EQ(driver.allowed(), (std::vector<int32_t>{0, 2, 4}));
}

TEST(Constraint, MaskMayBeShorterOrLongerThanTheVocabulary) {
  const auto regex = compiled(compile_regex("[a-z]+", usual().vocabulary));
  const auto clone = regex->clone_initial();
  std::vector<uint32_t> longer(100, 0), shorter(4, 0);
  clone->allowed_tokens(longer);
  clone->allowed_tokens(shorter);
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), longer.begin()));
  EXPECT_TRUE(std::all_of(longer.begin() + 20, longer.end(), [](uint32_t w) { return w == 0; }));
}

TEST(Constraint, CannotSpellSaysWhichByte) {
  const TestVocabulary no_brace({"a", "\"", ":", "}", "{\"", " "});
  const auto result = compile_json_object(no_brace.vocabulary);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(std::string(result.error().what()).find("0x7B"), std::string::npos) << result.error().what();
}

TEST(Constraint, BytesThatCannotBeSpelledAreAvoided) {
  // "b" is in a longer token only: after it the text could not go on in every case, so it is never begun.
  const TestVocabulary vocabulary({"a", "c", "ab", "d"});
  const auto regex = compiled(compile_regex("(ab|ac)d", vocabulary.vocabulary));
  Driver driver(*regex, vocabulary);
  EXPECT_EQ(texts(driver.allowed(), vocabulary), (std::vector<std::string>{"a"}));
  ASSERT_TRUE(driver.accept_text("a"));
  EXPECT_EQ(texts(driver.allowed(), vocabulary), (std::vector<std::string>{"c"}));
}

TEST(JsonObject, AcceptsWhatIsOne) {
  const auto object = compiled(compile_json_object(usual().vocabulary));
  for (const char* text :
       {"{}", " {}", "\n{}", R"({"a":1})", R"({"a": -1.5e10, "b": [], "c": {}, "d": [true, false, null]})",
        "{\n  \"a\": {\n    \"b\": [\n      1,\n      2\n    ]\n  }\n}", R"({"é漢😀": "\u00e9\ud83d\ude00\n\"\\\/"})",
        R"({"":""})", R"({"a":0.5,"a":-0})", "{\"a\": [[[[[]]]]]}", "{\n\t\"a\": 1\n}"}) {
    EXPECT_TRUE(accepts(*object, text)) << text;
  }
}

TEST(JsonObject, RejectsWhatIsNot) {
  const auto object = compiled(compile_json_object(usual().vocabulary));
  for (const char* text : {"",
                           "[]",
                           "1",
                           "\"a\"",
                           "{",
                           "{}}",
                           "{} ",
                           "{a:1}",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{\"a\":1,}",
                           "{\"a\":01}",
                           "{\"a\":1.}",
                           "{\"a\":+1}",
                           "{\"a\":.5}",
                           "{\"a\":\"\n\"}",
                           "{\"a\":\"\\x\"}",
                           "{\"a\":\"\\ud800\"}",
                           "{\"a\":\"\\ud800\\u0041\"}",
                           "{\"a\":tru}",
                           "{\"a\":[1,]}",
                           "{\"a\":\"\xC0\x80\"}",
                           "{\"a\":\"\xED\xA0\x80\"}",
                           "{\"a\":1e999}",
                           "{   \"a\":1}",
                           "{\"a\"  :1}"}) {
    EXPECT_FALSE(accepts(*object, text)) << text;
  }
}

TEST(JsonObject, DepthIsLimitedWithoutDeadEnds) {
  const auto object = compiled(compile_json_object(usual().vocabulary));
  Driver driver(*object, usual());
  int depth = 0;
  ASSERT_TRUE(driver.accept_text("{"));
  while (driver.accept_text("\"a\":") && driver.allows('{')) {
    driver.accept('{');
    ++depth;
    ASSERT_LT(depth, 100);
  }
  EXPECT_GE(depth, 60);
  // At the bottom: simple values where a key was still possible, else the object must close.
  if (driver.allows('n')) {
    ASSERT_TRUE(driver.accept_text("null"));
  }
  for (int i = 0; i <= depth; ++i) ASSERT_TRUE(driver.accept_text("}", true)) << i;
  EXPECT_TRUE(driver.finished());
}

TEST(JsonObject, EverySampleParses) {
  const auto object = compiled(compile_json_object(usual().vocabulary));
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const auto text = sample(*object, random, 60);
    ASSERT_TRUE(text.has_value());
    const auto json = nlohmann::json::parse(*text, nullptr, false);
    ASSERT_TRUE(json.is_object()) << *text;
    EXPECT_TRUE(accepts(*object, *text));
  }
}

// Masks must not depend on what the shared cache holds, nor on its being renewed in the middle of a text.
TEST(Machine, CacheIsBoundedAndRenewingItChangesNothing) {
  // 40 bits of memory make every position of a text a configuration of its own: the cache must fill up.
  const auto regex = compiled(compile_regex("[ab]*a[ab]{40}", usual().vocabulary));
  const auto& machine = regex->machine();
  Driver driver(*regex, usual()), other(*regex, usual());
  std::mt19937 random(2);
  std::string text;
  size_t most = 0, renewals = 0, previous = 0;
  for (int i = 0; i < 16'000; ++i) {
    const char c = random() % 2 ? 'a' : 'b';
    text.push_back(c);
    ASSERT_TRUE(driver.allows(c));
    driver.accept(c);
    const size_t bytes = machine.cache_bytes();
    most = std::max(most, bytes);
    renewals += bytes < previous;
    previous = bytes;
    const bool matches = text.size() > 40 && text[text.size() - 41] == 'a';
    ASSERT_EQ(driver.may_end(), matches) << i;
  }
  EXPECT_GT(renewals, 0u);
  EXPECT_LT(most, size_t{80} << 20);
  EXPECT_LE(machine.cache_bytes(), size_t{9} << 20);
  // A clone that has slept through the renewals starts where it was.
  EXPECT_TRUE(other.accept_text("a" + std::string(40, 'b')) && other.may_end());
}

TEST(Machine, ClonesOnManyThreadsAgree) {
  const auto object = compiled(compile_json_object(usual().vocabulary));
  std::vector<std::string> results(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(7);
      for (int k = 0; k < 20; ++k) results[i] += sample(*object, random).value_or("?") + "\n";
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

// Tokens of up to four of these characters: enough for an automaton to explode over.
const TestVocabulary& dense() {
  static const TestVocabulary vocabulary([] {
    std::vector<std::string> tokens{""};
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i].size() == 4) break;
      for (char c : std::string_view("abet, c\n")) tokens.push_back(tokens[i] + c);
    }
    tokens.erase(tokens.begin());
    return tokens;
  }());
  return vocabulary;
}

struct Cost {
  int tokens = 0;
  uint64_t worst_step = 0, work = 0;
  std::string failure;
};

// Follows a random text and counts the work of every step.
Cost follow(const Constraint& prototype, int max_tokens) {
  Driver driver(prototype, dense());
  std::mt19937 random(3);
  Cost run;
  for (; run.tokens < max_tokens && !driver.finished(); ++run.tokens) {
    const uint64_t before = driver.constraint().work();
    auto allowed = driver.allowed();
    std::erase(allowed, dense().eos);
    if (allowed.empty()) break;
    driver.accept(allowed[random() % allowed.size()]);
    run.worst_step = std::max(run.worst_step, driver.constraint().work() - before);
  }
  run.work = driver.constraint().work();
  run.failure = driver.constraint().failure();
  if (!run.failure.empty()) {
    EXPECT_TRUE(driver.allowed().empty());
    EXPECT_FALSE(driver.finished());
  }
  return run;
}

// Remembers where each letter stood in the last 900: no two texts lead to the same configuration.
constexpr const char* kCounters = "([abet]*a[abet]{900}|[abet]*e[abet]{900}|[abet]*t[abet]{900}|[abet]*b[abet]{900})";

// What a hostile grammar may cost is counted, for one token and for all, and then it says so.
TEST(Machine, HostileGrammarsEndWithinTheirBudget) {
  std::string many_counters = "(x";
  for (int i = 0; i < 250; ++i) many_counters += fmt::format("|[abet]*{}[abet]{{{}}}", "abet"[i % 4], 20 + i % 200);
  const std::vector<std::string> patterns = {kCounters, "([ab]*a[abet]{2000}|[ab]*b[abet]{2000})",
                                             "(([abet]{1,40}[,e]){1,40}c?){1,9}", many_counters + ")"};
  int failed = 0;
  for (const auto& pattern : patterns) {
    const auto regex = compiled(compile_regex(pattern, dense().vocabulary));
    const Cost run = follow(*regex, 400);
    const uint64_t slack = 1000;  // the last transition may go a little beyond
    EXPECT_LE(run.worst_step, constraints::kMaxStepWork + slack) << pattern;
    EXPECT_LE(run.work, constraints::kMaxBurstWork + static_cast<uint64_t>(run.tokens) * constraints::kMaxWorkPerToken +
                            slack * static_cast<uint64_t>(run.tokens))
        << pattern;
    failed += !run.failure.empty();
    EXPECT_TRUE(run.failure.empty() || run.failure.find("too expensive") != std::string::npos) << run.failure;
  }
  EXPECT_GE(failed, 2);
}

// Repeats of what may be empty are as cheap as the counted repeat that they amount to.
TEST(Machine, NestedOptionalRepeatsAreCheap) {
  for (const char* pattern : {"(.?){4000}", "(a?){1000}(a?){1000}(a?){1000}b", "((((a|b)?){10}){10}){20}c",
                              "(([abet]{0,30}){0,20}){0,6}", "(((a|)*|e?){0,9}){0,9}t"}) {
    const Cost run = follow(*compiled(compile_regex(pattern, dense().vocabulary)), 100);
    EXPECT_EQ(run.failure, "") << pattern;
    EXPECT_LT(run.worst_step, 20'000u) << pattern;
  }
}

// A sequence that has spent its budget says nothing about the next one.
TEST(Machine, AClonesBudgetIsItsOwn) {
  const auto regex = compiled(compile_regex(kCounters, dense().vocabulary));
  EXPECT_NE(follow(*regex, 400).failure, "");
  Driver fresh(*regex, dense());
  EXPECT_FALSE(fresh.allowed().empty());
  EXPECT_EQ(fresh.constraint().failure(), "");
}

}  // namespace
}  // namespace bam
