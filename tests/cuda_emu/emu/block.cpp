#include "tests/cuda_emu/emu/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>

#include "tests/cuda_emu/emu/config.h"
#include "tests/cuda_emu/emu/fault.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace cuda_emu {

namespace {

// The block of the grid that is running, or null. Written under the grid mutex only.
Block* running = nullptr;

bool same_place(const Where& a, const Where& b) {
  return a.line() == b.line() && a.column() == b.column() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

std::string place(const Where& where) { return fmt::format("{}:{}", where.file_name(), where.line()); }

}  // namespace

Block& running_block() {
  if (running == nullptr) throw Fault("device code called on the host");
  return *running;
}

void run_grid(const LaunchShape& shape, const std::function<void()>& body) {
  static std::mutex mutex;
  static Block block;
  const std::lock_guard lock(mutex);
  struct Running {
    explicit Running(Block* b) { running = b; }
    ~Running() { running = nullptr; }
  } const guard(&block);
  block.run_grid(shape, body);
}

void Block::run_grid(const LaunchShape& shape, const std::function<void()>& body) {
  body_ = &body;
  gridDim = shape.grid;
  blockDim = shape.block;
  random_ = Random(config().seed + statistics().launches * 0x100000001b3u);
  prepare(shape);
  shared_.begin_launch(shape.shared_bytes, config().shared_per_block_optin());
  const uint64_t total = uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z;
  std::vector<uint32_t> blocks;
  if (config().seed != 0 && total <= 1u << 20) {
    blocks.resize(total);
    std::iota(blocks.begin(), blocks.end(), 0u);
    shuffle_items(blocks, random_);
  }
  for (uint64_t i = 0; i < total; ++i) {
    const uint64_t id = blocks.empty() ? i : blocks[i];
    blockIdx = {static_cast<unsigned>(id % shape.grid.x), static_cast<unsigned>(id / shape.grid.x % shape.grid.y),
                static_cast<unsigned>(id / (uint64_t{shape.grid.x} * shape.grid.y))};
    run_block();
  }
}

void Block::prepare(const LaunchShape& shape) {
  const size_t count = size_t{shape.block.x} * shape.block.y * shape.block.z;
  stacks_.reserve(count);
  threads_.resize(count);
  warps_.assign((count + 31) / 32, {});
  order_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    Thread& thread = threads_[i];
    thread.index = {static_cast<unsigned>(i % shape.block.x), static_cast<unsigned>(i / shape.block.x % shape.block.y),
                    static_cast<unsigned>(i / (size_t{shape.block.x} * shape.block.y))};
    thread.lane = static_cast<int>(i % 32);
    thread.warp = static_cast<int>(i / 32);
    warps_[i / 32].existing |= 1u << (i % 32);
  }
}

// Ascending without a seed; else descending, whole warps shuffled, or all threads shuffled.
void Block::draw_order() {
  std::iota(order_.begin(), order_.end(), 0u);
  if (config().seed == 0) return;
  switch (random_.below(3)) {
    case 0: std::reverse(order_.begin(), order_.end()); break;
    case 1: {
      std::vector<uint32_t> warps(warps_.size());
      std::iota(warps.begin(), warps.end(), 0u);
      shuffle_items(warps, random_);
      size_t at = 0;
      for (const uint32_t warp : warps) {
        for (uint32_t i = warp * 32; i < std::min<size_t>(warp * 32 + 32, threads_.size()); ++i) order_[at++] = i;
      }
      break;
    }
    default: shuffle_items(order_, random_); break;
  }
}

void Block::run_block() {
  shared_.begin_block();
  draw_order();
  for (size_t i = 0; i < threads_.size(); ++i) {
    threads_[i].state = Thread::State::kReady;
    threads_[i].copies.clear();
    prepare_context(threads_[i].context, stacks_.bottom(i), &Block::thread_main);
  }
  for (Warp& warp : warps_) warp.waiting = warp.done = 0;
  num_done_ = at_barrier_ = 0;
  barrier_count_ = 0;
  error_ = nullptr;
  while (num_done_ < threads_.size()) {
    bool progress = false;
    for (const uint32_t i : order_) {
      if (threads_[i].state != Thread::State::kReady) continue;
      progress = true;
      resume(threads_[i]);
      if (error_) std::rethrow_exception(error_);  // the other stacks are simply abandoned
    }
    if (at_barrier_ > 0 && at_barrier_ + num_done_ == threads_.size()) {
      release_barrier();
      progress = true;
    }
    if (!progress) throw Fault("deadlock: " + describe_waiting());
  }
  shared_.end_block();
}

void Block::resume(Thread& thread) {
  current_ = &thread;
  threadIdx = thread.index;
  switch_context(scheduler_, thread.context);
}

void Block::thread_main() {
  Block& block = *running;
  context_entered(block.scheduler_);
  try {
    (*block.body_)();
  } catch (...) {
    block.error_ = std::current_exception();
  }
  Thread& self = *block.current_;
  self.state = Thread::State::kDone;
  block.warps_[static_cast<size_t>(self.warp)].done |= 1u << self.lane;
  ++block.num_done_;
  switch_context(self.context, block.scheduler_, true);
  __builtin_unreachable();
}

void Block::wait(Thread::State state) {
  Thread& self = *current_;
  self.state = state;
  switch_context(self.context, scheduler_);
}

int Block::barrier(BlockReduce kind, int predicate, Where where) {
  static constexpr const char* kNames[] = {"__syncthreads", "__syncthreads_or", "__syncthreads_and",
                                           "__syncthreads_count"};
  Thread& self = *current_;
  self.operation = kNames[static_cast<int>(kind)];
  self.where = where;
  if (at_barrier_ == 0) {
    barrier_where_ = where;
    barrier_name_ = self.operation;
  } else if (!same_place(barrier_where_, where)) {
    throw Fault(fmt::format("divergent barrier: some threads of a block are at {} ({}), others at {} ({})",
                            barrier_name_, place(barrier_where_), self.operation, place(where)));
  }
  ++at_barrier_;
  barrier_count_ += predicate != 0;
  wait(Thread::State::kAtBarrier);
  switch (kind) {
    case BlockReduce::kOr: return barrier_result_ > 0;
    case BlockReduce::kAnd: return barrier_result_ == barrier_voters_;
    default: return barrier_result_;
  }
}

void Block::release_barrier() {
  barrier_result_ = barrier_count_;
  barrier_voters_ = static_cast<int>(at_barrier_);
  barrier_count_ = 0;
  at_barrier_ = 0;
  for (Thread& thread : threads_) {
    if (thread.state == Thread::State::kAtBarrier) thread.state = Thread::State::kReady;
  }
}

void Block::warp_operation(const char* name, uint32_t mask, void* operand, WarpFunction function, Where where) {
  Thread& self = *current_;
  Warp& warp = warps_[static_cast<size_t>(self.warp)];
  self.operation = name;
  self.where = where;
  self.mask = mask;
  self.function = function;
  self.operand = operand;
  if ((mask >> self.lane & 1u) == 0) {
    throw Fault(fmt::format("{} at {}: lane {} is not in its own mask {:#010x}", name, place(where), self.lane, mask));
  }
  if ((mask & ~warp.existing) != 0 || (mask & warp.done) != 0) {
    throw Fault(fmt::format("{} at {}: the mask {:#010x} names lanes that have ended or do not exist", name,
                            place(where), mask));
  }
  warp.waiting |= 1u << self.lane;
  if ((warp.waiting & mask) != mask) {
    wait(Thread::State::kInWarp);
    return;
  }
  check_agreement(warp, self);
  void* operands[32] = {};
  Thread* const first = &threads_[static_cast<size_t>(self.warp) * 32];
  for (int lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1u) operands[lane] = first[lane].operand;
  }
  if (function != nullptr) function(operands, mask);
  warp.waiting &= ~mask;
  for (int lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1u) first[lane].state = Thread::State::kReady;
  }
  // The last one to come goes back in the queue as well: nobody runs ahead just because it was late.
  wait(Thread::State::kReady);
}

void Block::check_agreement(const Warp& warp, const Thread& self) const {
  const Thread* const first = &threads_[static_cast<size_t>(self.warp) * 32];
  for (int lane = 0; lane < 32; ++lane) {
    if ((self.mask & warp.waiting) >> lane & 1u) {
      const Thread& other = first[lane];
      if (other.mask != self.mask || std::strcmp(other.operation, self.operation) != 0 ||
          other.function != self.function) {
        throw Fault(fmt::format("lanes of a warp disagree: {} mask {:#010x} at {} against {} mask {:#010x} at {}",
                                self.operation, self.mask, place(self.where), other.operation, other.mask,
                                place(other.where)));
      }
    }
  }
}

std::string Block::describe_waiting() const {
  std::map<std::string, size_t> waiting;
  for (const Thread& thread : threads_) {
    if (thread.state == Thread::State::kDone) {
      ++waiting["ended"];
    } else {
      const std::string mask =
          thread.state == Thread::State::kInWarp ? fmt::format(" mask {:#010x}", thread.mask) : std::string();
      ++waiting[fmt::format("wait in {}{} at {}", thread.operation, mask, place(thread.where))];
    }
  }
  std::string text = fmt::format("block ({}, {}, {}):", blockIdx.x, blockIdx.y, blockIdx.z);
  for (const auto& [what, count] : waiting) text += fmt::format(" {} threads {};", count, what);
  text.pop_back();
  return text;
}

}  // namespace cuda_emu
