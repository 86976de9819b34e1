#include "server/jinja/text.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"

namespace bam::jinja {
namespace {

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_letter(char c) { return is_lower(c) || is_upper(c) || (c & 0x80) != 0; }
char to_lower(char c) { return is_upper(c) ? static_cast<char>(c + 32) : c; }
char to_upper(char c) { return is_lower(c) ? static_cast<char>(c - 32) : c; }

// str.isspace
bool is_space(char32_t c) {
  return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

// The last character of a text that is not empty.
std::string_view last_character(std::string_view text) {
  size_t start = text.size() - 1;
  while (start > 0 && text.size() - start < 4 && (text[start] & 0xC0) == 0x80) --start;
  const Utf8Step step = next_utf8(text.substr(start));
  const bool whole = step.kind == Utf8Step::Kind::kValid && start + step.length == text.size();
  return text.substr(whole ? start : text.size() - 1);
}

char32_t codepoint(std::string_view character) {
  const Utf8Step step = next_utf8(character);
  return step.kind == Utf8Step::Kind::kValid ? step.code_point : 0xFFFD;
}

std::vector<std::string> split_blanks(std::string_view text, int64_t max_splits, bool from_right) {
  std::vector<std::string> parts;
  const Side near = from_right ? Side::kRight : Side::kLeft;
  text = strip(text, near);
  while (!text.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.emplace_back(text);
      break;
    }
    size_t size = 0;  // of the next word
    while (size < text.size()) {
      const std::string_view c = from_right ? last_character(text.substr(0, text.size() - size))
                                            : text.substr(size, next_utf8(text.substr(size)).length);
      if (is_space(codepoint(c))) break;
      size += c.size();
    }
    parts.emplace_back(from_right ? text.substr(text.size() - size) : text.substr(0, size));
    text = from_right ? text.substr(0, text.size() - size) : text.substr(size);
    text = strip(text, near);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

int64_t text_length(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::vector<size_t> codepoint_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((text[i] & 0xC0) != 0x80) offsets.push_back(i);
  }
  offsets.push_back(text.size());
  return offsets;
}

std::string_view strip(std::string_view text, Side side, const std::optional<std::string>& chars) {
  auto stripped = [&](std::string_view character) {
    return chars ? chars->find(character) != std::string::npos : is_space(codepoint(character));
  };
  while (side != Side::kRight && !text.empty()) {
    const std::string_view first = text.substr(0, next_utf8(text).length);
    if (!stripped(first)) break;
    text.remove_prefix(first.size());
  }
  while (side != Side::kLeft && !text.empty()) {
    const std::string_view last = last_character(text);
    if (!stripped(last)) break;
    text.remove_suffix(last.size());
  }
  return text;
}

std::string upper(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), to_upper);
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), to_lower);
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out = lower(text);
  if (!out.empty()) out[0] = to_upper(out[0]);
  return out;
}

std::string title(std::string_view text) {
  std::string out(text);
  bool after_letter = false;
  for (char& c : out) {
    c = after_letter ? to_lower(c) : to_upper(c);
    after_letter = is_letter(c);
  }
  return out;
}

std::string title_filter(std::string_view text) {
  std::string out(text);
  bool starts_word = true;
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = starts_word ? to_upper(out[i]) : to_lower(out[i]);
    starts_word = out[i] == '-' || out[i] == '(' || out[i] == '{' || out[i] == '[' || out[i] == '<' ||
                  (static_cast<uint8_t>(out[i]) < 0x80 && is_space(static_cast<char32_t>(out[i])));
  }
  return out;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to, int64_t count) {
  std::string out;
  if (from.empty()) {  // Python puts `to` around every character
    const auto offsets = codepoint_offsets(text);
    for (size_t i = 0; i < offsets.size(); ++i) {
      if (count < 0 || static_cast<int64_t>(i) < count) out += to;
      if (i + 1 < offsets.size()) out += text.substr(offsets[i], offsets[i + 1] - offsets[i]);
    }
    return out;
  }
  size_t pos = 0;
  for (; count != 0; --count) {
    const size_t hit = text.find(from, pos);
    if (hit == std::string_view::npos) break;
    out += text.substr(pos, hit - pos);
    out += to;
    pos = hit + from.size();
  }
  out += text.substr(pos);
  return out;
}

std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator, int64_t max_splits,
                               bool from_right) {
  if (!separator) return split_blanks(text, max_splits, from_right);
  if (separator->empty()) throw Error("empty separator");
  std::vector<std::string> parts;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t hit = from_right ? text.rfind(*separator) : text.find(*separator);
    if (hit == std::string_view::npos) break;
    const size_t behind = hit + separator->size();
    parts.emplace_back(from_right ? text.substr(behind) : text.substr(0, hit));
    text = from_right ? text.substr(0, hit) : text.substr(behind);
  }
  parts.emplace_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  size_t start = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = next_utf8(text.substr(i));
    size_t next = i + step.length;
    if (step.kind == Utf8Step::Kind::kValid && is_line_end(step.code_point)) {
      lines.emplace_back(text.substr(start, i - start));
      if (step.code_point == '\r' && next < text.size() && text[next] == '\n') ++next;
      start = next;
    }
    i = next;
  }
  if (start < text.size()) lines.emplace_back(text.substr(start));
  return lines;
}

}  // namespace bam::jinja
