#include "server/grammar/codepoints.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace bam::constraints {
namespace {

constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

// Byte ranges of one family of UTF-8 sequences: bytes[i] may be anything in [lo[i], hi[i]].
struct ByteRanges {
  std::array<uint8_t, 4> lo, hi;
  size_t size;
};

size_t encode_utf8(char32_t c, std::array<uint8_t, 4>& out) {
  if (c < 0x80) {
    out[0] = static_cast<uint8_t>(c);
    return 1;
  }
  const size_t size = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (size_t i = size - 1; i > 0; --i, c >>= 6) out[i] = static_cast<uint8_t>(0x80 | (c & 0x3F));
  static constexpr std::array<uint8_t, 5> kLead{0, 0, 0xC0, 0xE0, 0xF0};
  out[0] = static_cast<uint8_t>(kLead[size] | c);
  return size;
}

// Splits a range of code points into families whose bytes vary independently, most significant
// first: cut where the encoded length changes, then where a continuation byte would not span its
// whole range.
template <typename Visit>
void split_utf8(char32_t lo, char32_t hi, Visit visit) {
  static constexpr std::array<char32_t, 3> kLengthEnds{0x7F, 0x7FF, 0xFFFF};
  for (char32_t end : kLengthEnds) {
    if (lo <= end && end < hi) {
      split_utf8(lo, end, visit);
      split_utf8(end + 1, hi, visit);
      return;
    }
  }
  ByteRanges ranges;
  ranges.size = encode_utf8(lo, ranges.lo);
  encode_utf8(hi, ranges.hi);
  for (size_t i = 1; i < ranges.size; ++i) {
    const char32_t mask = (char32_t{1} << (6 * i)) - 1;
    if ((lo & ~mask) == (hi & ~mask)) continue;
    if ((lo & mask) != 0) {
      split_utf8(lo, lo | mask, visit);
      split_utf8((lo | mask) + 1, hi, visit);
      return;
    }
    if ((hi & mask) != mask) {
      split_utf8(lo, (hi & ~mask) - 1, visit);
      split_utf8(hi & ~mask, hi, visit);
      return;
    }
  }
  visit(ranges);
}

// A set's members as byte sequences.
struct EncodedSet {
  std::vector<ByteRanges> utf8;
  std::vector<std::string> escapes;
};

std::string json_escape(char32_t c) {
  switch (c) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\b': return "\\b";
    case '\f': return "\\f";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: return fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  }
}

EncodedSet encode(const CodepointSet& set, TextEncoding encoding) {
  EncodedSet out;
  auto add_utf8 = [&](const CodepointSet& raw) {
    for (const auto& range : raw.ranges()) {
      split_utf8(range.lo, range.hi, [&](const ByteRanges& r) { out.utf8.push_back(r); });
    }
  };
  if (encoding == TextEncoding::kUtf8) {
    add_utf8(set);
    return out;
  }
  static const CodepointSet kEscaped({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  add_utf8(set.minus(kEscaped));
  for (const auto& range : kEscaped.ranges()) {
    for (char32_t c = range.lo; c <= range.hi; ++c) {
      if (set.contains(c)) out.escapes.push_back(json_escape(c));
    }
  }
  return out;
}

// Writes sets as byte paths; paths into the same state share their tails, which keeps large classes
// small.
class SetEmitter {
 public:
  explicit SetEmitter(AutomatonBuilder& out) : out_(out) {}

  void emit(const EncodedSet& set, State from, State to) {
    for (const ByteRanges& r : set.utf8) {
      State next = to;
      for (size_t i = r.size - 1; i > 0; --i) next = tail(r.lo[i], r.hi[i], next);
      out_.bytes(from, r.lo[0], r.hi[0], next);
    }
    for (const std::string& bytes : set.escapes) {
      State next = to;
      for (size_t i = bytes.size() - 1; i > 0; --i) {
        next = tail(static_cast<uint8_t>(bytes[i]), static_cast<uint8_t>(bytes[i]), next);
      }
      out_.byte(from, bytes[0], next);
    }
  }

 private:
  State tail(uint8_t lo, uint8_t hi, State to) {
    const auto [it, added] = tails_.try_emplace({to, (lo << 8) | hi}, 0);
    if (added) {
      it->second = out_.add_state();
      out_.bytes(it->second, lo, hi, to);
    }
    return it->second;
  }

  AutomatonBuilder& out_;
  std::map<std::pair<State, int>, State> tails_;
};

}  // namespace

CodepointSet::CodepointSet(std::vector<Range> ranges) {
  std::vector<Range> cut;
  for (const Range& r : ranges) {
    if (r.lo > r.hi) continue;
    if (r.hi < kFirstSurrogate || r.lo > kLastSurrogate) {
      cut.push_back(r);
      continue;
    }
    if (r.lo < kFirstSurrogate) cut.push_back({r.lo, kFirstSurrogate - 1});
    if (r.hi > kLastSurrogate) cut.push_back({kLastSurrogate + 1, r.hi});
  }
  std::sort(cut.begin(), cut.end(), [](const Range& a, const Range& b) { return a.lo < b.lo; });
  for (const Range& r : cut) {
    if (!ranges_.empty() && r.lo <= ranges_.back().hi + 1) {
      ranges_.back().hi = std::max(ranges_.back().hi, r.hi);
    } else {
      ranges_.push_back(r);
    }
  }
}

CodepointSet CodepointSet::complement() const {
  std::vector<Range> gaps;
  char32_t next = 0;
  for (const Range& r : ranges_) {
    if (r.lo > next) gaps.push_back({next, r.lo - 1});
    next = r.hi + 1;
  }
  if (next <= kMaxCodepoint) gaps.push_back({next, kMaxCodepoint});
  return CodepointSet(std::move(gaps));
}

CodepointSet CodepointSet::united(const CodepointSet& other) const {
  std::vector<Range> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return CodepointSet(std::move(both));
}

CodepointSet CodepointSet::minus(const CodepointSet& other) const { return complement().united(other).complement(); }

bool CodepointSet::contains(char32_t c) const {
  const auto after =
      std::upper_bound(ranges_.begin(), ranges_.end(), c, [](char32_t v, const Range& r) { return v < r.lo; });
  return after != ranges_.begin() && c <= std::prev(after)->hi;
}

std::optional<std::u32string> to_codepoints(std::string_view text) {
  std::u32string out;
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    if (step.kind != Utf8Step::Kind::kValid) return std::nullopt;
    out.push_back(step.code_point);
    text.remove_prefix(step.length);
  }
  return out;
}

std::string to_utf8(std::u32string_view text) {
  std::string out;
  std::array<uint8_t, 4> bytes;
  for (char32_t c : text) {
    const size_t size = encode_utf8(c, bytes);
    out.append(reinterpret_cast<const char*>(bytes.data()), size);
  }
  return out;
}

CodepointNfa limit_length(const CodepointNfa& nfa, uint32_t min, uint32_t max, uint32_t max_states) {
  // States are pairs (state, code points read); without an upper bound counting stops at min.
  const uint32_t last = max == kNoLimit ? min : max;
  CodepointNfa out;
  out.sets = nfa.sets;
  std::unordered_map<uint64_t, uint32_t> ids;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  auto id_of = [&](uint32_t state, uint32_t count) {
    const auto [it, added] = ids.try_emplace((uint64_t{state} << 32) | count, 0);
    if (added) {
      if (out.nodes.size() >= max_states) {
        throw Error("too large together with the length limits: more than {} states", max_states);
      }
      it->second = out.add_state();
      out.nodes.back().accepting = nfa.nodes[state].accepting && count >= min;
      pairs.emplace_back(state, count);
    }
    return it->second;
  };
  id_of(0, 0);
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    const auto [state, count] = pairs[i];
    for (uint32_t to : nfa.nodes[state].epsilons) {
      const uint32_t target = id_of(to, count);
      out.nodes[i].epsilons.push_back(target);
    }
    if (count == max) continue;
    for (const auto& edge : nfa.nodes[state].edges) {
      const uint32_t target = id_of(edge.to, std::min(count + 1, last));
      out.nodes[i].edges.push_back({edge.set, target});
    }
  }
  return out;
}

void emit(const CodepointNfa& nfa, TextEncoding encoding, AutomatonBuilder& out, State from, State to) {
  SetEmitter emitter(out);
  std::vector<EncodedSet> sets;
  for (const auto& set : nfa.sets) sets.push_back(encode(set, encoding));
  std::vector<State> states(nfa.nodes.size());
  for (auto& state : states) state = out.add_state();
  out.epsilon(from, states[0]);
  for (uint32_t i = 0; i < nfa.nodes.size(); ++i) {
    for (const auto& edge : nfa.nodes[i].edges) {
      emitter.emit(sets[edge.set], states[i], states[edge.to]);
    }
    for (uint32_t target : nfa.nodes[i].epsilons) out.epsilon(states[i], states[target]);
    if (nfa.nodes[i].accepting) out.epsilon(states[i], to);
  }
}

void emit(const CodepointSet& set, TextEncoding encoding, AutomatonBuilder& out, State from, State to) {
  SetEmitter(out).emit(encode(set, encoding), from, to);
}

}  // namespace bam::constraints
