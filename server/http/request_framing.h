// Where a request begins and ends on the wire, by RFC 9112 and nothing looser. Every byte of every connection passes
// here before the HTTP library sees it, so that what two parsers could read in two ways is refused and never executed,
// and what the library would buffer without a bound (heads, unfinished chunks) never reaches it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace bam {

// Why the bytes of a connection are not a request. The connection cannot be used any more.
struct FramingError {
  int status = 400;
  std::string message;
  bool in_body = false;  // the library is waiting for the rest of a chunked body: kPoison makes it give up
};

class RequestFraming {
 public:
  static constexpr size_t kMaxHeadBytes = 64 * 1024;  // request line and header fields; trailers have the same limits
  static constexpr size_t kMaxHeadLines = 100;
  static constexpr size_t kMaxChunkLineBytes = 256;  // size and extensions
  // A header field of our own, in place of `Expect: 100-continue`: the server asks for the body after it has looked at
  // the head. A client that sends it gains nothing.
  static constexpr const char* kExpectMark = "x-bam-expect";
  // Methods that the library would refuse on its own come under the name of one that it knows and no route has, with
  // their own name in a header field like the one above: what a path answers, and Allow, is for the routes to say.
  static constexpr std::string_view kMethodAlias = "PROPFIND";
  static constexpr const char* kMethodMark = "x-bam-method";
  static constexpr size_t kMaxMethodBytes = 32;

  // Takes all of `input` and appends to `parsed` what the library may see: whole heads in canonical form, body bytes as
  // they arrive (a chunk's parts as chunks of their own), no extensions, no trailers. After an error, or after a request
  // that says `Connection: close`, everything is dropped.
  std::optional<FramingError> feed(std::string_view input, std::string& parsed);
  // The same, but stops behind the end of a request: what is left in `input` belongs to later ones.
  std::optional<FramingError> feed_request(std::string_view& input, std::string& parsed);
  // No head and no body is under way.
  bool is_between_requests() const { return state_ == State::kRequestLine; }

  static constexpr std::string_view kPoison = "0\r\nXX";
  // Bytes held back until a line or a head is whole.
  size_t held_bytes() const { return line_.size() + head_.size(); }

 private:
  enum class State : uint8_t { kRequestLine, kHeader, kBody, kChunkSize, kChunkData, kChunkEnd, kTrailer, kDone };
  struct Head {
    bool http10 = false;
    bool chunked = false;
    bool closes = false;
    bool expects = false;
    int hosts = 0;
    std::optional<uint64_t> content_length;
  };

  std::optional<FramingError> take_line(std::string_view& input, bool& whole, size_t limit);
  std::optional<FramingError> on_request_line();
  std::optional<FramingError> on_header_line();
  std::optional<FramingError> on_field(std::string_view name, std::string_view value);
  std::optional<FramingError> on_head_end(std::string& parsed);
  std::optional<FramingError> on_chunk_size();
  std::optional<FramingError> on_chunk_end(std::string_view& input);
  std::optional<FramingError> on_trailer_line(std::string& parsed);
  std::optional<FramingError> step(std::string_view& input, std::string& parsed);
  void begin_request();
  void end_request();

  State state_ = State::kRequestLine;
  std::string line_;  // unfinished
  std::string head_;  // canonical lines so far
  Head fields_;
  bool ended_ = false;                      // a request, by the last step
  size_t head_bytes_ = 0, head_lines_ = 0;  // of the head or the trailers being read
  uint64_t left_ = 0;                       // of the body or the chunk
};

}  // namespace bam
