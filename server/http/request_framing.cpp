#include "server/http/request_framing.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "base/utf8.h"

namespace bam {

namespace {

constexpr std::string_view kMethods[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"};

// RFC 9110, 5.6.2: what names of methods and fields are made of.
bool is_token_char(char c) {
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char); }

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool list_has(std::string_view list, std::string_view wanted) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (ascii_lower(trim(list.substr(0, comma))) == wanted) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

// Decimal digits and nothing else; nothing when that is not so or does not fit.
std::optional<uint64_t> parse_length(std::string_view text) {
  if (text.empty() || text.size() > 18) return std::nullopt;
  uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  return value;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

FramingError bad(std::string message) { return {400, std::move(message)}; }

}  // namespace

void RequestFraming::begin_request() {
  state_ = State::kRequestLine;
  head_.clear();
  fields_ = {};
  head_bytes_ = head_lines_ = 0;
  left_ = 0;
}

void RequestFraming::end_request() {
  ended_ = true;
  if (fields_.closes) {
    state_ = State::kDone;
  } else {
    begin_request();
  }
}

std::optional<FramingError> RequestFraming::feed(std::string_view input, std::string& parsed) {
  while (!input.empty()) {
    if (auto error = feed_request(input, parsed)) return error;
  }
  return std::nullopt;
}

std::optional<FramingError> RequestFraming::feed_request(std::string_view& input, std::string& parsed) {
  ended_ = false;
  while (!input.empty() && !ended_) {
    if (state_ == State::kDone) {
      input = {};
      return std::nullopt;
    }
    const bool in_body = state_ >= State::kBody;
    if (auto error = step(input, parsed)) {
      error->in_body = in_body;
      state_ = State::kDone;
      line_ = {};
      head_ = {};
      input = {};
      return error;
    }
  }
  return std::nullopt;
}

std::optional<FramingError> RequestFraming::step(std::string_view& input, std::string& parsed) {
  if (state_ == State::kBody || state_ == State::kChunkData) {
    const auto part = input.substr(0, static_cast<size_t>(std::min<uint64_t>(left_, input.size())));
    input.remove_prefix(part.size());
    left_ -= part.size();
    if (state_ == State::kBody) {
      parsed += part;
      if (left_ == 0) end_request();
    } else {
      fmt::format_to(std::back_inserter(parsed), "{:x}\r\n{}\r\n", part.size(), part);
      if (left_ == 0) state_ = State::kChunkEnd;
    }
    return std::nullopt;
  }
  if (state_ == State::kChunkEnd) return on_chunk_end(input);
  bool whole = false;
  const size_t limit = state_ == State::kChunkSize ? kMaxChunkLineBytes : kMaxHeadBytes - head_bytes_;
  if (auto error = take_line(input, whole, limit)) return error;
  if (!whole) return std::nullopt;
  std::optional<FramingError> error;
  if (state_ == State::kChunkSize) {
    error = on_chunk_size();
  } else {
    head_bytes_ += line_.size() + 2;
    if (++head_lines_ > kMaxHeadLines + 1) {  // the empty line that ends it is not counted
      error = FramingError{431, fmt::format("The request has more than {} header lines.", kMaxHeadLines)};
    } else if (state_ == State::kRequestLine) {
      error = on_request_line();
    } else if (state_ == State::kTrailer) {
      error = on_trailer_line(parsed);
    } else {
      error = line_.empty() ? on_head_end(parsed) : on_header_line();
    }
  }
  line_.clear();
  return error;
}

// Moves bytes to line_ until CRLF. A line ends by both bytes or not at all: what takes a lone LF for an end, or a lone
// CR for a character, disagrees with its neighbours about where a request ends.
std::optional<FramingError> RequestFraming::take_line(std::string_view& input, bool& whole, size_t limit) {
  const size_t end = input.find('\n');
  std::string_view part = input.substr(0, end);  // all of it when there is none
  line_ += part.substr(0, limit + 2 > line_.size() ? limit + 2 - line_.size() : 0);
  input.remove_prefix(end == std::string_view::npos ? input.size() : end + 1);
  if (line_.size() > limit + 1) {
    if (state_ == State::kChunkSize) return bad("A chunk's size line is too long.");
    return FramingError{state_ == State::kRequestLine ? 414 : 431,
                        fmt::format("The request's head is larger than {} bytes.", kMaxHeadBytes)};
  }
  // A CR is good at the very end of a line only; the last one may wait for its LF.
  const size_t cr = line_.find('\r');
  if (cr != std::string::npos && cr + 1 != line_.size()) return bad("A line of the request has a CR without LF.");
  if (end == std::string_view::npos) return std::nullopt;
  if (cr == std::string::npos) return bad("A line of the request ends with LF without CR.");
  line_.pop_back();
  whole = true;
  return std::nullopt;
}

std::optional<FramingError> RequestFraming::on_request_line() {
  if (line_.empty()) return std::nullopt;  // RFC 9112, 2.2: empty lines before a request are skipped; they count
  const std::string_view line = line_;
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return bad("The request line is malformed.");
  const std::string_view method = line.substr(0, first), target = line.substr(first + 1, last - first - 1),
                         version = line.substr(last + 1);
  if (!is_token(method) || target.empty() ||
      std::any_of(target.begin(), target.end(), [](char c) { return is_control(c) || c == ' '; })) {
    return bad("The request line is malformed.");
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    if (version.size() == 8 && version.starts_with("HTTP/")) {
      return FramingError{505, "This server speaks HTTP/1.1 and HTTP/1.0."};
    }
    return bad("The request line is malformed.");
  }
  if (method.size() > kMaxMethodBytes) return FramingError{501, "The name of the method is too long."};
  fields_.http10 = version == "HTTP/1.0";
  fields_.closes = fields_.http10;
  const bool known = std::find(std::begin(kMethods), std::end(kMethods), method) != std::end(kMethods);
  head_.append(known ? method : kMethodAlias).append(line.substr(first)).append("\r\n");
  if (!known) head_.append(kMethodMark).append(": ").append(method).append("\r\n");
  state_ = State::kHeader;
  return std::nullopt;
}

std::optional<FramingError> RequestFraming::on_header_line() {
  const std::string_view line = line_;
  if (line.front() == ' ' || line.front() == '\t') return bad("A header field is folded over two lines.");
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return bad("A header line has no colon.");
  const std::string_view name = line.substr(0, colon), value = trim(line.substr(colon + 1));
  if (!is_token(name)) return bad("The name of a header field is malformed.");
  if (std::any_of(value.begin(), value.end(), [](char c) { return is_control(c) && c != '\t'; })) {
    return bad("A header field has a control character.");
  }
  return on_field(name, value);
}

std::optional<FramingError> RequestFraming::on_field(std::string_view name, std::string_view value) {
  const std::string key = ascii_lower(name);
  if (key == "content-length") {
    if (fields_.content_length) return bad("The request has two Content-Length fields.");
    fields_.content_length = parse_length(value);
    if (!fields_.content_length) return bad("Content-Length is not a number.");
  } else if (key == "transfer-encoding") {
    if (fields_.chunked) return bad("The request has two Transfer-Encoding fields.");
    if (ascii_lower(value) != "chunked") {
      return FramingError{501, "The only Transfer-Encoding that this server knows is 'chunked'."};
    }
    fields_.chunked = true;
    value = "chunked";
  } else if (key == "host") {
    if (++fields_.hosts > 1) return bad("The request has two Host fields.");
  } else if (key == "connection") {
    if (list_has(value, "close")) {
      fields_.closes = true;
    } else if (fields_.http10 && list_has(value, "keep-alive")) {
      fields_.closes = false;
    }
    return std::nullopt;  // on_head_end() says it in the one spelling that the library knows
  } else if (key == "expect") {
    if (ascii_lower(value) != "100-continue") return FramingError{417, "The only expectation known is 100-continue."};
    fields_.expects = true;
    return std::nullopt;
  } else if (key == "upgrade" || key == "trailer" || key == kExpectMark || key == kMethodMark) {
    return std::nullopt;  // connections are never upgraded, trailers never looked at
  }
  head_.append(name).append(": ").append(value).append("\r\n");
  return std::nullopt;
}

std::optional<FramingError> RequestFraming::on_head_end(std::string& parsed) {
  if (fields_.chunked && fields_.content_length) {
    return bad("The request has both Content-Length and Transfer-Encoding.");
  }
  if (fields_.chunked && fields_.http10) return bad("HTTP/1.0 has no Transfer-Encoding.");
  if (!fields_.http10 && fields_.hosts == 0) return bad("The request has no Host field.");
  const bool has_body = fields_.chunked || fields_.content_length.value_or(0) > 0;
  if (fields_.expects && has_body && !fields_.http10) head_.append(kExpectMark).append(": 1\r\n");
  if (fields_.closes != fields_.http10)
    head_.append(fields_.closes ? "Connection: close\r\n" : "Connection: keep-alive\r\n");
  parsed.append(head_).append("\r\n");
  head_.clear();
  head_bytes_ = head_lines_ = 0;
  left_ = fields_.content_length.value_or(0);
  if (fields_.chunked) {
    state_ = State::kChunkSize;
  } else if (left_ > 0) {
    state_ = State::kBody;
  } else {
    end_request();
  }
  return std::nullopt;
}

std::optional<FramingError> RequestFraming::on_chunk_size() {
  size_t digits = 0;
  uint64_t size = 0;
  for (; digits < line_.size() && hex_digit(line_[digits]) >= 0; ++digits) {
    if (digits == 15) return bad("A chunk's size is too large.");
    size = size * 16 + static_cast<uint64_t>(hex_digit(line_[digits]));
  }
  const std::string_view rest = std::string_view(line_).substr(digits);
  if (digits == 0 || (!rest.empty() && rest.front() != ';')) return bad("A chunk's size is not a number.");
  if (std::any_of(rest.begin(), rest.end(), [](char c) { return is_control(c) && c != '\t'; })) {
    return bad("A chunk's size line has a control character.");
  }
  left_ = size;
  state_ = size > 0 ? State::kChunkData : State::kTrailer;
  return std::nullopt;
}

std::optional<FramingError> RequestFraming::on_chunk_end(std::string_view& input) {
  // line_ holds a CR that has come without its LF so far.
  const char wanted = line_.empty() ? '\r' : '\n';
  if (input.front() != wanted) return bad("A chunk is longer than it said.");
  input.remove_prefix(1);
  if (line_.empty()) {
    line_ = "\r";
  } else {
    line_.clear();
    state_ = State::kChunkSize;
  }
  return std::nullopt;
}

std::optional<FramingError> RequestFraming::on_trailer_line(std::string& parsed) {
  if (!line_.empty()) {
    const size_t colon = line_.find(':');
    if (colon == std::string::npos || !is_token(std::string_view(line_).substr(0, colon))) {
      return bad("A trailer field is malformed.");
    }
    return std::nullopt;
  }
  parsed += "0\r\n\r\n";
  end_request();
  return std::nullopt;
}

}  // namespace bam
