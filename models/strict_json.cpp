#include "models/strict_json.h"

#include <optional>
#include <vector>

#include "base/utf8.h"

namespace bam {
namespace {

using nlohmann::json;

// Builds the document like nlohmann's own parser does, but refuses what JsonLimits and the header's contract refuse.
class StrictBuilder {
 public:
  explicit StrictBuilder(size_t max_depth) : max_depth_(max_depth) {}

  bool null() { return place(nullptr); }
  bool boolean(bool value) { return place(value); }
  bool number_integer(json::number_integer_t value) { return place(value); }
  bool number_unsigned(json::number_unsigned_t value) { return place(value); }
  bool number_float(json::number_float_t value, const std::string&) { return place(value); }
  bool string(std::string& value) { return place(std::move(value)); }
  bool binary(json::binary_t&) { return fail("binary values are not JSON"); }
  bool start_object(size_t) { return open(json::object()); }
  bool start_array(size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    json& object = *open_.back();
    if (object.contains(name)) return fail(fmt::format("key '{}' appears twice", printable(name)));
    slot_ = &object[name];
    return true;
  }

  bool parse_error(size_t, const std::string&, const json::exception& error) {
    return fail(describe_json_error(error));
  }

  const std::optional<std::string>& failure() const { return failure_; }
  json take() { return std::move(root_); }

 private:
  bool fail(std::string message) {
    if (!failure_) failure_ = std::move(message);
    return false;
  }

  json* target() {
    if (open_.empty()) return &root_;
    if (open_.back()->is_object()) return slot_;
    return &open_.back()->emplace_back(nullptr);
  }

  bool place(json value) {
    *target() = std::move(value);
    return true;
  }

  bool open(json container) {
    if (open_.size() >= max_depth_) return fail(fmt::format("nested deeper than {} levels", max_depth_));
    json* place = target();
    *place = std::move(container);
    // Stays valid: a container does not grow while one of its children is open.
    open_.push_back(place);
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  size_t max_depth_;
  json root_;
  std::vector<json*> open_;  // the containers around the current position, outermost first
  json* slot_ = nullptr;     // where the value of the last key goes
  std::optional<std::string> failure_;
};

}  // namespace

Result<json> parse_strict_json(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return Error("{} bytes of JSON, the limit is {}", text.size(), limits.max_bytes);
  }
  // nlohmann takes a NUL byte for the end of the text and would ignore what follows.
  if (text.find('\0') != std::string_view::npos) return Error("not valid JSON: contains a NUL byte");
  StrictBuilder builder(limits.max_depth);
  if (!json::sax_parse(text.begin(), text.end(), &builder)) {
    return Error("not valid JSON: {}", builder.failure().value_or("unknown reason"));
  }
  return builder.take();
}

std::string describe_json_error(const std::exception& error) {
  std::string_view message = error.what();
  if (message.starts_with("[json.exception.")) {
    const size_t end = message.find("] ");
    if (end != std::string_view::npos) message.remove_prefix(end + 2);
  }
  return printable(message, 240);
}

std::string quote_json(const json& value) {
  if (value.is_object()) return value.empty() ? "{}" : "an object";
  if (value.is_array() && value.size() > 8) return fmt::format("an array of {} elements", value.size());
  return printable(value.dump(-1, ' ', false, json::error_handler_t::replace), 80);
}

}  // namespace bam
