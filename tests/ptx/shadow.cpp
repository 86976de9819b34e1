#include "tests/ptx/shadow.h"

#include <algorithm>
#include <cstring>

#include "tests/cuda_emu/emu/fault.h"

namespace ptx {

namespace {

constexpr int kSyncBits = 18, kBarrierBits = 20;
constexpr size_t kMaxPages = 2048;  // kept between launches

uint32_t thread_of(uint64_t record) { return static_cast<uint32_t>(record >> (kSyncBits + kBarrierBits)) - 1; }
uint64_t barriers_of(uint64_t record) { return record >> kSyncBits & ((1u << kBarrierBits) - 1); }
uint64_t syncs_of(uint64_t record) { return record & ((1u << kSyncBits) - 1); }

}  // namespace

Shadow::Shadow() = default;
Shadow::~Shadow() = default;

void Shadow::clear() {
  if (pages_.size() > kMaxPages) {
    pages_.clear();
  } else {
    for (auto& [number, page] : pages_) {
      std::fill(std::begin(page->words), std::end(page->words), Cell{});
      page->split.reset();
    }
  }
  last_number_ = ~uint64_t{0};
}

Shadow::Record Shadow::record(const Moment& now) {
  if (now.thread + 1 >= 1u << 26 || now.barriers >= 1u << kBarrierBits || now.syncs >= 1u << kSyncBits) {
    throw cuda_emu::Fault("a launch too large to look for races in");
  }
  return (uint64_t{now.thread + 1} << kBarrierBits | now.barriers) << kSyncBits | now.syncs;
}

bool Shadow::ordered(Record earlier, const Moment& now) {
  if (earlier == 0) return true;
  const uint32_t thread = thread_of(earlier);
  if (thread == now.thread) return true;
  if (thread / now.block_threads != now.thread / now.block_threads) return false;
  if (barriers_of(earlier) != now.barriers) return true;
  return thread / 32 == now.thread / 32 && syncs_of(earlier) != now.syncs;
}

bool Shadow::note(Cell& cell, Access access, const Moment& now, bool same, Conflict& conflict) {
  const auto races = [&](Record earlier, Access how) {
    if (ordered(earlier, now)) return false;
    conflict = {thread_of(earlier), how};
    return true;
  };
  if (!(access == Access::kWrite && same) && races(cell.write, Access::kWrite)) return true;
  if (access != Access::kAtomic && races(cell.atomic, Access::kAtomic)) return true;
  const Record mine = record(now);
  if (access == Access::kRead) {
    // Two different readers are enough: a writer can be only one of them.
    if (cell.reads[0] != 0 && thread_of(cell.reads[0]) != now.thread) cell.reads[1] = cell.reads[0];
    cell.reads[0] = mine;
    return false;
  }
  for (const Record read : cell.reads) {
    if (races(read, Access::kRead)) return true;
  }
  (access == Access::kAtomic ? cell.atomic : cell.write) = mine;
  return false;
}

Shadow::Page& Shadow::page(uint64_t address) {
  const uint64_t number = address / kPageBytes;
  if (number != last_number_) {
    std::unique_ptr<Page>& page = pages_[number];
    if (page == nullptr) page = std::make_unique<Page>();
    last_ = page.get();
    last_number_ = number;
  }
  return *last_;
}

Shadow::Cell* Shadow::split(Page& page, uint64_t word) {
  if (page.bytes == nullptr) page.bytes = std::make_unique<Cell[]>(kPageBytes);
  Cell* cells = &page.bytes[word * kWord];
  if (!page.split[word]) {
    std::fill(cells, cells + kWord, page.words[word]);
    page.split[word] = true;
  }
  return cells;
}

bool Shadow::note(Access access, uint64_t address, uint64_t bytes, const Moment& now, bool same, Conflict& conflict) {
  for (uint64_t at = address, end = address + bytes; at < end;) {
    Page& here = page(at);
    const uint64_t word = at % kPageBytes / kWord, inside = at % kWord, count = std::min(kWord - inside, end - at);
    if (count == kWord && !here.split[word]) {
      if (note(here.words[word], access, now, same, conflict)) return true;
    } else {
      Cell* cells = split(here, word);
      for (uint64_t b = inside; b < inside + count; ++b) {
        if (note(cells[b], access, now, same, conflict)) return true;
      }
    }
    at += count;
  }
  return false;
}

}  // namespace ptx
