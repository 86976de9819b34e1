#include "app/local_generation.h"

#include <gtest/gtest.h>

#include "app/queue_sink.h"

namespace bam {
namespace {

TEST(GenerationStats, RatesStandWhereThereWasSomethingToMeasure) {
  GenerationStats stats;
  stats.prompt_tokens = 500'000;
  stats.cached_tokens = 0;
  stats.generated_tokens = 65;
  stats.first_token_ms = 8000;
  stats.decode_ms = 200;
  stats.finish_reason = "length";
  EXPECT_EQ(stats.line(),
            "prompt 500,000 tokens in 8.00 s (62.5k tok/s) | generated 65 in 200 ms (320 tok/s) | length");
  stats = {
      .prompt_tokens = 4, .cached_tokens = 3, .generated_tokens = 1, .first_token_ms = 1.5, .finish_reason = "stop"};
  EXPECT_EQ(stats.line(), "prompt 4 tokens, 3 cached, in 1.50 ms | generated 1 | stop");
  stats = {.prompt_tokens = 9, .generated_tokens = 0, .finish_reason = "interrupted"};
  EXPECT_EQ(stats.line(), "prompt 9 tokens | generated 0 | interrupted");
}

TEST(ReadingProgress, SaysHowFarAndHowLong) {
  EXPECT_EQ((ReadingProgress{250'000, 500'000, 4000, 4100}.line()),
            "reading 250,000 of 500,000 tokens ━━━━━━━━━━────────── 50 %, 4.00 s, about 5 s left");
  EXPECT_EQ((ReadingProgress{500'000, 500'000, 8000, 0}.line()),
            "reading 500,000 of 500,000 tokens ━━━━━━━━━━━━━━━━━━━━ 100 %, 8.00 s")
      << "nothing is left";
  EXPECT_NE((ReadingProgress{1, 500'000, 1, 400'000}.line()).find("about 6 min 40 s left"), std::string::npos);
  EXPECT_EQ((ReadingProgress{0, 0, 0, -1}.line()), "reading 0 of 0 tokens ──────────────────── 0 %, 0.00 ms");
}

// A terminal that prints slowly takes its tokens late; the engine's time is not shorter for it.
TEST(QueueSink, KnowsWhenAnEventCame) {
  QueueSink sink;
  std::vector<Event> events;
  events.emplace_back(TokenEvent{});
  sink.on_events(std::move(events));
  const auto between = Clock::now();
  events.clear();
  events.emplace_back(TokenEvent{});
  sink.on_events(std::move(events));
  sink.next();
  EXPECT_LE(sink.arrived(), between);
  sink.next();
  EXPECT_GE(sink.arrived(), between);
}

TEST(ForTerminal, ControlCharactersBecomePictures) {
  EXPECT_EQ(for_terminal("a\nb\tc é"), "a\nb\tc é");
  EXPECT_EQ(for_terminal("\x1b]0;title\a"), "␛]0;title␇");
  EXPECT_EQ(for_terminal("\x7f\xc2\x9b"), "␡\xef\xbf\xbd");
}

}  // namespace
}  // namespace bam
