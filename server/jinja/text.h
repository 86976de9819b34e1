// Python's string methods on UTF-8. Lengths and positions count code points. Case changes are for ASCII letters only:
// templates use them on roles and keywords.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bam::jinja {

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
int64_t text_length(std::string_view text);
// Byte offsets of every code point, plus the end.
std::vector<size_t> codepoint_offsets(std::string_view text);

enum class Side { kLeft, kRight, kBoth };
// Without `chars`: whitespace as Python knows it.
std::string_view strip(std::string_view text, Side side, const std::optional<std::string>& chars = {});
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);    // str.capitalize
std::string title(std::string_view text);         // str.title: letters after anything but a letter
std::string title_filter(std::string_view text);  // the filter: letters after blanks and some punctuation
// count < 0: all.
std::string replace(std::string_view text, std::string_view from, std::string_view to, int64_t count);
std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator, int64_t max_splits,
                               bool from_right);
std::vector<std::string> split_lines(std::string_view text);

}  // namespace bam::jinja
