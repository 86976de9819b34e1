#include "models/normalization_map.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/utf8.h"

namespace bam {
namespace {

// sentencepiece keeps at most this many matching prefixes of a text, but counts on.
constexpr int kMaxPrefixes = 32;

// One unit of the trie. A node's children are the units at (base ^ byte) whose label is that byte.
struct Unit {
  uint32_t bits;
  uint32_t label() const { return bits & 0x800000ffu; }
  bool has_leaf() const { return (bits >> 8 & 1) != 0; }
  uint32_t offset() const { return (bits >> 10) << ((bits & 0x200u) >> 6); }
  uint32_t value() const { return bits & 0x7fffffffu; }
};

class TrieCheck {
 public:
  TrieCheck(std::string_view units, std::string_view replacements)
      : num_units_(units.size() / sizeof(uint32_t)), units_(units), replacements_(replacements) {}

  // Nodes may be shared, so this is a walk over a graph: depth first, every node once, no way back to an ancestor.
  std::string_view run() {
    if (num_units_ == 0) return "its trie is empty";
    states_.resize(num_units_);
    if (!enter(unit(0).offset(), false)) return fault_;
    while (!path_.empty()) {
      Step& step = path_.back();
      if (step.byte == 256) {
        if (!leave()) return fault_;
        continue;
      }
      const uint32_t byte = step.byte++;
      const uint32_t at = step.base ^ byte;
      const Unit child = unit(at);
      if (child.label() != byte) continue;
      const uint32_t base = at ^ child.offset();
      if (child.has_leaf() && !leaf(base)) return fault_;
      if (!enter(base, child.has_leaf())) return fault_;
    }
    return {};
  }

 private:
  struct Step {
    uint32_t base;
    uint32_t byte = 0;  // next to look at
    bool is_leaf;       // a match ends on entering
  };
  struct State {
    bool open = false, done = false;
    uint8_t prefixes = 0;  // matches on the longest way down from here
  };

  Unit unit(uint32_t at) const {
    uint32_t bits;
    std::memcpy(&bits, units_.data() + size_t{at} * sizeof bits, sizeof bits);
    return {bits};
  }

  bool fail(std::string_view what) {
    fault_ = what;
    return false;
  }

  bool enter(uint32_t base, bool is_leaf) {
    if ((base | 0xffu) >= num_units_) return fail("its trie points beyond its end");
    State& state = states_[base];
    if (state.open) return fail("its trie runs in circles");
    if (state.done) return note(state.prefixes + (is_leaf ? 1 : 0));
    state.open = true;
    path_.push_back({base, 0, is_leaf});
    return true;
  }

  bool leave() {
    const Step step = path_.back();
    path_.pop_back();
    State& state = states_[step.base];
    state.open = false;
    state.done = true;
    return note(state.prefixes + (step.is_leaf ? 1 : 0));
  }

  // The node on top of the path has a way down with so many matches.
  bool note(int prefixes) {
    if (prefixes > kMaxPrefixes) return fail("too many of its rules are beginnings of each other");
    if (path_.empty()) return true;
    uint8_t& most = states_[path_.back().base].prefixes;
    most = std::max(most, static_cast<uint8_t>(prefixes));
    return true;
  }

  bool leaf(uint32_t at) {
    if (at >= num_units_) return fail("its trie points beyond its end");
    const uint32_t value = unit(at).value();
    if (value >= replacements_.size()) return fail("a rule's replacement lies beyond its end");
    const std::string_view text = replacements_.substr(value, replacements_.find('\0', value) - value);
    return is_valid_utf8(text) || fail("a rule's replacement is not UTF-8");
  }

  const size_t num_units_;
  const std::string_view units_, replacements_;
  std::vector<State> states_;
  std::vector<Step> path_;
  std::string_view fault_;
};

}  // namespace

std::string_view normalization_map_fault(std::string_view map) {
  if (map.empty()) return {};  // text is taken as it is
  uint32_t trie_bytes = 0;
  if (map.size() <= sizeof trie_bytes) return "it is too short";
  std::memcpy(&trie_bytes, map.data(), sizeof trie_bytes);
  map.remove_prefix(sizeof trie_bytes);
  if (trie_bytes >= map.size() || trie_bytes % sizeof(uint32_t) != 0) return "its trie has an impossible size";
  if (map.back() != '\0') return "its last replacement has no end";
  return TrieCheck(map.substr(0, trie_bytes), map.substr(trie_bytes)).run();
}

}  // namespace bam
