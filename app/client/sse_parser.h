#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace bam::client {

// Server-sent events from a byte stream cut anywhere. Lines end in LF, CRLF or CR; several data lines of one event
// are joined by LF; comments (": ping") and other fields are skipped.
class SseParser {
 public:
  using OnEvent = std::function<void(std::string_view data)>;
  // Calls on_event for every event that these bytes complete.
  void feed(std::string_view bytes, const OnEvent& on_event);
  // The connection closed: an event without its empty line is still delivered, as some servers omit the last one.
  void finish(const OnEvent& on_event);

  size_t num_comments() const { return num_comments_; }
  // Bytes of the unfinished line and event; the caller limits what it accepts.
  size_t buffered_bytes() const { return line_.size() + data_.size(); }

 private:
  void end_line(std::string_view line, const OnEvent& on_event);
  void end_event(const OnEvent& on_event);

  std::string line_;  // start of a line whose end has not arrived
  std::string data_;  // data lines of the current event
  bool has_data_ = false;
  bool skip_lf_ = false;  // the last line ended in CR: an LF that follows belongs to it
  bool at_start_ = true;
  size_t num_comments_ = 0;
};

}  // namespace bam::client
