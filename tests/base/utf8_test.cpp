#include "base/utf8.h"

#include <gtest/gtest.h>

namespace bam {
namespace {

std::string hex(std::string_view text) {
  std::string out;
  for (const unsigned char byte : text) out += "0123456789abcdef"[byte >> 4], out += "0123456789abcdef"[byte & 15];
  return out;
}

struct Case {
  const char* what;
  std::string input;
  std::string expected;  // of sanitize_utf8
  bool valid;
};

const std::string kFffd(kReplacementCharacter);

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"empty", "", "", true},
      {"ascii", "plain text, longer than a word", "plain text, longer than a word", true},
      {"NUL", std::string("a\0b", 3), std::string("a\0b", 3), true},
      {"2 bytes", "\xc2\x80\xdf\xbf", "\xc2\x80\xdf\xbf", true},
      {"3 bytes", "\xe0\xa0\x80\xef\xbf\xbf", "\xe0\xa0\x80\xef\xbf\xbf", true},
      {"around the surrogates", "\xed\x9f\xbf\xee\x80\x80", "\xed\x9f\xbf\xee\x80\x80", true},
      {"4 bytes", "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", true},
      {"lone continuation", "a\x80z", "a" + kFffd + "z", false},
      {"two continuations", "\x80\xbf", kFffd + kFffd, false},
      {"overlong 2", "\xc0\xaf", kFffd + kFffd, false},
      {"overlong 3", "\xe0\x80\xaf", kFffd + kFffd + kFffd, false},
      {"overlong 4", "\xf0\x80\x80\xaf", kFffd + kFffd + kFffd + kFffd, false},
      {"surrogate", "\xed\xa0\x80", kFffd + kFffd + kFffd, false},
      {"past U+10FFFF", "\xf4\x90\x80\x80", kFffd + kFffd + kFffd + kFffd, false},
      {"F5", "\xf5\x80", kFffd + kFffd, false},
      {"FE FF", "\xfe\xff", kFffd + kFffd, false},
      // One U+FFFD per maximal subpart: the Unicode standard's own example (table 3-8).
      {"maximal subparts", "\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64",
       "a" + kFffd + kFffd + kFffd + "b" + kFffd + "c" + kFffd + kFffd + "d", false},
      {"cut 2-byte character", "x\xc3", "x" + kFffd, false},
      {"cut 3-byte character", "x\xe2\x82", "x" + kFffd, false},
      {"cut 4-byte character", "x\xf0\x9f\x98", "x" + kFffd, false},
      {"error after a word of ascii",
       "12345678\xff"
       "12345678",
       "12345678" + kFffd + "12345678", false},
  };
  return all;
}

TEST(Utf8, Sanitize) {
  for (const Case& c : cases()) {
    EXPECT_EQ(hex(sanitize_utf8(c.input)), hex(c.expected)) << c.what;
    EXPECT_EQ(is_valid_utf8(c.input), c.valid) << c.what;
    EXPECT_TRUE(is_valid_utf8(sanitize_utf8(c.input))) << c.what;
  }
}

// Feeding any two halves with the held-back bytes carried over gives the same text as feeding the whole.
TEST(Utf8, IncrementalEqualsWhole) {
  for (const Case& c : cases()) {
    for (size_t cut = 0; cut <= c.input.size(); ++cut) {
      std::string out;
      const size_t held = append_utf8(c.input.substr(0, cut), out);
      EXPECT_LE(held, 3u);
      EXPECT_TRUE(is_valid_utf8(out)) << c.what;
      if (append_utf8(c.input.substr(cut - held), out) > 0) out += kReplacementCharacter;
      EXPECT_EQ(hex(out), hex(c.expected)) << c.what << " cut at " << cut;
    }
  }
}

TEST(Utf8, EveryCodePoint) {
  for (char32_t code = 0x80; code <= 0x10ffff; code += code < 0x3000 ? 1 : 61) {
    std::string text;
    if (code < 0x800) {
      text = {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    } else if (code < 0x10000) {
      text = {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
              static_cast<char>(0x80 | (code & 63))};
    } else {
      text = {static_cast<char>(0xf0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 63)),
              static_cast<char>(0x80 | (code >> 6 & 63)), static_cast<char>(0x80 | (code & 63))};
    }
    const bool surrogate = code >= 0xd800 && code <= 0xdfff;
    const Utf8Step step = next_utf8(text);
    ASSERT_EQ(step.kind == Utf8Step::Kind::kValid, !surrogate) << static_cast<uint32_t>(code);
    if (surrogate) continue;
    ASSERT_EQ(step.code_point, code);
    ASSERT_EQ(step.length, text.size());
  }
}

TEST(Utf8, Printable) {
  EXPECT_EQ(printable("plain"), "plain");
  EXPECT_EQ(printable("two\nlines\x1b[0m\x7f"), "two\\u000alines\\u001b[0m\\u007f");
  EXPECT_EQ(printable("\xc2\x85 caf\xc3\xa9 \xff"), "\\u0085 caf\xc3\xa9 " + kFffd);
  EXPECT_EQ(printable(std::string(1000, 'x'), 10), "xxxxxxxxxx...");
}

}  // namespace
}  // namespace bam
