#include "engine/prefix_pages.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "engine/staged_kv.h"
#include "engine/step_runner.h"

namespace bam {

namespace {

std::vector<int64_t> all_reach(const StagedKv& kv) {
  std::vector<int64_t> reach;
  for (int stage = 0; stage < kv.num_stages(); ++stage) {
    const std::vector<int64_t>& own = kv.stage(stage).geometry().reach();
    reach.insert(reach.end(), own.begin(), own.end());
  }
  return reach;
}

}  // namespace

PrefixPages::Chain::~Chain() {
  if (nodes_.empty()) return;
  try {
    pages_.between_steps_([&] {
      if (!whole()) return;
      for (size_t s = 0; s < nodes_.size(); ++s) pages_.kv_.stage(static_cast<int>(s)).unpin_chain(nodes_[s]);
    });
  } catch (const std::exception&) {  // the engine has stopped, its cache goes too
  }
}

void PrefixPages::Chain::pin(std::vector<std::vector<int32_t>> nodes) {
  for (size_t s = 0; s < nodes.size(); ++s) pages_.kv_.stage(static_cast<int>(s)).pin_chain(nodes[s]);
  nodes_ = std::move(nodes);
  generation_ = pages_.kv_.generation();
}

bool PrefixPages::Chain::whole() const { return generation_ == pages_.kv_.generation(); }

void PrefixPages::Chain::check_whole() const {
  if (!whole())
    throw SnapshotError(SnapshotFault::kBusy, "the cached pages were lost with a rank meanwhile: try again");
}

PrefixPages::PrefixPages(SnapshotIdentity identity, StagedKv& kv, StepRunner& runner, const KvLayout& layout,
                         BetweenSteps between_steps, size_t piece_bytes)
    : identity_(identity),
      kv_(kv),
      runner_(runner),
      layout_(layout),
      geometry_(kv.page_size(), all_reach(kv), kv.page_size()),
      between_steps_(std::move(between_steps)),
      piece_bytes_(piece_bytes) {}

bool PrefixPages::enabled() const { return kv_.prefix_enabled(); }

size_t PrefixPages::pages_per_piece() const { return std::max<size_t>(1, piece_bytes_ / layout_.page_bytes()); }

PrefixPages::Slot PrefixPages::slot(const Chain& chain, const Place& place) const {
  int stage = 0, group = place.group;
  for (; group >= kv_.stage(stage).geometry().num_groups(); ++stage) group -= kv_.stage(stage).geometry().num_groups();
  const std::vector<int32_t>& nodes = chain.nodes_[static_cast<size_t>(stage)];
  const auto block = static_cast<size_t>(place.block);
  return {stage, group, block < nodes.size() ? nodes[block] : PrefixCache::kNone};
}

int64_t PrefixPages::num_cached(const std::string& salt, std::span<const int32_t> tokens) {
  int64_t blocks = 0;
  between_steps_([&] { blocks = static_cast<int64_t>(kv_.cached_chains(salt, tokens).front().size()); });
  return blocks * geometry_.page_size();
}

std::vector<PrefixPages::Place> PrefixPages::find(const std::string& salt, std::span<const int32_t> tokens,
                                                  Chain& chain) {
  std::vector<Place> pages;
  between_steps_([&] {
    chain.pin(kv_.cached_chains(salt, tokens));
    for (int64_t block = 0; block < chain.num_blocks(); ++block) {
      for (int group = 0; group < geometry_.num_groups(); ++group) {
        const Slot s = slot(chain, {block, group});
        if (kv_.stage(s.stage).prefix().page(s.node, s.group) != kNoPage) pages.push_back({block, group});
      }
    }
  });
  return pages;
}

void PrefixPages::check_room(std::span<const Place> places) const {
  std::vector<int64_t> needed(static_cast<size_t>(geometry_.num_groups()));  // [groups]
  for (const Place& place : places) ++needed[static_cast<size_t>(place.group)];
  for (int stage = 0, g = 0; stage < kv_.num_stages(); ++stage) {
    int64_t pages = 0;
    for (int own = 0; own < kv_.stage(stage).geometry().num_groups(); ++own) pages += needed[static_cast<size_t>(g++)];
    const int64_t available = kv_.stage(stage).num_available();
    if (pages <= available) continue;
    throw SnapshotError(SnapshotFault::kRefused, "the prefix needs {} pages and only {} are not in use", pages,
                        available);
  }
}

void PrefixPages::insert(const std::string& salt, std::span<const int32_t> tokens, std::span<const Place> pages,
                         Chain& chain) {
  between_steps_([&] {
    check_room(pages);
    std::vector<std::vector<int32_t>> nodes;
    for (int stage = 0; stage < kv_.num_stages(); ++stage) {
      nodes.push_back(kv_.stage(stage).insert_chain(salt, tokens));
    }
    chain.pin(std::move(nodes));
  });
}

void PrefixPages::read(const Chain& chain, std::span<const Place> places, std::span<std::byte> out) {
  between_steps_([&] {
    chain.check_whole();
    std::vector<Slot> slots;
    for (const Place& place : places) slots.push_back(slot(chain, place));
    if (read_slots(slots, out)) return;
    throw SnapshotError(SnapshotFault::kBusy, "pages were evicted while they were being saved");
  });
  const size_t bytes = page_bytes();
  for (size_t i = 0; i < places.size(); ++i) {
    clear_unused_bytes(layout_, places[i].block, out.subspan(i * bytes, bytes));
  }
}

bool PrefixPages::read_slots(std::span<const Slot> slots, std::span<std::byte> out) {
  const size_t bytes = page_bytes();
  std::vector<int32_t> ids;
  std::vector<size_t> at;
  std::vector<std::byte> own;
  for (int stage = 0; stage < kv_.num_stages(); ++stage) {
    ids.clear();
    at.clear();
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].stage != stage) continue;
      ids.push_back(kv_.stage(stage).prefix().page(slots[i].node, slots[i].group));
      at.push_back(i);
      if (ids.back() == kNoPage) return false;
    }
    if (ids.empty()) continue;
    if (ids.size() == slots.size()) {
      runner_.read_pages(stage, ids, out);
      continue;
    }
    own.resize(ids.size() * bytes);
    runner_.read_pages(stage, ids, own);
    for (size_t i = 0; i < at.size(); ++i) std::memcpy(out.data() + at[i] * bytes, own.data() + i * bytes, bytes);
  }
  return true;
}

void PrefixPages::write(const Chain& chain, std::span<const Place> places, std::span<const std::byte> in) {
  between_steps_([&] {
    chain.check_whole();
    check_room(places);
    std::vector<Slot> slots;
    for (const Place& place : places) slots.push_back(slot(chain, place));
    write_slots(slots, in);
  });
}

// Pages of blocks whose hash another block has are given up.
void PrefixPages::write_slots(std::span<const Slot> slots, std::span<const std::byte> in) {
  const size_t bytes = page_bytes();
  std::vector<size_t> at;
  std::vector<std::byte> own;
  for (int stage = 0; stage < kv_.num_stages(); ++stage) {
    at.clear();
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].stage == stage) at.push_back(i);
    }
    if (at.empty()) continue;
    std::span<const std::byte> from = in;
    if (at.size() < slots.size()) {
      own.resize(at.size() * bytes);
      for (size_t i = 0; i < at.size(); ++i) std::memcpy(own.data() + i * bytes, in.data() + at[i] * bytes, bytes);
      from = own;
    }
    KvCache& kv = kv_.stage(stage);
    const auto pages = kv.allocate_pages(static_cast<int64_t>(at.size()));
    if (!pages) throw Error("{} pages are not available", at.size());
    try {
      runner_.write_pages(stage, *pages, from);
    } catch (...) {
      kv.release_pages(*pages);
      throw;
    }
    for (size_t i = at.size(); i-- > 0;) {
      const Slot& s = slots[at[i]];
      const int32_t page = (*pages)[i];
      if (s.node != PrefixCache::kNone) {
        kv.adopt_page(s.node, s.group, page);
      } else {
        kv.release_pages({&page, 1});
      }
    }
  }
}

}  // namespace bam
