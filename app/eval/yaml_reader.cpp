#include "app/eval/yaml_reader.h"

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace bam::eval {
namespace {

struct Line {
  int number;
  size_t indent;
  std::string text;  // without its indentation and line end
};

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t") == text.npos; }

std::string_view trim_end(std::string_view text) {
  const size_t end = text.find_last_not_of(" \t");
  return end == text.npos ? std::string_view() : text.substr(0, end + 1);
}

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  return begin == text.npos ? std::string_view() : trim_end(text.substr(begin));
}

bool all_digits(std::string_view text) { return !text.empty() && text.find_first_not_of("0123456789") == text.npos; }

// As PyYAML resolves a plain scalar.
Json plain(std::string_view text) {
  for (const std::string_view word : {"", "~", "null", "Null", "NULL"}) {
    if (text == word) return nullptr;
  }
  for (const std::string_view word : {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"}) {
    if (text == word) return true;
  }
  for (const std::string_view word : {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"}) {
    if (text == word) return false;
  }
  std::string_view number = text;
  if (number.starts_with('+') || number.starts_with('-')) number.remove_prefix(1);
  const size_t point = number.find('.');
  if (all_digits(number)) {
    int64_t value = 0;
    const std::string_view from = text.starts_with('+') ? text.substr(1) : text;
    if (std::from_chars(from.data(), from.data() + from.size(), value).ec == std::errc()) return value;
  } else if (point != number.npos && all_digits(std::string(number.substr(0, point)) + "0")) {
    const size_t exponent = number.find_first_of("eE");
    const std::string_view fraction =
        number.substr(point + 1, exponent == number.npos ? number.npos : exponent - point - 1);
    const bool digits = fraction.empty() ? point > 0 : all_digits(fraction);
    // 1e5 is a text there, and so is 1.0e5: the exponent needs its sign.
    const std::string_view power = exponent == number.npos ? "+0" : number.substr(exponent + 1);
    if (digits && power.size() > 1 && (power[0] == '+' || power[0] == '-') && all_digits(power.substr(1))) {
      return std::stod(std::string(text));
    }
  }
  return std::string(text);
}

class Reader {
 public:
  explicit Reader(std::string_view text) {
    for (int number = 1; !text.empty(); ++number) {
      const size_t end = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);
      const size_t indent = std::min(line.find_first_not_of(' '), line.size());
      lines_.push_back({number, indent, std::string(line.substr(indent))});
    }
  }

  Json run() {
    if (skip_blank() && lines_[at_].text == "---") ++at_;
    if (!skip_blank()) return nullptr;
    Json value = block(lines_[at_].indent);
    if (skip_blank()) fail("something stands outside of the document's map");
    return value;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw UsageError("YAML, line {}: {}", lines_.empty() ? 0 : lines_[std::min(at_, lines_.size() - 1)].number, what);
  }

  // False: nothing is left.
  bool skip_blank() {
    while (at_ < lines_.size() && (is_blank(lines_[at_].text) || lines_[at_].text.starts_with('#'))) ++at_;
    if (at_ < lines_.size() && lines_[at_].text.starts_with('\t')) fail("a tab indents");
    return at_ < lines_.size();
  }

  static bool is_item(std::string_view text) { return text == "-" || text.starts_with("- "); }

  Json block(size_t indent) {
    if (is_item(lines_[at_].text)) return list(indent);
    if (find_colon(lines_[at_].text)) return map(indent);
    std::string rest = lines_[at_++].text;
    return inline_value(std::move(rest), indent == 0 ? 0 : indent - 1);
  }

  Json list(size_t indent) {
    Json items = Json::array();
    while (skip_blank() && lines_[at_].indent == indent && is_item(lines_[at_].text)) {
      Line& line = lines_[at_];
      const size_t begin = line.text.find_first_not_of(' ', 1);
      if (begin == line.text.npos || line.text[begin] == '#') {
        ++at_;
        items.push_back(nested(indent, false));
        continue;
      }
      // What follows the dash is a block of its own, further in.
      const std::string rest = line.text.substr(begin);
      if (is_item(rest) || find_colon(rest)) {
        line.indent = indent + begin;
        line.text = rest;
        items.push_back(block(line.indent));
      } else {
        ++at_;
        items.push_back(inline_value(rest, indent));
      }
    }
    if (at_ < lines_.size() && skip_blank() && lines_[at_].indent > indent) fail("indented where a list goes on");
    return items;
  }

  Json map(size_t indent) {
    Json members = Json::object();
    while (skip_blank() && lines_[at_].indent == indent && !is_item(lines_[at_].text)) {
      const std::string text = lines_[at_].text;
      const auto colon = find_colon(text);
      if (!colon) fail("a key with a colon is expected");
      std::string key(trim(std::string_view(text).substr(0, *colon)));
      if (key.starts_with('"') || key.starts_with('\'')) key = quoted(key).get<std::string>();
      if (members.contains(key)) fail("the key '" + key + "' stands twice");
      std::string rest(trim(std::string_view(text).substr(*colon + 1)));
      ++at_;
      members[key] =
          rest.empty() || rest.starts_with('#') ? nested(indent, true) : inline_value(std::move(rest), indent);
    }
    if (at_ < lines_.size() && skip_blank() && lines_[at_].indent > indent) fail("indented where a map goes on");
    return members;
  }

  // The block behind "key:" or "-"; a list may stand as far out as its key.
  Json nested(size_t indent, bool list_may_align) {
    if (!skip_blank()) return nullptr;
    const Line& line = lines_[at_];
    if (line.indent > indent || (list_may_align && line.indent == indent && is_item(line.text)))
      return block(line.indent);
    return nullptr;
  }

  // The colon behind a key, outside of quotes and flow brackets.
  static std::optional<size_t> find_colon(std::string_view text) {
    if (text.starts_with('"') || text.starts_with('\'')) {
      const size_t end = end_of_quotes(text);
      if (end == text.npos) return std::nullopt;
      const size_t colon = text.find_first_not_of(' ', end);
      const bool key = colon != text.npos && text[colon] == ':' && (colon + 1 == text.size() || text[colon + 1] == ' ');
      return key ? std::optional(colon) : std::nullopt;
    }
    if (text.starts_with('[') || text.starts_with('{')) return std::nullopt;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '#' && i > 0 && text[i - 1] == ' ') return std::nullopt;
      if (text[i] == ':' && (i + 1 == text.size() || text[i + 1] == ' ')) return i;
    }
    return std::nullopt;
  }

  // Behind the closing quote; npos: it is not there.
  static size_t end_of_quotes(std::string_view text) {
    const char quote = text[0];
    for (size_t i = 1; i < text.size(); ++i) {
      if (quote == '"' && text[i] == '\\') {
        ++i;
      } else if (text[i] == quote) {
        if (quote == '\'' && i + 1 < text.size() && text[i + 1] == '\'') {
          ++i;
        } else {
          return i + 1;
        }
      }
    }
    return text.npos;
  }

  // A scalar or a flow value that began on the line before at_; it may go on further in than `indent`.
  Json inline_value(std::string text, size_t indent) {
    if (text.starts_with('&') || text.starts_with('*')) fail("anchors and aliases are not supported");
    if (text.starts_with('|') || text.starts_with('>')) return block_scalar(text, indent);
    constexpr std::string_view kFunction = "!function";
    if (text.starts_with(kFunction)) {
      return Json{{"!function", std::string(trim(std::string_view(text).substr(kFunction.size())))}};
    }
    if (text.starts_with('!')) fail("the tag " + text.substr(0, text.find(' ')) + " is not supported");
    if (text.starts_with('"') || text.starts_with('\'')) {
      while (end_of_quotes(text) == text.npos) fold_next(text, indent, true);
      return quoted(text);
    }
    if (text.starts_with('[') || text.starts_with('{')) {
      while (!is_balanced(text)) fold_next(text, indent, false);
      size_t pos = 0;
      Json value = flow(text, pos);
      check_rest(std::string_view(text).substr(pos));
      return value;
    }
    text = without_comment(text);
    while (at_ < lines_.size() && !is_blank(lines_[at_].text) && lines_[at_].indent > indent &&
           !lines_[at_].text.starts_with('#')) {
      if (find_colon(lines_[at_].text)) fail("a plain text goes on with what looks like a key");
      text += ' ' + without_comment(lines_[at_++].text);
    }
    return plain(text);
  }

  static std::string without_comment(std::string_view text) {
    for (size_t i = 1; i < text.size(); ++i) {
      if (text[i] == '#' && (text[i - 1] == ' ' || text[i - 1] == '\t'))
        return std::string(trim_end(text.substr(0, i)));
    }
    return std::string(trim_end(text));
  }

  void check_rest(std::string_view rest) const {
    rest = trim(rest);
    if (!rest.empty() && !rest.starts_with('#')) fail("something stands behind a value");
  }

  // Appends the next line: one line end is a blank, more of them stay.
  void fold_next(std::string& text, size_t indent, bool quotes) {
    if (at_ == lines_.size()) fail(quotes ? "a quote is not closed" : "a bracket is not closed");
    size_t empty = 0;
    while (at_ < lines_.size() && is_blank(lines_[at_].text)) ++empty, ++at_;
    if (at_ == lines_.size() || (lines_[at_].indent <= indent && indent > 0)) fail("a value is not closed");
    if (quotes && text.ends_with('\\') && !text.ends_with("\\\\")) {
      text.pop_back();
    } else {
      text = std::string(trim_end(text)) + (empty > 0 ? std::string(empty, '\n') : " ");
    }
    text += quotes ? lines_[at_].text : without_comment(lines_[at_].text);
    ++at_;
  }

  Json quoted(std::string_view text) {
    const size_t end = end_of_quotes(text);
    if (end == text.npos) fail("a quote is not closed");
    check_rest(text.substr(end));
    return unquote(text.substr(0, end));
  }

  std::string unquote(std::string_view text) const {
    std::string out;
    const bool is_double = text[0] == '"';
    for (size_t i = 1; i + 1 < text.size(); ++i) {
      if (!is_double) {
        out += text[i];
        if (text[i] == '\'') ++i;
        continue;
      }
      if (text[i] != '\\') {
        out += text[i];
        continue;
      }
      const char escaped = text[++i];
      constexpr std::string_view kNames = "0abtnvfre\"/\\ ",
                                 kBytes = std::string_view("\0\a\b\t\n\v\f\r\x1b\"/\\ ", 13);
      if (const size_t name = kNames.find(escaped); name != kNames.npos) {
        out += kBytes[name];
      } else if (escaped == 'x' || escaped == 'u') {
        const size_t digits = escaped == 'x' ? 2 : 4;
        // JSON knows the same escape.
        const std::string code = std::string(4 - digits, '0') + std::string(text.substr(i + 1, digits));
        const Json character = Json::parse("\"\\u" + code + "\"", nullptr, false);
        if (!character.is_string()) fail("an escape that is none");
        out += character.get<std::string>();
        i += digits;
      } else {
        fail("an escape that is none");
      }
    }
    return out;
  }

  Json block_scalar(std::string_view head, size_t indent) {
    const bool folds = head[0] == '>';
    char chomp = ' ';
    for (const char c : without_comment(head).substr(1)) {
      if (c != '-' && c != '+') fail("a block scalar with an indentation of its own is not supported");
      chomp = c;
    }
    size_t inner = 0;
    std::vector<std::string> texts;
    for (; at_ < lines_.size(); ++at_) {
      const Line& line = lines_[at_];
      const bool blank = line.text.empty();
      if (!blank && inner == 0) inner = line.indent;
      if (!blank && (line.indent <= indent || line.indent < inner)) break;
      texts.push_back(blank ? "" : std::string(line.indent - inner, ' ') + line.text);
    }
    size_t trailing = 0;
    while (!texts.empty() && texts.back().empty()) texts.pop_back(), ++trailing;
    std::string out;
    for (size_t i = 0; i < texts.size(); ++i) {
      out += texts[i];
      if (i + 1 == texts.size()) break;
      const bool joins =
          folds && !texts[i].empty() && !texts[i + 1].empty() && texts[i][0] != ' ' && texts[i + 1][0] != ' ';
      const bool first_break = folds && !texts[i].empty() && texts[i + 1].empty() && texts[i][0] != ' ';
      if (!first_break) out += joins ? ' ' : '\n';
    }
    if (chomp != '-' && !texts.empty()) out += '\n';
    if (chomp == '+') out += std::string(trailing, '\n');
    return out;
  }

  static bool is_balanced(std::string_view text) {
    int depth = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '"' || text[i] == '\'') {
        const size_t end = end_of_quotes(text.substr(i));
        if (end == text.npos) return false;
        i += end - 1;
      } else if (text[i] == '[' || text[i] == '{') {
        ++depth;
      } else if (text[i] == ']' || text[i] == '}') {
        if (--depth == 0) return true;
      }
    }
    return false;
  }

  static void skip_spaces(std::string_view text, size_t& pos) {
    while (pos < text.size() && (text[pos] == ' ' || text[pos] == '\n')) ++pos;
  }

  Json flow(std::string_view text, size_t& pos) {
    skip_spaces(text, pos);
    const char open = pos < text.size() ? text[pos] : '\0';
    if (open == '"' || open == '\'') {
      const size_t end = end_of_quotes(text.substr(pos));
      const std::string value = unquote(text.substr(pos, end));
      pos += end;
      return value;
    }
    if (open != '[' && open != '{') {
      const size_t end = std::min(text.find_first_of(open == '\0' ? "" : ",]}:", pos), text.size());
      const Json value = plain(trim(text.substr(pos, end - pos)));
      pos = end;
      return value;
    }
    Json items = open == '[' ? Json::array() : Json::object();
    for (++pos;;) {
      skip_spaces(text, pos);
      if (pos >= text.size()) fail("a bracket is not closed");
      if (text[pos] == ']' || text[pos] == '}') return ++pos, items;
      Json value = flow(text, pos);
      skip_spaces(text, pos);
      if (open == '{') {
        if (pos >= text.size() || text[pos] != ':' || !value.is_string()) fail("a flow map has 'key: value'");
        ++pos;
        const std::string key = value.get<std::string>();
        items[key] = flow(text, pos);
        skip_spaces(text, pos);
      } else {
        items.push_back(std::move(value));
      }
      if (pos < text.size() && text[pos] == ',') {
        ++pos;
      } else if (pos >= text.size() || (text[pos] != ']' && text[pos] != '}')) {
        fail("a comma or a closing bracket is expected");
      }
    }
  }

  std::vector<Line> lines_;
  size_t at_ = 0;
};

}  // namespace

Json read_yaml(std::string_view text) { return Reader(text).run(); }

}  // namespace bam::eval
