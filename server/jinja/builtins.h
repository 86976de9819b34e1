// Filters, tests, methods and functions of chat templates.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "server/jinja/value.h"

namespace bam::jinja {

// What a rendering may still cost. Work on text and lists is charged by size, so that steps bound time and memory.
class Budget {
 public:
  Budget(uint64_t max_steps, size_t max_text_bytes) : steps_(max_steps), max_text_bytes_(max_text_bytes) {}

  void charge(uint64_t steps) {
    if (steps > steps_) throw Error("the template takes too many steps");
    steps_ -= steps;
  }
  // Called before a text of this size is made.
  void charge_text(size_t bytes) {
    if (bytes > max_text_bytes_) throw Error("the template produces too much text");
    charge(1 + bytes / 64);
  }
  // Before the whole of a value is compared or written out.
  void charge_value(const Value& value) { charge_text(written_size(value, max_text_bytes_ + 1)); }
  // Before a text is searched for another one.
  void charge_search(size_t text_bytes, size_t part_bytes) {
    charge(1 + text_bytes / 64 + text_bytes / 64 * (part_bytes / 64));
  }
  size_t max_text_bytes() const { return max_text_bytes_; }

 private:
  uint64_t steps_;
  const size_t max_text_bytes_;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;

  // One value per parameter, undefined where none is given. Throws Error for too many or unknown ones.
  std::vector<Value> bind(std::string_view callee, std::initializer_list<std::string_view> parameters) const;
};

// to_text() within the budget.
std::string printed(const Value& value, Budget& budget);
// A new text within the budget.
Value text_value(std::string text, Budget& budget);
// Throw Error for what is no string; nothing for undefined and none.
const std::string& text_argument(const Value& value);
std::optional<std::string> optional_text(const Value& value);

// All throw Error for unknown names and for values they cannot work on.
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget);
Value call_method(const Value& object, const std::string& name, const Arguments& arguments, Budget& budget);
Value call_function(Function function, const Arguments& arguments, Budget& budget);

// object.name and object[key]: undefined when there is no such member.
Value get_attribute(const Value& object, const std::string& name);
Value get_item(const Value& object, const Value& key);
// object[start:stop:step], undefined where left out.
Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step, Budget& budget);
// What a for loop runs over: list elements, dict keys, characters.
std::vector<Value> iterate(const Value& value, Budget& budget);
Value binary_operation(const std::string& op, const Value& a, const Value& b, Budget& budget);

// raise_exception("…") in a template.
class RaisedByTemplate : public Error {
 public:
  using Error::Error;
};

}  // namespace bam::jinja
