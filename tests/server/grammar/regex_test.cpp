#include "server/grammar/regex.h"

#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "tests/server/grammar/constraint_testing.h"

namespace bam {
namespace {

using testing::accepts;
using testing::sample;
using testing::TestVocabulary;

std::shared_ptr<const Constraint> regex(const std::string& pattern) {
  auto result = compile_regex(pattern, TestVocabulary::usual().vocabulary);
  if (!result.ok()) throw result.error();
  return std::move(result).value();
}

struct Case {
  const char* pattern;
  std::vector<std::string> matching, others;
};

TEST(Regex, Syntax) {
  const std::vector<Case> cases = {
      {"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
      {"", {""}, {"a"}},
      {"a|b|", {"a", "b", ""}, {"ab", "c"}},
      {"a*", {"", "a", "aaaa"}, {"b", "ab"}},
      {"a+b?", {"a", "ab", "aab"}, {"", "b", "abb"}},
      {"a{2}", {"aa"}, {"a", "aaa"}},
      {"a{2,}", {"aa", "aaaaa"}, {"a"}},
      {"a{0,2}b{0}", {"", "a", "aa"}, {"aaa", "b"}},
      {"a{,x}", {"a{,x}"}, {"a"}},
      {"{}", {"{}"}, {""}},
      {"a*?b+?c??", {"b", "aabbc"}, {"a", "c"}},
      {"(a|b)(?:c|d)(?P<x>e)(?<y>f)", {"acef", "bdef"}, {"abcdef"}},
      {"[a-c]", {"a", "b", "c"}, {"d", "", "ab"}},
      {"[^a-c]", {"d", "é", "漢", "\n", "😀"}, {"a", "", "dd"}},
      {"[-a]", {"-", "a"}, {"b"}},
      {"[a-]", {"-", "a"}, {"b"}},
      {"[\\]\\-\\\\]", {"]", "-", "\\"}, {"["}},
      {"[[.]", {"[", "."}, {"a"}},
      {"[é-ü]", {"é", "ü"}, {"\xC3", "e"}},
      {"[\\d_]", {"5", "_"}, {"a"}},
      {"[^\\s\\S]|x", {"x"}, {"", " "}},
      {"\\d\\D\\w\\W\\s\\S", {"1a_! x", "9é0é\t\u00a0"}, {"aaaaaa"}},
      {"\\n\\t\\r\\f\\v\\0", {std::string("\n\t\r\f\v\0", 6)}, {"n"}},
      {"\\x41\\u00e9\\u{1F600}\\x{42}", {"Aé😀B"}, {"x41"}},
      {"\\ud83d\\ude00", {"😀"}, {""}},
      {"\\.\\*\\(\\)\\[\\{\\|\\^\\$\\/\\-", {".*()[{|^$/-"}, {""}},
      {".", {"a", "é", "漢", "😀", " "}, {"", "\n", "\r", "\u2028", "\xC3", "ab"}},
      {"^abc$", {"abc"}, {"^abc$"}},
      {"^a|b$", {"a", "b"}, {"ab"}},
      {"(^a|^b)c$", {"ac", "bc"}, {"c"}},
      {"^(a(b$|c$))", {"ab", "ac"}, {"a"}},
      {"^$", {""}, {"a"}},
      {"(a*)*b", {"b", "aab"}, {"a"}},
      {"(a|b)*abb", {"abb", "ababb"}, {"ab"}},
      {"(|a)+", {"", "aa"}, {"b"}},
      {"\xF0\x9F\x98\x80+", {"😀", "😀😀"}, {"\xF0\x9F\x98"}},
      {"\\d{3}-\\d{4}", {"555-1234"}, {"5555-123"}},
  };
  for (const auto& c : cases) {
    const auto constraint = regex(c.pattern);
    for (const auto& text : c.matching) EXPECT_TRUE(accepts(*constraint, text)) << c.pattern << " vs " << text;
    for (const auto& text : c.others) EXPECT_FALSE(accepts(*constraint, text)) << c.pattern << " vs " << text;
  }
}

TEST(Regex, RefusesByNameAndOffset) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"ab(?=c)", "lookahead is not supported at offset 2"},
      {"(?!c)", "lookahead"},
      {"(?<=c)a", "lookbehind"},
      {"(?<!c)a", "lookbehind"},
      {"(a)\\1", "backreferences are not supported at offset 3"},
      {"(?P<n>a)\\k<n>", "backreferences"},
      {"\\bword", "word boundaries are not supported at offset 0"},
      {"a\\B", "word boundaries"},
      {"(?i)a", "inline flags"},
      {"(?P=n)", "inline flags"},
      {"a*+", "possessive"},
      {"a**", "a quantifier on a quantifier"},
      {"*a", "a quantifier with nothing to repeat at offset 0"},
      {"(+a)", "nothing to repeat at offset 1"},
      {"{2}", "nothing to repeat"},
      {"^*", "a repeated anchor"},
      {"a{3,2}", "wrong order"},
      {"a{5000}", "a repeat count above 4096"},
      {"a{99999999999999999999}", "a repeat count above 4096"},
      {"a{,3}", "{0,n}"},
      {"(a", "a group without ')' at offset 0"},
      {"a)", "unmatched ')' at offset 1"},
      {"[a", "a character class without ']'"},
      {"[]", "an empty character class"},
      {"[z-a]", "wrong order"},
      {"[\\d-z]", "a range that starts with a class"},
      {"[a-\\d]", "a range that ends with a class"},
      {"[[:alpha:]]", "POSIX"},
      {"\\p{L}", "Unicode property"},
      {"\\q", "unknown escape \\q"},
      {"\\", "a '\\' with nothing after it"},
      {"\\x4", "malformed hexadecimal"},
      {"\\u{110000}", "above U+10FFFF"},
      {"\\ud83d", "half of a surrogate pair"},
      {"\\012", "octal"},
      {"a^b", "'^' in the middle of the pattern is not supported, at offset 1"},
      {"a$b", "'$' in the middle"},
      {"(^a)*", "'^' in the middle"},
      {"[^\\s\\S]", "no text can satisfy it"},
      {"\xFF", "not valid UTF-8"},
      {"((a{1000}){100}){100}", "more than 50000 states"},
      {"(((){4000}){4000}){4000}", "more than 50000 states"},
  };
  for (const auto& [pattern, message] : cases) {
    const auto result = compile_regex(pattern, TestVocabulary::usual().vocabulary);
    ASSERT_FALSE(result.ok()) << pattern;
    EXPECT_NE(std::string(result.error().what()).find(message), std::string::npos)
        << pattern << ": " << result.error().what();
  }
  EXPECT_FALSE(compile_regex(std::string(9000, 'a'), TestVocabulary::usual().vocabulary).ok());
  EXPECT_FALSE(compile_regex(std::string(200, '(') + std::string(200, ')'), TestVocabulary::usual().vocabulary).ok());
  EXPECT_TRUE(compile_regex(std::string(90, '(') + std::string(90, ')'), TestVocabulary::usual().vocabulary).ok());
}

// An independent model of regular expressions: the set of positions where a match can end, straight from the
// definition of each operator.
struct Expression {
  enum Kind { kCharacter, kConcat, kEither, kRepeat } kind;
  std::u32string characters;  // kCharacter: one of these
  bool negated = false;
  std::vector<Expression> parts;
  int min = 0, max = 0;  // kRepeat; max < 0: unbounded

  std::set<size_t> ends(const std::u32string& text, size_t from) const {
    switch (kind) {
      case kCharacter:
        if (from < text.size() && (characters.find(text[from]) != std::u32string::npos) != negated) return {from + 1};
        return {};
      case kConcat: {
        std::set<size_t> at{from};
        for (const auto& part : parts) at = advance(part, text, at);
        return at;
      }
      case kEither: {
        std::set<size_t> all;
        for (const auto& part : parts) all.merge(part.ends(text, from));
        return all;
      }
      case kRepeat: {
        std::set<size_t> at{from}, all;
        for (int i = 0; i < min; ++i) at = advance(parts[0], text, at);
        all = at;
        for (int i = min; max < 0 ? i < min + static_cast<int>(text.size()) + 1 : i < max; ++i) {
          at = advance(parts[0], text, at);
          all.insert(at.begin(), at.end());
        }
        return all;
      }
    }
    return {};
  }
  static std::set<size_t> advance(const Expression& part, const std::u32string& text, const std::set<size_t>& at) {
    std::set<size_t> next;
    for (size_t position : at) next.merge(part.ends(text, position));
    return next;
  }
  bool matches(const std::u32string& text) const { return ends(text, 0).contains(text.size()); }
};

constexpr std::u32string_view kAlphabet = U"abé漢😀";

std::string utf8(std::u32string_view text) {
  std::string out;
  for (char32_t c : text) {
    if (c < 0x80) {
      out.push_back(static_cast<char>(c));
      continue;
    }
    const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    out.push_back(static_cast<char>((0xF0 << (3 - more)) | (c >> (6 * more))));
    for (int i = more - 1; i >= 0; --i) out.push_back(static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3F)));
  }
  return out;
}

// Builds the same random expression twice: as a model and as a pattern.
Expression random_expression(std::mt19937& random, int depth, std::string& pattern) {
  Expression e;
  const unsigned kind = depth == 0 ? 0 : random() % 5;
  if (kind <= 1) {
    e.kind = Expression::kCharacter;
    const size_t count = 1 + random() % 3;
    for (size_t i = 0; i < count; ++i) e.characters.push_back(kAlphabet[random() % kAlphabet.size()]);
    e.negated = random() % 8 == 0;
    const bool alone = count == 1 && !e.negated && random() % 2;
    pattern += alone ? utf8(e.characters) : (e.negated ? "[^" : "[") + utf8(e.characters) + "]";
  } else if (kind <= 3) {
    e.kind = kind == 2 ? Expression::kConcat : Expression::kEither;
    pattern += "(?:";
    const size_t count = 1 + random() % 3;
    for (size_t i = 0; i < count; ++i) {
      if (i > 0 && kind == 3) pattern += "|";
      e.parts.push_back(random_expression(random, depth - 1, pattern));
    }
    pattern += ")";
  } else {
    e.kind = Expression::kRepeat;
    pattern += "(";
    e.parts.push_back(random_expression(random, depth - 1, pattern));
    pattern += ")";
    e.min = static_cast<int>(random() % 3);
    e.max = random() % 2 ? -1 : e.min + static_cast<int>(random() % 3);
    pattern += "{" + std::to_string(e.min) + "," + (e.max < 0 ? "" : std::to_string(e.max)) + "}";
  }
  return e;
}

TEST(Regex, RandomPatternsAgreeWithTheirDefinition) {
  std::mt19937 random(11);
  int accepted = 0, rejected = 0;
  for (int round = 0; round < 300; ++round) {
    std::string pattern;
    const Expression model = random_expression(random, 4, pattern);
    const auto constraint = regex(pattern);
    for (int i = 0; i < 20; ++i) {
      std::u32string text;
      for (size_t length = random() % 7; text.size() < length;) text += kAlphabet[random() % kAlphabet.size()];
      const bool expected = model.matches(text);
      ASSERT_EQ(accepts(*constraint, utf8(text)), expected) << pattern << " vs " << utf8(text);
      ++(expected ? accepted : rejected);
    }
    for (int i = 0; i < 5; ++i) {
      const auto text = sample(*constraint, random, 10);
      if (!text || text->size() > 200) continue;
      const auto codepoints = constraints::to_codepoints(*text);
      ASSERT_TRUE(codepoints.has_value()) << pattern;
      ASSERT_TRUE(model.matches(*codepoints)) << pattern << " vs " << *text;
      ++accepted;
    }
  }
  EXPECT_GT(accepted, 500);
  EXPECT_GT(rejected, 500);
}

TEST(CodepointSet, Operations) {
  using constraints::CodepointSet;
  const CodepointSet set({{'a', 'f'}, {'d', 'k'}, {'l', 'l'}, {0xD000, 0xE000}});
  EXPECT_EQ(set.ranges(), (std::vector<CodepointSet::Range>{{'a', 'l'}, {0xD000, 0xD7FF}, {0xE000, 0xE000}}));
  EXPECT_EQ(set.complement().complement().ranges(), set.ranges());
  EXPECT_TRUE(set.contains('a') && set.contains('l') && set.contains(0xE000));
  EXPECT_FALSE(set.contains('m') || set.contains(0xD800) || set.contains(0));
  EXPECT_EQ(set.minus(CodepointSet({{'b', 'k'}, {0xD000, 0xFFFF}})).ranges(),
            (std::vector<CodepointSet::Range>{{'a', 'a'}, {'l', 'l'}}));
  EXPECT_TRUE(CodepointSet::all().complement().empty());
}

// Every code point, one by one, against an arbitrary set: the byte paths are exactly its UTF-8.
TEST(CodepointSet, Utf8OfEveryCodepoint) {
  const auto constraint = regex("[\\x10-\\x7e\\u0085-\\u07fe\\u0801-\\ud7ff\\ue001-\\uffee\\u{10010}-\\u{10fffe}]");
  const constraints::CodepointSet set(
      {{0x10, 0x7E}, {0x85, 0x7FE}, {0x801, 0xD7FF}, {0xE001, 0xFFEE}, {0x10010, 0x10FFFE}});
  for (char32_t c = 0; c <= constraints::kMaxCodepoint; c += (c % 64 > 3 && c % 64 < 60 && c > 0x900) ? 51 : 1) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const std::string text = utf8({&c, 1});
    const auto clone = constraint->clone_initial();
    for (size_t i = 0; i + 1 < text.size(); ++i) clone->accept(static_cast<uint8_t>(text[i]));
    std::vector<uint32_t> mask(TestVocabulary::usual().token_bytes.size() / 32 + 1, 0);
    clone->allowed_tokens(mask);
    const auto last = static_cast<uint8_t>(text.back());
    const bool allowed = mask[last / 32] >> (last % 32) & 1;
    ASSERT_EQ(allowed, set.contains(c)) << std::hex << static_cast<uint32_t>(c);
  }
}

}  // namespace
}  // namespace bam
