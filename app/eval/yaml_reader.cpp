#include "app/eval/yaml_reader.h"

#include <charconv>
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <yaml.h>

#include "base/error.h"

namespace bam::eval {
namespace {

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

// The parser's events, and the value that they build. Lists and maps that are open are a stack.
class YamlDocument {
 public:
  explicit YamlDocument(std::string_view text) {
    if (yaml_parser_initialize(&parser_) == 0) throw std::bad_alloc();
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  ~YamlDocument() {
    yaml_event_delete(&event_);
    yaml_parser_delete(&parser_);
  }
  YamlDocument(const YamlDocument&) = delete;

  Json read() {
    for (bool begun = false;;) {
      next();
      switch (event_.type) {
        case YAML_STREAM_END_EVENT: return std::move(root_);
        case YAML_DOCUMENT_START_EVENT:
          if (std::exchange(begun, true)) fail("there are several documents in one file");
          break;
        case YAML_ALIAS_EVENT: refuse_anchor();
        case YAML_SCALAR_EVENT: take_scalar(); break;
        case YAML_SEQUENCE_START_EVENT:
          begin(event_.data.sequence_start.tag, event_.data.sequence_start.anchor, Json::array());
          break;
        case YAML_MAPPING_START_EVENT:
          begin(event_.data.mapping_start.tag, event_.data.mapping_start.anchor, Json::object());
          break;
        case YAML_SEQUENCE_END_EVENT:
        case YAML_MAPPING_END_EVENT: {
          Json closed = std::move(open_.back().value);
          open_.pop_back();
          add(std::move(closed));
          break;
        }
        default: break;
      }
    }
  }

 private:
  static constexpr size_t kMaxDepth = 100;
  struct Open {
    Json value;
    std::optional<std::string> key = std::nullopt;  // of a map, whose value is next
  };

  [[noreturn]] static void fail_at(size_t line, const std::string& what) {
    throw UsageError("YAML, line {}: {}", line + 1, what);
  }
  [[noreturn]] void fail(const std::string& what) const { fail_at(event_.start_mark.line, what); }
  [[noreturn]] void refuse_anchor() const { fail("anchors and aliases are not supported"); }
  void check(const yaml_char_t* tag, const yaml_char_t* anchor) const {
    if (anchor != nullptr) refuse_anchor();
    if (tag != nullptr) fail(std::string("the tag ") + reinterpret_cast<const char*>(tag) + " is not supported");
  }

  void next() {
    yaml_event_delete(&event_);
    if (yaml_parser_parse(&parser_, &event_) != 0) return;
    std::string why = parser_.problem != nullptr ? parser_.problem : "no memory";
    if (parser_.context != nullptr) why = std::string(parser_.context) + ": " + why;
    fail_at(parser_.problem_mark.line, why);
  }
  void begin(const yaml_char_t* tag, const yaml_char_t* anchor, Json empty) {
    check(tag, anchor);
    if (open_.size() == kMaxDepth) fail("lists and maps are nested too deep");
    open_.push_back({std::move(empty)});
  }
  void take_scalar() {
    const auto& scalar = event_.data.scalar;
    std::string text(reinterpret_cast<const char*>(scalar.value), scalar.length);
    const std::string_view tag = scalar.tag == nullptr ? "" : reinterpret_cast<const char*>(scalar.tag);
    const bool is_key = !open_.empty() && open_.back().value.is_object() && !open_.back().key;
    if (!is_key && tag == "!function") return add(Json{{std::string(tag), std::move(text)}});
    if (!is_key && tag == "tag:yaml.org,2002:null") return add(nullptr);
    check(scalar.tag, scalar.anchor);
    if (!is_key) return add(scalar.style == YAML_PLAIN_SCALAR_STYLE ? plain(text) : Json(std::move(text)));
    if (open_.back().value.contains(text)) fail("the key '" + text + "' stands twice");
    open_.back().key = std::move(text);
  }
  void add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().value.is_array()) {
      open_.back().value.push_back(std::move(value));
    } else {
      if (!open_.back().key) fail("a key is a text");
      open_.back().value[*std::exchange(open_.back().key, std::nullopt)] = std::move(value);
    }
  }

  yaml_parser_t parser_;
  yaml_event_t event_{};
  Json root_;
  std::vector<Open> open_;
};

}  // namespace

Json read_yaml(std::string_view text) { return YamlDocument(text).read(); }

}  // namespace bam::eval
