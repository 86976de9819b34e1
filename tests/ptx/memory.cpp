#include "tests/ptx/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/cuda_emu/emu/device_memory.h"
#include "tests/cuda_emu/emu/fault.h"
#include "tests/cuda_emu/emu/shared_memory.h"

namespace ptx {

using cuda_emu::Fault;
using cuda_emu::kPoison;

namespace {

constexpr uint64_t kDynamicAlignment = 128;

const char* name_of(Access access) {
  switch (access) {
    case Access::kRead: return "reads";
    case Access::kWrite: return "writes";
    default: return "updates atomically";
  }
}

const char* name_of(Space space) {
  switch (space) {
    case Space::kShared: return "shared";
    case Space::kLocal: return "local";
    case Space::kParam: return "parameter";
    default: return "global";
  }
}

}  // namespace

void Memory::begin_launch(const Module& module, const Function& function, std::span<const uint8_t> params,
                          uint64_t dynamic_shared, uint32_t block_threads) {
  module_ = &module;
  function_ = &function;
  params_ = params;
  block_threads_ = block_threads;
  dynamic_begin_ = (function.shared_end + kDynamicAlignment - 1) / kDynamicAlignment * kDynamicAlignment;
  regions_.clear();
  for (const Variable& variable : function.variables) {
    if (variable.space == Space::kShared && !variable.dynamic) {
      regions_.push_back({variable.offset, variable.offset + variable.bytes});
    }
  }
  if (dynamic_shared > 0) regions_.push_back({dynamic_begin_, dynamic_begin_ + dynamic_shared});
  std::reverse(regions_.begin(), regions_.end());  // most accesses are to the dynamic one
  shared_.resize(dynamic_begin_ + dynamic_shared);
  flight_.resize(shared_.size() / 4 + 1);
  local_stride_ = (function.local_bytes + 15) / 16 * 16;
  local_.resize(local_stride_ * block_threads + 1);
  global_shadow_.clear();
}

void Memory::begin_block() {
  std::fill(shared_.begin(), shared_.end(), static_cast<uint8_t>(kPoison));
  std::fill(local_.begin(), local_.end(), static_cast<uint8_t>(kPoison));
  std::fill(flight_.begin(), flight_.end(), 0);
  copies_.assign(block_threads_, {});
  shared_shadow_.clear();
}

void Memory::end_block() const {
  for (size_t thread = 0; thread < copies_.size(); ++thread) {
    if (!copies_[thread].copies.empty()) {
      throw Fault(
          fmt::format("thread {} ends while {} of its cp.async are under way", thread, copies_[thread].copies.size()));
    }
  }
}

uint8_t* Memory::locate(Space& space, uint64_t& address, uint64_t bytes, uint64_t alignment, bool writing,
                        const Moment& now) {
  if (space == Space::kGeneric) {
    const uint64_t window = address & ~kWindowMask;
    address &= kWindowMask;
    space = window == kSharedWindow  ? Space::kShared
            : window == kLocalWindow ? Space::kLocal
            : window == kParamWindow ? Space::kParam
                                     : Space::kGlobal;
  }
  const auto refuse = [&](const char* why) {
    throw Fault(fmt::format("thread {} {} {} bytes of {} memory at {:#x}: {}", now.thread % block_threads_,
                            writing ? "writes" : "reads", bytes, name_of(space), address, why));
  };
  if (address % alignment != 0) refuse("not aligned");
  switch (space) {
    case Space::kShared:
      for (const Region& region : regions_) {
        if (address >= region.begin && address + bytes <= region.end) return &shared_[address];
      }
      refuse("out of the bounds of every shared variable");
      break;
    case Space::kLocal:
      if (address + bytes > function_->local_bytes) refuse("out of bounds");
      return local(now.thread) + address;
    case Space::kParam:
      if (writing || address + bytes > params_.size()) refuse("out of bounds");
      return const_cast<uint8_t*>(params_.data()) + address;
    default:
      if (!cuda_emu::device_memory().contains(reinterpret_cast<const void*>(address), bytes) &&
          (writing || !module_->contains(address, bytes))) {
        refuse("out of the bounds of every allocation");
      }
      return reinterpret_cast<uint8_t*>(address);
  }
  return nullptr;
}

void Memory::check_flight(uint64_t shared, uint64_t bytes, Access access, const Moment& now) const {
  for (uint64_t word = shared / 4; word * 4 < shared + bytes; ++word) {
    if (flight_[word] != 0) {
      throw Fault(
          fmt::format("thread {} {} shared memory at {:#x} while a cp.async of thread {} is under way there: "
                      "a commit, a wait or a barrier is missing",
                      now.thread % block_threads_, name_of(access), shared, flight_[word] - 1));
    }
  }
}

void Memory::note(Access access, Space space, uint64_t address, const uint8_t* at, uint64_t bytes, const Moment& now,
                  const void* value) {
  if (space != Space::kShared && space != Space::kGlobal) return;
  if (space == Space::kShared) check_flight(address, bytes, access, now);
  const bool same = value != nullptr && std::memcmp(at, value, bytes) == 0;
  Shadow& shadow = space == Space::kShared ? shared_shadow_ : global_shadow_;
  Conflict other;
  if (!shadow.note(access, address, bytes, now, same, other)) return;
  const auto thread = [&](uint32_t id) {
    return fmt::format("thread {} of block {}", id % block_threads_, id / block_threads_);
  };
  throw Fault(fmt::format("a race: {} {} {} memory at {:#x} that {} {} before, with nothing between them",
                          thread(now.thread), name_of(access), name_of(space), address, thread(other.thread),
                          name_of(other.access)));
}

const uint8_t* Memory::read(Space space, uint64_t address, uint64_t bytes, const Moment& now) {
  const uint8_t* at = locate(space, address, bytes, bytes, false, now);
  note(Access::kRead, space, address, at, bytes, now, nullptr);
  return at;
}

void Memory::write(Space space, uint64_t address, const void* from, uint64_t bytes, const Moment& now) {
  uint8_t* at = locate(space, address, bytes, bytes, true, now);
  note(Access::kWrite, space, address, at, bytes, now, from);
  std::memcpy(at, from, bytes);
}

uint8_t* Memory::update(Space space, uint64_t address, uint64_t bytes, const Moment& now) {
  uint8_t* at = locate(space, address, bytes, bytes, true, now);
  note(Access::kAtomic, space, address, at, bytes, now, nullptr);
  return at;
}

void Memory::start_copy(uint64_t shared, Space from_space, uint64_t from, uint64_t bytes, uint64_t source_bytes,
                        const Moment& now) {
  if (source_bytes > bytes) throw Fault(fmt::format("cp.async of {} bytes: a source size of {}", bytes, source_bytes));
  if (from % bytes != 0) throw Fault(fmt::format("cp.async of {} bytes from {:#x}: not aligned", bytes, from));
  Space to_space = Space::kShared;
  uint8_t* to = locate(to_space, shared, bytes, bytes, true, now);
  const uint8_t* source = nullptr;
  if (source_bytes > 0) {
    source = locate(from_space, from, source_bytes, 1, false, now);
    note(Access::kRead, from_space, from, source, source_bytes, now, nullptr);
  }
  note(Access::kWrite, Space::kShared, shared, to, bytes, now, nullptr);
  std::memset(to, kPoison, bytes);
  const uint32_t thread = now.thread % block_threads_;
  for (uint64_t word = shared / 4; word * 4 < shared + bytes; ++word) flight_[word] = thread + 1;
  copies_[thread].copies.push_back({shared, source, bytes, source_bytes});
}

void Memory::commit(const Moment& now) {
  Copies& mine = copies_[now.thread % block_threads_];
  mine.group_ends.push_back(mine.copies.size());
}

void Memory::wait(size_t pending, const Moment& now) {
  Copies& mine = copies_[now.thread % block_threads_];
  if (mine.group_ends.size() <= pending) return;
  const size_t groups = mine.group_ends.size() - pending, landed = mine.group_ends[groups - 1];
  for (size_t i = 0; i < landed; ++i) {
    const Copy& copy = mine.copies[i];
    for (uint64_t word = copy.to / 4; word * 4 < copy.to + copy.bytes; ++word) flight_[word] = 0;
    uint8_t* to = &shared_[copy.to];
    // Whoever reads it needs a barrier after this wait, not after the copy's start.
    note(Access::kWrite, Space::kShared, copy.to, to, copy.bytes, now, nullptr);
    if (copy.source_bytes > 0) std::memcpy(to, copy.from, copy.source_bytes);
    std::memset(to + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
  }
  mine.copies.erase(mine.copies.begin(), mine.copies.begin() + static_cast<std::ptrdiff_t>(landed));
  mine.group_ends.erase(mine.group_ends.begin(), mine.group_ends.begin() + static_cast<std::ptrdiff_t>(groups));
  for (size_t& end : mine.group_ends) end -= landed;
}

}  // namespace ptx
