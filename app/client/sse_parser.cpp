#include "app/client/sse_parser.h"

namespace bam::client {

void SseParser::feed(std::string_view bytes, const OnEvent& on_event) {
  while (!bytes.empty()) {
    if (skip_lf_) {
      skip_lf_ = false;
      if (bytes.front() == '\n') bytes.remove_prefix(1);
      continue;
    }
    const size_t end = bytes.find_first_of("\r\n");
    if (end == bytes.npos) {
      line_.append(bytes);
      return;
    }
    skip_lf_ = bytes[end] == '\r';
    if (line_.empty()) {
      end_line(bytes.substr(0, end), on_event);
    } else {
      line_.append(bytes.substr(0, end));
      const std::string line = std::move(line_);
      line_.clear();
      end_line(line, on_event);
    }
    bytes.remove_prefix(end + 1);
  }
}

void SseParser::finish(const OnEvent& on_event) {
  if (!line_.empty()) {
    const std::string line = std::move(line_);
    line_.clear();
    end_line(line, on_event);
  }
  end_event(on_event);
}

void SseParser::end_line(std::string_view line, const OnEvent& on_event) {
  if (at_start_) {
    at_start_ = false;
    if (line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
  }
  if (line.empty()) {
    end_event(on_event);
    return;
  }
  if (line.front() == ':') {
    ++num_comments_;
    return;
  }
  const size_t colon = line.find(':');
  if (line.substr(0, colon) != "data") return;
  std::string_view value = colon == line.npos ? std::string_view() : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (has_data_) data_.push_back('\n');
  data_.append(value);
  has_data_ = true;
}

void SseParser::end_event(const OnEvent& on_event) {
  if (!has_data_) return;
  has_data_ = false;
  const std::string data = std::move(data_);
  data_.clear();
  on_event(data);
}

}  // namespace bam::client
