#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace bam {

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

struct Utf8Step {
  enum class Kind {
    kValid,       // a whole, well-formed character
    kInvalid,     // a maximal ill-formed subpart: one U+FFFD stands for it
    kIncomplete,  // the text ends inside a character that is well-formed so far
  };
  Kind kind;
  size_t length;        // bytes consumed, at least 1
  char32_t code_point;  // of a valid character
};

// Looks at the front of `text`, which must not be empty. Rejects overlong forms, surrogates and values past U+10FFFF.
Utf8Step next_utf8(std::string_view text);

bool is_valid_utf8(std::string_view text);

// Appends the characters of `text` to `out`, each maximal ill-formed subpart as one U+FFFD. A character cut off by the
// end of `text` is not appended; the return value is its number of bytes so far (0 to 3), to be put before the next
// text.
size_t append_utf8(std::string_view text, std::string& out);

// The whole of `text`; a cut-off character at the end becomes U+FFFD too.
std::string sanitize_utf8(std::string_view text);

// For one-line messages: valid UTF-8, control characters escaped, at most about `max_bytes` followed by "...".
std::string printable(std::string_view text, size_t max_bytes = 120);

// Letters outside of ASCII stay as they are.
std::string ascii_lower(std::string_view text);

}  // namespace bam
