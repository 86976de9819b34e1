// Bytes of a connection, from anybody. However they are cut: accepted or refused alike, and the same requests; what is
// passed on is canonical (sent again it comes out unchanged), is not longer than its input allows, and little is held back.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/request_framing.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

struct Outcome {
  std::string parsed;
  std::optional<bam::FramingError> error;
};

// `cut`: 0 is one piece, else the lengths of the pieces follow from it.
Outcome feed(std::string_view bytes, uint32_t cut) {
  bam::RequestFraming framing;
  Outcome outcome;
  while (!bytes.empty() && !outcome.error) {
    cut = cut * 1664525 + (cut ? 1013904223 : 0);
    const size_t size = cut ? std::min<size_t>(bytes.size(), 1 + (cut >> 20) % 37) : bytes.size();
    outcome.error = framing.feed(bytes.substr(0, size), outcome.parsed);
    bytes.remove_prefix(size);
    require(framing.held_bytes() <= 2 * bam::RequestFraming::kMaxHeadBytes + 256);
  }
  return outcome;
}

// A head as a client sends it: methods that the library would refuse have their own name.
std::string sent_head(std::string_view head) {
  using bam::RequestFraming;
  if (!head.starts_with(std::string(RequestFraming::kMethodAlias) + " ")) return std::string(head);
  const size_t line = head.find("\r\n") + 2;
  const std::string mark = std::string(RequestFraming::kMethodMark) + ": ";
  require(head.substr(line).starts_with(mark));
  const size_t end = head.find("\r\n", line);
  const std::string_view method = head.substr(line + mark.size(), end - line - mark.size());
  require(!method.empty() && method.size() <= RequestFraming::kMaxMethodBytes);
  return std::string(method)
      .append(head.substr(RequestFraming::kMethodAlias.size(), line - RequestFraming::kMethodAlias.size()))
      .append(head.substr(end + 2));
}

// Joins neighbouring chunks, whose cuts are those of the network. `sent` gets the same requests as clients send them.
std::string without_cuts(std::string_view parsed, std::string* sent = nullptr) {
  std::string out;
  const auto send = [sent](std::string_view bytes) {
    if (sent) sent->append(bytes);
  };
  while (!parsed.empty()) {
    const size_t end = parsed.find("\r\n\r\n");
    require(end != std::string_view::npos);
    std::string_view head = parsed.substr(0, end + 4);
    parsed.remove_prefix(end + 4);
    for (size_t i = 0; i < head.size(); ++i) {
      require(head[i] != '\0');
      if (head[i] == '\n') require(i > 0 && head[i - 1] == '\r');
      if (head[i] == '\r') require(i + 1 < head.size() && head[i + 1] == '\n');
    }
    out += head;
    send(sent_head(head));
    std::string fields(head);
    std::transform(fields.begin(), fields.end(), fields.begin(), [](unsigned char c) { return std::tolower(c); });
    const size_t length = fields.find("\r\ncontent-length: ");
    const bool chunked = fields.find("\r\ntransfer-encoding: chunked\r\n") != std::string::npos;
    require(!chunked || length == std::string::npos);
    if (length != std::string::npos) {
      const size_t size = std::min<size_t>(std::strtoull(fields.c_str() + length + 18, nullptr, 10), parsed.size());
      out += parsed.substr(0, size);
      send(parsed.substr(0, size));
      parsed.remove_prefix(size);
    }
    while (chunked && !parsed.empty()) {
      const size_t line = parsed.find("\r\n");
      require(line != std::string_view::npos && line > 0 && line <= 16);
      const size_t size = std::strtoull(std::string(parsed.substr(0, line)).c_str(), nullptr, 16);
      require(parsed.size() >= line + 4 + size && parsed.substr(line + 2 + size, 2) == "\r\n");
      out += parsed.substr(line + 2, size);
      send(parsed.substr(0, line + 4 + size));
      parsed.remove_prefix(line + 4 + size);
      if (size == 0) {
        out += "<end>";
        break;
      }
    }
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome whole = feed(bytes, 0);
  const Outcome cut = feed(bytes, data[0] + 1u);
  require(whole.error.has_value() == cut.error.has_value());
  // Of two faults in one line (too long, and a bare CR) the cut decides which is named.
  for (const Outcome* outcome : {&whole, &cut}) {
    if (outcome->error)
      require(outcome->error->status >= 400 && outcome->error->status < 600 && !outcome->error->message.empty());
  }
  std::string sent;
  require(without_cuts(whole.parsed, &sent) == without_cuts(cut.parsed));
  require(whole.parsed.size() <= 3 * bytes.size() + 64);
  const Outcome again = feed(sent, 0);
  require(!again.error && again.parsed == whole.parsed);
  return 0;
}
