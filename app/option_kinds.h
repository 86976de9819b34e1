// Kinds of settings for the table in serve_options.cpp. A kind reads text into one field of ServeConfig and writes the
// field back as text, so that a default stands in one place only: in the configuration's own struct.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/serve_config.h"
#include "app/units.h"
#include "base/error.h"

namespace bam::option_kinds {

struct Kind {
  std::string metavar;
  ServeOption::Apply apply;
  ServeOption::Show show;
};

// `field` picks the field of a ServeConfig, constant or not.

template <typename Field>
Kind text(std::string metavar, Field field) {
  return {std::move(metavar),
          [=](ServeConfig& c, const std::vector<std::string>& v, const std::string&) { field(c) = v.back(); },
          [=](const ServeConfig& c) { return std::string(field(c)); }};
}

template <typename Field>
Kind one_of(std::string choices, Field field) {
  return {choices,
          [=](ServeConfig& c, const std::vector<std::string>& v, const std::string& o) {
            check_one_of(v.back(), o, choices);
            field(c) = v.back();
          },
          [=](const ServeConfig& c) { return field(c); }};
}

// A boolean with two names: "on|off", "certified|dense".
template <typename Field>
Kind either(std::string yes, std::string no, Field field) {
  return {yes + "|" + no,
          [=](ServeConfig& c, const std::vector<std::string>& v, const std::string& o) {
            const bool on_off = yes == "on";
            const bool is_yes = v.back() == yes || (on_off && (v.back() == "true" || v.back() == "1"));
            const bool is_no = v.back() == no || (on_off && (v.back() == "false" || v.back() == "0"));
            if (!is_yes && !is_no) throw UsageError("{}: '{}' is not one of {}, {}", o, v.back(), yes, no);
            field(c) = is_yes;
          },
          [=](const ServeConfig& c) { return field(c) ? yes : no; }};
}
template <typename Field>
Kind on_off(Field field) {
  return either("on", "off", field);
}

// `zero`: the word that stands for 0, such as "auto"; empty: 0 is a number like others.
template <typename Field>
Kind integer(Field field, int64_t min, int64_t max, std::string zero = {}, int64_t multiple = 1) {
  return {zero.empty() ? "N" : zero + "|N",
          [=](ServeConfig& c, const std::vector<std::string>& v, const std::string& o) {
            using T = std::remove_reference_t<decltype(field(c))>;
            if (!zero.empty() && v.back() == zero) {
              field(c) = 0;
              return;
            }
            const int64_t number = parse_integer(v.back(), o, min, max);
            if (number % multiple != 0) throw UsageError("{}: '{}' is not a multiple of {}", o, v.back(), multiple);
            field(c) = static_cast<T>(number);
          },
          [=](const ServeConfig& c) {
            const auto value = field(c);
            return value == 0 && !zero.empty() ? zero : fmt::format("{}", value);
          }};
}

template <typename Field>
Kind number(std::string metavar, Field field, double min, double max) {
  return {std::move(metavar),
          [=](ServeConfig& c, const std::vector<std::string>& v, const std::string& o) {
            using T = std::remove_reference_t<decltype(field(c))>;
            field(c) = static_cast<T>(parse_number(v.back(), o, min, max));
          },
          // The shortest digits that give the same value again.
          [=](const ServeConfig& c) { return fmt::format("{}", field(c)); }};
}

template <typename Field>
Kind seconds(Field field, double min = 0) {
  return {"TIME",
          [=](ServeConfig& c, const std::vector<std::string>& v, const std::string& o) {
            field(c) = parse_seconds(v.back(), o);
            if (field(c) < min) throw UsageError("{}: '{}' is less than {}s", o, v.back(), min);
          },
          [=](const ServeConfig& c) {
            const double value = field(c);
            return value == 0 ? "0" : fmt::format("{}s", value);
          }};
}

template <typename Field>
Kind bytes(Field field, uint64_t min, std::string zero = {}) {
  return {zero.empty() ? "SIZE" : zero + "|SIZE",
          [=](ServeConfig& c, const std::vector<std::string>& v, const std::string& o) {
            field(c) = !zero.empty() && v.back() == zero ? 0 : parse_bytes(v.back(), o);
            if (v.back() != zero && field(c) < min)
              throw UsageError("{}: '{}' is less than {} bytes", o, v.back(), min);
          },
          [=](const ServeConfig& c) {
            const uint64_t value = field(c);
            return value == 0 && !zero.empty() ? zero : format_exact_bytes(value);
          }};
}

// Several values; each one may be a list with commas.
template <typename Field>
Kind list(std::string metavar, Field field) {
  return {std::move(metavar),
          [=](ServeConfig& c, const std::vector<std::string>& v, const std::string&) {
            field(c).clear();
            for (const std::string& given : v) {
              for (std::string& part : split(given, ',')) {
                if (!part.empty()) field(c).push_back(std::move(part));
              }
            }
          },
          [=](const ServeConfig& c) { return join(field(c), ","); }};
}

}  // namespace bam::option_kinds
