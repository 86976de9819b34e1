#include "base/utf8.h"

#include <cstdint>
#include <cstring>

#include <fmt/format.h>

namespace bam {
namespace {

// Length of the all-ASCII front of `text`, in whole words.
size_t ascii_prefix(std::string_view text) {
  size_t i = 0;
  for (; i + sizeof(uint64_t) <= text.size(); i += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, sizeof(word));
    if ((word & 0x8080808080808080u) != 0) break;
  }
  return i;
}

struct Lead {
  size_t length;                    // 0: cannot start a character
  uint8_t second_low, second_high;  // narrower than 80..BF where overlong forms and surrogates would begin
};

Lead classify(uint8_t byte) {
  if (byte >= 0xc2 && byte <= 0xdf) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte >= 0xe1 && byte <= 0xef) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte >= 0xf1 && byte <= 0xf3) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

}  // namespace

Utf8Step next_utf8(std::string_view text) {
  using Kind = Utf8Step::Kind;
  const uint8_t first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return {Kind::kValid, 1, first};
  const Lead lead = classify(first);
  if (lead.length == 0) return {Kind::kInvalid, 1, 0};
  char32_t code_point = first & (0x7fu >> lead.length);
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Kind::kIncomplete, i, 0};
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? lead.second_low : 0x80;
    const uint8_t high = i == 1 ? lead.second_high : 0xbf;
    if (byte < low || byte > high) return {Kind::kInvalid, i, 0};
    code_point = code_point << 6 | (byte & 0x3fu);
  }
  return {Kind::kValid, lead.length, code_point};
}

bool is_valid_utf8(std::string_view text) {
  while (true) {
    text.remove_prefix(ascii_prefix(text));
    if (text.empty()) return true;
    const Utf8Step step = next_utf8(text);
    if (step.kind != Utf8Step::Kind::kValid) return false;
    text.remove_prefix(step.length);
  }
}

size_t append_utf8(std::string_view text, std::string& out) {
  while (true) {
    const size_t plain = ascii_prefix(text);
    out.append(text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) return 0;
    const Utf8Step step = next_utf8(text);
    if (step.kind == Utf8Step::Kind::kIncomplete) return step.length;
    out.append(step.kind == Utf8Step::Kind::kValid ? text.substr(0, step.length) : kReplacementCharacter);
    text.remove_prefix(step.length);
  }
}

std::string sanitize_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (append_utf8(text, out) > 0) out.append(kReplacementCharacter);
  return out;
}

std::string printable(std::string_view text, size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= max_bytes) return out + "...";
    const Utf8Step step = next_utf8(text);
    if (step.kind != Utf8Step::Kind::kValid) {
      out.append(kReplacementCharacter);
    } else if (step.code_point < 0x20 || (step.code_point >= 0x7f && step.code_point < 0xa0)) {
      out.append(fmt::format("\\u{:04x}", static_cast<uint32_t>(step.code_point)));
    } else {
      out.append(text.substr(0, step.length));
    }
    text.remove_prefix(step.length);
  }
  return out;
}

std::string ascii_lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

}  // namespace bam
