#include "app/client/sse_parser.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace bam::client {
namespace {

std::vector<std::string> parse_in_pieces(const std::string& bytes, size_t piece, size_t* comments = nullptr) {
  SseParser parser;
  std::vector<std::string> events;
  const auto on_event = [&](std::string_view data) { events.emplace_back(data); };
  for (size_t at = 0; at < bytes.size(); at += piece) parser.feed(std::string_view(bytes).substr(at, piece), on_event);
  parser.finish(on_event);
  if (comments != nullptr) *comments = parser.num_comments();
  return events;
}

TEST(SseParser, AnyFragmentationGivesTheSameEvents) {
  const std::string stream =
      "\xEF\xBB\xBF: ping\n\n"
      "data: {\"a\":1}\n\n"
      "event: message\r\ndata: two\r\ndata:lines\r\n\r\n"
      "id: 7\rdata: cr\r\r"
      "data\n\n"
      ": ping\n\n"
      "data:  two spaces: one is content\n\n"
      "data: [DONE]\n\n";
  const std::vector<std::string> expected = {"{\"a\":1}", "two\nlines", "cr", "", " two spaces: one is content",
                                             "[DONE]"};
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    size_t comments = 0;
    EXPECT_EQ(parse_in_pieces(stream, piece, &comments), expected) << "pieces of " << piece;
    EXPECT_EQ(comments, 2u);
  }
}

TEST(SseParser, LastEventWithoutItsEmptyLine) {
  EXPECT_EQ(parse_in_pieces("data: a\n\ndata: b", 3), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(parse_in_pieces("data: a\n", 100), (std::vector<std::string>{"a"}));
  EXPECT_TRUE(parse_in_pieces(": only comments\n\n", 1).empty());
}

TEST(SseParser, BufferIsMeasured) {
  SseParser parser;
  parser.feed("data: " + std::string(1000, 'x'), [](std::string_view) { FAIL(); });
  EXPECT_GE(parser.buffered_bytes(), 1000u);
}

}  // namespace
}  // namespace bam::client
