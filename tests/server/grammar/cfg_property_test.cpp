// Random grammars, with empty rules and recursion of every kind: the constraint must allow exactly the language. The
// language is computed from its definition, as the least fixed point over sets of short texts; nothing is shared with
// the compiler but the notation.
#include <set>

#include <gtest/gtest.h>

#include "tests/server/grammar/constraint_testing.h"

namespace bam {
namespace {

using testing::Driver;
using testing::TestVocabulary;

constexpr size_t kLongest = 6;
using Texts = std::set<std::string>;

struct Model {
  struct Symbol {
    int rule = -1;     // -1: the text
    std::string text;  // may be empty
    char repeat = 0;   // one of ? * + or none
  };
  using Alternative = std::vector<Symbol>;
  std::vector<std::vector<Alternative>> rules;  // rule 0 is where it starts
};

Model random_model(std::mt19937& random) {
  Model model;
  model.rules.resize(1 + random() % 4);
  for (auto& rule : model.rules) {
    rule.resize(1 + random() % 3);
    for (auto& alternative : rule) {
      alternative.resize(random() % 4);
      for (auto& symbol : alternative) {
        if (random() % 2)
          symbol.rule = static_cast<int>(random() % model.rules.size());
        else
          for (size_t n = 1 + random() % 2; symbol.text.size() < n;) symbol.text += "abc"[random() % 3];
        if (random() % 5 == 0) symbol.repeat = "?*+"[random() % 3];
      }
    }
  }
  return model;
}

std::string written(const Model& model, bool gbnf) {
  std::string out;
  for (size_t r = 0; r < model.rules.size(); ++r) {
    out += (r == 0 ? std::string(gbnf ? "root" : "start") : "r" + std::to_string(r)) + (gbnf ? " ::= " : ": ");
    for (size_t a = 0; a < model.rules[r].size(); ++a) {
      if (a > 0) out += " | ";
      for (const auto& symbol : model.rules[r][a]) {
        if (symbol.rule == 0)
          out += gbnf ? "root" : "start";
        else if (symbol.rule > 0)
          out += "r" + std::to_string(symbol.rule);
        else
          out += "\"" + symbol.text + "\"";
        if (symbol.repeat) out += symbol.repeat;
        out += " ";
      }
    }
    out += "\n";
  }
  return out;
}

Texts joined(const Texts& left, const Texts& right) {
  Texts out;
  for (const auto& a : left) {
    for (const auto& b : right) {
      if (a.size() + b.size() <= kLongest) out.insert(a + b);
    }
  }
  return out;
}

// All texts of up to kLongest letters of every rule.
std::vector<Texts> languages(const Model& model) {
  std::vector<Texts> known(model.rules.size());
  for (bool grown = true; grown;) {
    grown = false;
    for (size_t r = 0; r < model.rules.size(); ++r) {
      for (const auto& alternative : model.rules[r]) {
        Texts texts{""};
        for (const auto& symbol : alternative) {
          const Texts one = symbol.rule < 0 ? Texts{symbol.text} : known[static_cast<size_t>(symbol.rule)];
          Texts many = one;
          if (symbol.repeat == '*' || symbol.repeat == '+') {
            for (Texts more = one; !more.empty();) {
              const Texts longer = joined(more, one);
              more.clear();
              for (const auto& text : longer) {
                if (many.insert(text).second) more.insert(text);
              }
            }
          }
          if (symbol.repeat == '*' || symbol.repeat == '?') many.insert("");
          texts = joined(texts, many);
        }
        for (const auto& text : texts) grown |= known[r].insert(text).second;
      }
    }
  }
  return known;
}

const TestVocabulary& letters() {
  static const TestVocabulary vocabulary(
      {"a", "b", "c", "ab", "bc", "ca", "aa", "abc", "cba", "bb", "aaaa", "cc", "x"});
  return vocabulary;
}

// A grammar with so many readings of the same text that its budget does not suffice.
struct TooExpensive {};

// The position after a text, byte by byte; nullopt when one of them is not allowed.
std::optional<Driver> follow(const Constraint& constraint, const std::string& text) {
  Driver driver(constraint, letters());
  for (char c : text) {
    const int32_t token = c - 'a';
    const bool allowed = driver.allows(token);
    if (!driver.constraint().failure().empty()) throw TooExpensive{};
    if (!allowed) return std::nullopt;
    driver.accept(token);
  }
  driver.allowed();
  if (!driver.constraint().failure().empty()) throw TooExpensive{};
  return driver;
}

class RandomGrammars : public ::testing::TestWithParam<bool> {
 protected:
  void check(const Constraint& constraint, const Texts& language, const std::string& text) {
    for (const auto& sentence : language) {  // every prefix of it is allowed, and so is its end
      auto driver = follow(constraint, sentence);
      ASSERT_TRUE(driver.has_value()) << text << sentence;
      ASSERT_TRUE(driver->may_end()) << text << sentence;
      ++sentences;
    }
    for (int i = 0; i < 60; ++i) {
      std::string other;
      for (size_t n = random() % (kLongest + 1); other.size() < n;) other += "abc"[random() % 3];
      auto driver = follow(constraint, other);
      ASSERT_EQ(driver && driver->may_end(), language.contains(other)) << text << "'" << other << "'";
      others += !language.contains(other);
      if (!driver) continue;
      // A mask says of every token what following its bytes says.
      const auto allowed = driver->allowed();
      for (size_t t = 0; t < letters().token_bytes.size(); ++t) {
        const auto after = follow(constraint, other + letters().token_bytes[t]);
        const bool in_mask = std::binary_search(allowed.begin(), allowed.end(), static_cast<int32_t>(t));
        ASSERT_EQ(in_mask, letters().token_bytes[t] != "x" && after.has_value()) << text << other << " + token " << t;
      }
    }
    // A walk over allowed tokens never gets stuck, and where it may end the text is in the language.
    for (int i = 0; i < 10; ++i) {
      Driver driver(constraint, letters());
      std::string walked;
      while (walked.size() <= kLongest) {
        const auto allowed = driver.allowed();
        ASSERT_FALSE(allowed.empty()) << text << walked;
        if (driver.may_end()) {
          ASSERT_TRUE(language.contains(walked)) << text << walked;
        }
        const int32_t token = allowed[random() % allowed.size()];
        if (token == letters().eos) break;
        walked += letters().token_bytes[static_cast<size_t>(token)];
        driver.accept(token);
      }
    }
  }

  std::mt19937 random{GetParam() ? 5u : 6u};
  int sentences = 0, others = 0;
};

TEST_P(RandomGrammars, AllowExactlyTheirLanguage) {
  int empty = 0, expensive = 0;
  for (int round = 0; round < 300; ++round) {
    const Model model = random_model(random);
    const std::string text = written(model, GetParam());
    const Texts language = languages(model)[0];
    const auto compiled = compile_grammar(text, letters().vocabulary);
    if (!compiled.ok()) {
      // Nothing to say at all; a language whose shortest text is long does not occur with so few rules.
      EXPECT_TRUE(language.empty()) << compiled.error().what() << "\n" << text;
      ++empty;
      continue;
    }
    try {
      check(**compiled, language, text);
      if (HasFatalFailure()) return;
    } catch (const TooExpensive&) {
      ++expensive;
    }
  }
  EXPECT_LT(expensive, 10);
  EXPECT_GT(sentences, 2000);
  EXPECT_GT(others, 5000);
  EXPECT_LT(empty, 200);
}

INSTANTIATE_TEST_SUITE_P(Notations, RandomGrammars, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Gbnf" : "Lark"; });

}  // namespace
}  // namespace bam
