// Who touched each byte last. Two threads that touch a byte, one of them writing, without a barrier between them, race:
// any order that the scheduler chooses is right, and so is every result.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <unordered_map>

namespace ptx {

// When a thread of a launch does something. Threads are numbered through the whole launch, every warp of a block by 32
// and every block by a multiple of it.
struct Moment {
  uint32_t thread = 0;
  uint32_t block_threads = 32;  // rounded up to whole warps
  uint32_t barriers = 0;        // that its block has passed
  uint32_t syncs = 0;           // that its warp has passed
};

enum class Access : uint8_t { kRead, kWrite, kAtomic };

// What a race is with.
struct Conflict {
  uint32_t thread;
  Access access;
};

class Shadow {
 public:
  Shadow();
  ~Shadow();
  // Forgets everything: memory is in order again.
  void clear();
  // Notes the access. True and `conflict` if it races with an earlier one. same: a write that changes nothing does not
  // race with other writes.
  bool note(Access access, uint64_t address, uint64_t bytes, const Moment& now, bool same, Conflict& conflict);

 private:
  using Record = uint64_t;  // thread + 1, barriers, syncs; 0: nobody
  struct Cell {
    Record write = 0, atomic = 0, reads[2] = {};
  };
  static constexpr uint64_t kPageBytes = 4096, kWord = 4;
  // Cells of words, and of bytes for those words that were touched in parts.
  struct Page {
    Cell words[kPageBytes / kWord];
    std::unique_ptr<Cell[]> bytes;
    std::bitset<kPageBytes / kWord> split;
  };
  static Record record(const Moment& now);
  static bool ordered(Record earlier, const Moment& now);
  static bool note(Cell& cell, Access access, const Moment& now, bool same, Conflict& conflict);
  Page& page(uint64_t address);
  Cell* split(Page& page, uint64_t word);

  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
  uint64_t last_number_ = ~uint64_t{0};
  Page* last_ = nullptr;
};

}  // namespace ptx
