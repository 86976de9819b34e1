#include "server/grammar/number_range.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include "server/grammar/json_rules.h"

namespace bam::constraints {
namespace {

// Spells the magnitudes in [lo, hi], digit by digit: while the digits so far equal a bound's, that
// bound restricts the next one ("tight"); once they differ it never matters again.
class MagnitudeEmitter {
 public:
  MagnitudeEmitter(std::optional<NumberBound> lo, std::optional<NumberBound> hi, bool integer, AutomatonBuilder& out,
                   State to)
      : lo_(std::move(lo)), hi_(std::move(hi)), integer_(integer), out_(out), to_(to) {}

  void run(State from) {
    const size_t shortest = lo_ ? lo_->value.whole.size() : 1;
    const size_t longest = hi_ ? hi_->value.whole.size() : kMaxDigits;
    if (shortest > longest) return;
    // Lengths strictly between the bounds' are free: one chain of digits serves them all.
    size_t first_free = std::max<size_t>(lo_ ? shortest + 1 : 1, 2);
    const size_t last_free = hi_ ? longest - 1 : longest;
    for (size_t length = shortest; length < std::min(first_free, longest + 1); ++length) {
      add_digits(from, {.length = length,
                        .read = 0,
                        .tight_lo = lo_.has_value() && length == shortest,
                        .tight_hi = hi_.has_value() && length == longest});
    }
    if (first_free <= last_free) {
      State chain = out_.add_state();
      out_.bytes(from, '1', '9', chain);
      for (size_t length = 1; length <= last_free; ++length) {
        if (length >= first_free) add_whole_end(chain, false, false);
        if (length == last_free) break;
        const State next = out_.add_state();
        out_.bytes(chain, '0', '9', next);
        chain = next;
      }
    }
    if (hi_ && longest >= first_free) {
      add_digits(from, {.length = longest, .read = 0, .tight_lo = false, .tight_hi = true});
    }
  }

 private:
  struct Position {
    size_t length;  // digits before the point in all
    size_t read;    // digits read: of the whole part, or of the fraction
    bool tight_lo, tight_hi;
    auto key() const { return std::tuple(length, read, tight_lo, tight_hi); }
  };

  // Calls add(first digit, last digit, tight_lo, tight_hi) for each run of digits that leads to the
  // same place.
  template <typename Add>
  static void for_digits(char lo, char hi, bool tight_lo, bool tight_hi, char smallest, Add add) {
    const char first = std::max(smallest, tight_lo ? lo : '0');
    const char last = tight_hi ? hi : '9';
    for (char d = first; d <= last;) {
      const bool at_lo = tight_lo && d == lo, at_hi = tight_hi && d == hi;
      char end = d;
      if (!at_lo && !at_hi) {
        while (end < last && !(tight_hi && end + 1 == hi)) ++end;
      }
      add(d, end, at_lo, at_hi);
      d = static_cast<char>(end + 1);
    }
  }

  void add_digits(State from, const Position& at) {
    if (at.read == at.length) return add_whole_end(from, at.tight_lo, at.tight_hi);
    const char smallest = at.read == 0 && at.length > 1 ? '1' : '0';
    const char lo = at.tight_lo ? lo_->value.whole[at.read] : '0';
    const char hi = at.tight_hi ? hi_->value.whole[at.read] : '9';
    for_digits(lo, hi, at.tight_lo, at.tight_hi, smallest, [&](char d, char end, bool tl, bool th) {
      const Position next{.length = at.length, .read = at.read + 1, .tight_lo = tl, .tight_hi = th};
      const auto [it, added] = whole_states_.try_emplace(next.key(), 0);
      if (added) {
        it->second = out_.add_state();
        add_digits(it->second, next);
      }
      out_.bytes(from, static_cast<uint8_t>(d), static_cast<uint8_t>(end), it->second);
    });
  }

  // May the number end after `read` digits of the fraction? While tight, the digits so far equal
  // the bound's.
  bool may_end(size_t read, bool tight_lo, bool tight_hi) const {
    if (tight_lo && (read < lo_->value.fraction.size() || lo_->exclusive)) return false;
    return !(tight_hi && read >= hi_->value.fraction.size() && hi_->exclusive);
  }

  void add_whole_end(State from, bool tight_lo, bool tight_hi) {
    if (may_end(0, tight_lo, tight_hi)) out_.epsilon(from, to_);
    if (integer_) return;
    out_.byte(from, '.', fraction_state(0, tight_lo, tight_hi));
  }

  State fraction_state(size_t read, bool tight_lo, bool tight_hi) {
    const auto [it, added] = fraction_states_.try_emplace(std::tuple(read, tight_lo, tight_hi), 0);
    if (!added) return it->second;
    const State state = it->second = out_.add_state();
    if (read > 0 && may_end(read, tight_lo, tight_hi)) out_.epsilon(state, to_);
    if (read == kMaxDigits) return state;
    auto digit = [&](const Decimal& d) { return read < d.fraction.size() ? d.fraction[read] : '0'; };
    const char lo = tight_lo ? digit(lo_->value) : '0', hi = tight_hi ? digit(hi_->value) : '9';
    for_digits(lo, hi, tight_lo, tight_hi, '0', [&](char d, char end, bool tl, bool th) {
      const State next = fraction_state(read + 1, tl, th);
      out_.bytes(state, static_cast<uint8_t>(d), static_cast<uint8_t>(end), next);
    });
    return state;
  }

  const std::optional<NumberBound> lo_, hi_;
  const bool integer_;
  AutomatonBuilder& out_;
  const State to_;
  std::map<std::tuple<size_t, size_t, bool, bool>, State> whole_states_;
  std::map<std::tuple<size_t, bool, bool>, State> fraction_states_;
};

std::optional<NumberBound> magnitude(const std::optional<NumberBound>& bound) {
  auto out = bound;
  if (out) out->value.negative = false;
  return out;
}

}  // namespace

std::optional<Decimal> Decimal::parse(std::string_view text) {
  Decimal out;
  if (text.starts_with('-')) {
    out.negative = true;
    text.remove_prefix(1);
  }
  int exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    std::string_view digits = text.substr(e + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    if (error != std::errc() || std::abs(exponent) > 400) return std::nullopt;
    text = text.substr(0, e);
  }
  const size_t point = std::min(text.find('.'), text.size());
  out.whole = text.substr(0, point);
  out.fraction = point < text.size() ? text.substr(point + 1) : std::string_view();
  for (; exponent > 0; --exponent) {
    out.whole.push_back(out.fraction.empty() ? '0' : out.fraction[0]);
    if (!out.fraction.empty()) out.fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    out.fraction.insert(out.fraction.begin(), out.whole.empty() ? '0' : out.whole.back());
    if (!out.whole.empty()) out.whole.pop_back();
  }
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  while (out.fraction.ends_with('0')) out.fraction.pop_back();
  if (out.whole.size() > kMaxDigits || out.fraction.size() > kMaxDigits) return std::nullopt;
  if (out.is_zero()) out.negative = false;
  return out;
}

void emit(const NumberRange& range, AutomatonBuilder& out, State from, State to) {
  const auto &min = range.min, &max = range.max;
  const bool min_negative = min && min->value.negative, max_negative = max && max->value.negative;
  if (!max_negative) {
    MagnitudeEmitter(min_negative ? std::nullopt : min, max, range.integer, out, to).run(from);
  }
  if (min && !min_negative) return;
  std::optional<NumberBound> lo, hi = magnitude(min);
  if (max && (max_negative || max->value.is_zero())) lo = magnitude(max);
  // "-0" is no integer anybody writes.
  if (range.integer && (!lo || lo->value.whole == "0")) lo = NumberBound{.value = {.whole = "1"}};
  const State digits = out.add_state();
  out.byte(from, '-', digits);
  MagnitudeEmitter(lo, hi, range.integer, out, to).run(digits);
}

}  // namespace bam::constraints
