#include "server/http/request_framing.h"

#include <gtest/gtest.h>

namespace bam {
namespace {

struct Outcome {
  std::string parsed;
  std::optional<FramingError> error;
};

Outcome feed(std::string_view bytes, size_t step) {
  RequestFraming framing;
  Outcome outcome;
  for (size_t i = 0; i < bytes.size() && !outcome.error; i += step) {
    outcome.error = framing.feed(bytes.substr(i, step), outcome.parsed);
  }
  return outcome;
}

int status(std::string_view bytes) {
  const Outcome whole = feed(bytes, bytes.size());
  for (const size_t step : {1u, 2u, 3u, 7u}) {
    const Outcome cut = feed(bytes, step);
    EXPECT_EQ(cut.error.has_value(), whole.error.has_value()) << step << ": " << bytes;
    if (cut.error && whole.error) {
      EXPECT_EQ(cut.error->status, whole.error->status);
      EXPECT_EQ(cut.error->message, whole.error->message);
      EXPECT_EQ(cut.error->in_body, whole.error->in_body);
    }
  }
  return whole.error ? whole.error->status : 200;
}

std::string post(std::string_view fields, std::string_view body = {}) {
  return "POST /x HTTP/1.1\r\nHost: a\r\n" + std::string(fields) + "\r\n" + std::string(body);
}

TEST(RequestFraming, PassesGoodRequestsOnInCanonicalForm) {
  const std::string get = "GET /a?b=c HTTP/1.1\r\nHost: x\r\nAccept:\t */* \r\n\r\n";
  EXPECT_EQ(feed(get, get.size()).parsed, "GET /a?b=c HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n");
  EXPECT_EQ(status("\r\n\r\n" + get), 200);
  const std::string length = post("Content-Length: 5\r\n", "hello");
  EXPECT_EQ(feed(length + get, 1).parsed, length + "GET /a?b=c HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n");
  EXPECT_EQ(feed("GET / HTTP/1.0\r\n\r\n", 1).parsed, "GET / HTTP/1.0\r\n\r\n");
}

TEST(RequestFraming, RequestsCanBeTakenOneByOne) {
  const std::string get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n", length = post("Content-Length: 5\r\n", "hello");
  const std::string chunked = post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n");
  const std::string all = get + length + chunked + get.substr(0, 9);
  std::string_view rest = all;
  RequestFraming framing;
  for (const std::string& request : {get, length, chunked}) {
    EXPECT_TRUE(framing.is_between_requests());
    std::string parsed;
    ASSERT_FALSE(framing.feed_request(rest, parsed));
    EXPECT_EQ(parsed, request);
  }
  std::string parsed;
  ASSERT_FALSE(framing.feed_request(rest, parsed));
  EXPECT_TRUE(rest.empty() && parsed.empty());
  ASSERT_FALSE(framing.feed(get.substr(9), parsed));
  EXPECT_EQ(parsed, get);
  std::string_view bad = "GET / HTTP/1.1\nHost: a\r\n\r\n";
  EXPECT_TRUE(framing.feed_request(bad, parsed));
  EXPECT_TRUE(bad.empty()) << "nothing behind an error is a request";
}

TEST(RequestFraming, ChunksAreHandedOverAsTheyArriveWithoutExtensionsAndTrailers) {
  const std::string head = post("Transfer-Encoding: Chunked\r\n");
  const std::string canonical = post("Transfer-Encoding: chunked\r\n");
  const std::string body = "00A;name=\"v\"\r\n0123456789\r\n2\r\nab\r\n000;last\r\nChecksum: 1\r\nX: 2\r\n\r\n";
  EXPECT_EQ(feed(head + body, 4096).parsed, canonical + "a\r\n0123456789\r\n2\r\nab\r\n0\r\n\r\n");
  RequestFraming framing;
  std::string parsed;
  ASSERT_FALSE(framing.feed(head + "40000000\r\nabc", parsed));  // a gibibyte is announced, three bytes came
  EXPECT_EQ(parsed, canonical + "3\r\nabc\r\n");
  EXPECT_EQ(framing.held_bytes(), 0u);
}

TEST(RequestFraming, EverySplitGivesTheSameRequest) {
  const std::string bytes =
      post("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n") + post("Content-Length: 2\r\n", "ok");
  for (size_t step = 1; step < bytes.size(); ++step) {
    Outcome outcome = feed(bytes, step);
    ASSERT_FALSE(outcome.error) << step;
    // Parts of a chunk become chunks: put them together again.
    const size_t begin = outcome.parsed.find("\r\n\r\n") + 4;
    std::string text;
    size_t at = begin;
    while (true) {
      const size_t size = std::stoul(outcome.parsed.substr(at), nullptr, 16);
      at = outcome.parsed.find("\r\n", at) + 2;
      text += outcome.parsed.substr(at, size);
      at += size + 2;
      if (size == 0) break;
    }
    EXPECT_EQ(text, "hello") << step;
    EXPECT_EQ(outcome.parsed.substr(at), post("Content-Length: 2\r\n", "ok")) << step;
  }
}

TEST(RequestFraming, RefusesWhatTwoParsersCouldReadInTwoWays) {
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  struct Case {
    const char* name;
    std::string bytes;
    int status;
  };
  const Case cases[] = {
      {"length and chunks", post("Content-Length: 5\r\n" + chunked, "0\r\n\r\n"), 400},
      {"chunks and length", post(chunked + "Content-Length: 5\r\n", "0\r\n\r\n"), 400},
      {"two lengths", post("Content-Length: 5\r\nContent-Length: 6\r\n", "hello"), 400},
      {"the same length twice", post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), 400},
      {"a list of lengths", post("Content-Length: 5, 5\r\n", "hello"), 400},
      {"space before the colon", post("Content-Length : 5\r\n", "hello"), 400},
      {"tab before the colon", post("Transfer-Encoding\t: chunked\r\n", "0\r\n\r\n"), 400},
      {"hex length", post("Content-Length: 0x5\r\n", "hello"), 400},
      {"signed length", post("Content-Length: +5\r\n", "hello"), 400},
      {"negative length", post("Content-Length: -5\r\n", "hello"), 400},
      {"empty length", post("Content-Length:\r\n", "hello"), 400},
      {"enormous length", post("Content-Length: 99999999999999999999\r\n", "hello"), 400},
      {"folded field", post("X: a\r\n b\r\n"), 400},
      {"folded encoding", post("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n"), 501},
      {"line without a colon", post("X\r\n"), 400},
      {"field without a name", post(": x\r\n"), 400},
      {"two encodings", post(chunked + chunked, "0\r\n\r\n"), 400},
      {"another encoding", post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 501},
      {"quoted encoding", post("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n"), 501},
      {"vertical tab in an encoding",
       post("Transfer-Encoding: \x0b"
            "chunked\r\n",
            "0\r\n\r\n"),
       400},
      {"chunks in HTTP/1.0", "POST /x HTTP/1.0\r\n" + chunked + "\r\n0\r\n\r\n", 400},
      {"empty chunk size", post(chunked, "\r\n"), 400},
      {"chunk size in words", post(chunked, "xyz\r\n"), 400},
      {"chunk size with a sign", post(chunked, "-2\r\nXX"), 400},
      {"chunk size with a prefix", post(chunked, "0x2\r\nab\r\n"), 400},
      {"chunk size with a space", post(chunked, "2 \r\nab\r\n"), 400},
      {"chunk size that wraps", post(chunked, "fffffffffffffffe\r\nab"), 400},
      {"chunk line without CR", post(chunked, "2\nab\r\n"), 400},
      {"chunk longer than said", post(chunked, "2\r\nabc\r\n"), 400},
      {"chunk ended by LF", post(chunked, "2\r\nab\n0\r\n\r\n"), 400},
      {"endless chunk extension", post(chunked, "2;" + std::string(300, 'x') + "\r\nab\r\n"), 400},
      {"trailer without a colon", post(chunked, "0\r\nevil\r\n\r\n"), 400},
      {"bare LF", "GET / HTTP/1.1\nHost: a\n\n", 400},
      {"bare CR in a field", post("X: a\rb\r\n"), 400},
      {"NUL in a field", post(std::string("X: a\0b\r\n", 8)), 400},
      {"no host", "GET / HTTP/1.1\r\n\r\n", 400},
      {"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"no version", "GET /\r\n\r\n", 400},
      {"space in the target", "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"control character in the target", "GET /a\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"another version", "GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
      {"long method", std::string(33, 'B') + " / HTTP/1.1\r\nHost: a\r\n\r\n", 501},
      {"unknown expectation", post("Expect: miracle\r\nContent-Length: 1\r\n", "a"), 417},
      {"a TLS hello", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", 13), 400},
  };
  for (const Case& c : cases) EXPECT_EQ(status(c.bytes), c.status) << c.name;
}

TEST(RequestFraming, MethodsThatTheLibraryRefusesComeUnderAnAlias) {
  for (const std::string method : {"TRACE", "QUERY", "PROPFIND", "get", "BREW"}) {
    const std::string rest = " /a HTTP/1.1\r\nHost: a\r\nx-bam-method: GET\r\n\r\n";
    EXPECT_EQ(feed(method + rest, 1).parsed, "PROPFIND /a HTTP/1.1\r\nx-bam-method: " + method + "\r\nHost: a\r\n\r\n");
  }
}

TEST(RequestFraming, HeadsAreBounded) {
  std::string lines;
  for (size_t i = 0; i < RequestFraming::kMaxHeadLines - 2; ++i) lines += "X: 1\r\n";
  EXPECT_EQ(status(post(lines)), 200);
  EXPECT_EQ(status(post(lines + "X: 1\r\n")), 431);
  EXPECT_EQ(status(post("X: " + std::string(60'000, 'x') + "\r\n")), 200);
  EXPECT_EQ(status(post("X: " + std::string(70'000, 'x'))), 431);
  EXPECT_EQ(status("GET /" + std::string(70'000, 'x')), 414);
  RequestFraming framing;
  std::string parsed, piece(4096, 'x');
  std::optional<FramingError> error = framing.feed("GET / HTTP/1.1\r\nX: ", parsed);
  for (int i = 0; i < 1000 && !error; ++i) {
    error = framing.feed(piece, parsed);
    EXPECT_LE(framing.held_bytes(), RequestFraming::kMaxHeadBytes + 64);
  }
  EXPECT_TRUE(error);
  EXPECT_EQ(parsed, "");
}

TEST(RequestFraming, ErrorsSayWhetherARequestIsOpen) {
  EXPECT_FALSE(feed("GET / HTTP/1.1\nHost: a\n\n", 99).error->in_body);
  EXPECT_FALSE(feed(post("Content-Length: 2\r\n", "okGET\r\n"), 99).error->in_body);
  EXPECT_TRUE(feed(post("Transfer-Encoding: chunked\r\n", "-2\r\n"), 99).error->in_body);
}

TEST(RequestFraming, NothingFollowsARequestThatCloses) {
  // The library knows one spelling only, and would keep a connection that nobody reads any more.
  const std::string close = post("Content-Length: 2\r\nConnection: close\r\n", "ok");
  const std::string asked = post("Connection: foo, Close\r\nContent-Length: 2\r\n", "ok");
  EXPECT_EQ(feed(asked + "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n", 5).parsed, close);
  const std::string old = "GET / HTTP/1.0\r\n\r\n", kept = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
  EXPECT_EQ(feed(old + old, 5).parsed, old);
  EXPECT_EQ(feed(kept + old, 5).parsed, kept + old);
}

TEST(RequestFraming, ExpectationsBecomeAMark) {
  EXPECT_EQ(feed(post("Expect: 100-Continue\r\nContent-Length: 1\r\n"), 999).parsed,
            post("Content-Length: 1\r\nx-bam-expect: 1\r\n"));
  EXPECT_EQ(feed(post("Expect: 100-continue\r\n"), 999).parsed, post(""));
  EXPECT_EQ(feed(post("X-Bam-Expect: 1\r\nUpgrade: websocket\r\n"), 999).parsed, post(""));
}

}  // namespace
}  // namespace bam
