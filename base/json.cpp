#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <vector>

#include "base/json_discard.h"
#include "base/utf8.h"

namespace bam {
namespace {

// Builds the document like nlohmann's own parser does, but refuses what JsonLimits and the header's contract refuse.
class StrictBuilder {
 public:
  explicit StrictBuilder(const JsonLimits& limits) : limits_(limits) {}
  ~StrictBuilder() { discard(root_); }
  StrictBuilder(const StrictBuilder&) = delete;

  bool null() { return place(nullptr); }
  bool boolean(bool value) { return place(value); }
  bool number_integer(Json::number_integer_t value) { return place(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return place(value); }
  bool number_float(Json::number_float_t value, const std::string&) { return place(value); }
  bool string(std::string& value) { return place(std::move(value)); }
  bool binary(Json::binary_t&) { return fail("not valid JSON: binary values"); }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    Level& level = open_.back();
    auto& members = level.container->get_ref<Json::object_t&>();
    if (members.size() >= limits_.max_members) {
      return fail(fmt::format("an object has more than {} members", limits_.max_members));
    }
    if (!is_new(level, members, name)) return fail(fmt::format("key '{}' appears twice", printable(name)));
    if (members.size() == members.capacity()) grow(members);
    // Not by operator[]: that would search the members once more.
    slot_ = &members.emplace_back(std::move(name), nullptr).second;
    return true;
  }

  bool parse_error(size_t, const std::string&, const Json::exception& error) {
    return fail("not valid JSON: " + describe_json_error(error));
  }

  const std::optional<std::string>& failure() const { return failure_; }
  Json take() { return std::move(root_); }

 private:
  struct Level {
    Json* container;
    std::unique_ptr<std::set<std::string, std::less<>>> keys;  // only of large objects
  };

  static bool is_new(Level& level, const Json::object_t& members, const std::string& name) {
    constexpr size_t kSmall = 16;
    if (members.size() < kSmall) return members.find(name) == members.end();
    if (!level.keys) {
      level.keys = std::make_unique<std::set<std::string, std::less<>>>();
      for (const auto& member : members) level.keys->insert(member.first);
    }
    return level.keys->insert(name).second;
  }

  // By itself the vector would copy whole values: its keys are constant, so that nothing in it can be moved.
  static void grow(Json::object_t& members) {
    Json::object_t larger;
    larger.reserve(std::max<size_t>(4, 2 * members.size()));
    for (auto& [name, value] : members) larger.emplace_back(name, std::move(value));
    members.swap(larger);
  }

  bool fail(std::string message) {
    if (!failure_) failure_ = std::move(message);
    return false;
  }

  bool place(Json value) {
    if (++num_values_ > limits_.max_values) return fail(fmt::format("more than {} values", limits_.max_values));
    if (open_.empty()) {
      slot_ = &root_;
    } else if (open_.back().container->is_array()) {
      slot_ = &open_.back().container->emplace_back(nullptr);
    }
    *slot_ = std::move(value);
    return true;
  }

  bool open(Json container) {
    if (open_.size() >= limits_.max_depth) return fail(fmt::format("nested deeper than {} levels", limits_.max_depth));
    if (!place(std::move(container))) return false;
    // Stays valid: a container does not grow while one of its children is open.
    open_.push_back({slot_, nullptr});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  Json root_;
  std::vector<Level> open_;  // the containers around the current position, outermost first
  Json* slot_ = nullptr;     // where the last value went, or the value of the last key goes
  size_t num_values_ = 0;
  std::optional<std::string> failure_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return Error("{} bytes of JSON, the limit is {}", text.size(), limits.max_bytes);
  }
  // nlohmann takes a NUL byte for the end of the text and would ignore what follows.
  if (text.find('\0') != std::string_view::npos) return Error("not valid JSON: contains a NUL byte");
  StrictBuilder builder(limits);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return Error(builder.failure().value_or("not valid JSON"));
  }
  return builder.take();
}

void discard(Json& value) noexcept {
  if (auto* items = value.get_ptr<Json::array_t*>()) {
    for (Json& item : *items) discard(item);
    items->clear();
  } else if (auto* members = value.get_ptr<Json::object_t*>()) {
    for (auto& [name, member] : *members) discard(member);
    members->clear();
  }
}

std::optional<int64_t> as_integer(const Json& value, int64_t min, int64_t max) {
  int64_t result = 0;
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > uint64_t{INT64_MAX}) return std::nullopt;
    result = static_cast<int64_t>(number);
  } else if (value.is_number_integer()) {
    result = value.get<int64_t>();
  } else if (value.is_number_float()) {
    const double number = value.get<double>();
    // 2^53: beyond it a double no longer tells neighbouring integers apart.
    if (!(std::abs(number) <= 0x1p53) || number != std::floor(number)) return std::nullopt;
    result = static_cast<int64_t>(number);
  } else {
    return std::nullopt;
  }
  if (result < min || result > max) return std::nullopt;
  return result;
}

std::string describe_json_error(const std::exception& error) {
  std::string_view message = error.what();
  if (message.starts_with("[json.exception.")) {
    const size_t end = message.find("] ");
    if (end != std::string_view::npos) message.remove_prefix(end + 2);
  }
  return printable(message, 240);
}

std::string quote_json(const Json& value) {
  if (value.is_object()) return value.empty() ? "{}" : "an object";
  if (value.is_array() && value.size() > 8) return fmt::format("an array of {} elements", value.size());
  return printable(dump_json(value), 80);
}

std::string dump_json(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string dump_json_string(std::string_view text) { return dump_json(Json(text)); }

}  // namespace bam
