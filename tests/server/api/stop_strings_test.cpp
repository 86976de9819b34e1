#include "server/api/stop_strings.h"

#include <random>

#include <gtest/gtest.h>

namespace bam {
namespace {

struct Outcome {
  std::string text;
  std::optional<std::string> stop;
};

// Feeds `text` in pieces of at most `step` bytes and checks that nothing returned is ever taken back.
Outcome run(const std::vector<std::string>& stops, const std::string& text, size_t step) {
  StopMatcher matcher(stops);
  Outcome outcome;
  for (size_t i = 0; i < text.size(); i += step) outcome.text += matcher.push(text.substr(i, step));
  outcome.text += matcher.flush();
  outcome.stop = matcher.matched();
  return outcome;
}

// Straight from the definition: the match with the smallest end, then the longest.
Outcome reference(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* best = nullptr;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0 &&
          (!best || stop.size() > best->size())) {
        best = &stop;
      }
    }
    if (best) return {text.substr(0, end - best->size()), *best};
  }
  return {text, std::nullopt};
}

TEST(StopMatcher, HoldsBackWhatCouldBecomeAStop) {
  StopMatcher matcher({"\n\nEND"});
  EXPECT_EQ(matcher.push("abc\n"), "abc");
  EXPECT_EQ(matcher.push("\nE"), "");
  EXPECT_EQ(matcher.push("x"), "\n\nEx");
  EXPECT_EQ(matcher.push("\n\nEN"), "");
  EXPECT_EQ(matcher.push("D and more"), "");
  EXPECT_EQ(matcher.matched(), "\n\nEND");
  EXPECT_EQ(matcher.push("later"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, FlushReturnsTheHeldText) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.push("a sto"), "a ");
  EXPECT_EQ(matcher.flush(), "sto");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, OverlapsWithItself) {
  // After "aab" fails at the third character, "aa" of it must still be seen as a beginning.
  EXPECT_EQ(run({"aab"}, "aaab", 1).text, "a");
  EXPECT_EQ(run({"abab"}, "xababab", 1).text, "x");
}

TEST(StopMatcher, TheFirstToEndWinsAndTheLongestOfThose) {
  EXPECT_EQ(run({"abcd", "b"}, "abcd", 4).text, "a");
  EXPECT_EQ(run({"d", "bcd"}, "abcd", 4).text, "a");
  EXPECT_EQ(run({"d", "bcd"}, "abcd", 1).stop, "bcd");
}

TEST(StopMatcher, WithoutStopsEverythingPasses) { EXPECT_EQ(run({}, "text", 1).text, "text"); }

TEST(StopMatcher, AgreesWithTheDefinitionHoweverTheTextIsCut) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    const auto word = [&](size_t max) {
      std::string text;
      const size_t length = 1 + random() % max;
      for (size_t i = 0; i < length; ++i) text += static_cast<char>('a' + random() % 2);
      return text;
    };
    std::vector<std::string> stops;
    for (size_t i = 0, n = 1 + random() % 3; i < n; ++i) stops.push_back(word(5) + "b");
    const std::string text = word(24);
    const Outcome expected = reference(stops, text);
    for (const size_t step : {1u, 2u, 3u, 24u}) {
      const Outcome outcome = run(stops, text, step);
      ASSERT_EQ(outcome.text, expected.text) << text << " step " << step;
      ASSERT_EQ(outcome.stop, expected.stop) << text << " step " << step;
    }
  }
}

}  // namespace
}  // namespace bam
