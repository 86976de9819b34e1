#include "tests/ptx/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "tests/cuda_emu/emu/fault.h"
#include "tests/cuda_emu/emu/random.h"

namespace ptx {

using cuda_emu::Fault;

namespace {

// What a kernel may declare, on every device; more must be dynamic.
constexpr uint64_t kMostStaticShared = 48 * 1024;

}  // namespace

void Machine::run(const Module& module, const Function& function, const Launch& launch) {
  module_ = &module;
  function_ = &function;
  launch_ = &launch;
  running_ = nullptr;
  const auto& [grid, block] = launch.shape;
  threads_ = block[0] * block[1] * block[2];
  padded_threads_ = (threads_ + 31) / 32 * 32;
  if (static_cast<int>(threads_) > function.max_threads) {
    throw Fault(fmt::format("{}: a block of {} threads, the kernel was compiled for {}", function.name, threads_,
                            function.max_threads));
  }
  if (function.static_shared > kMostStaticShared) {
    throw Fault(fmt::format("{}: {} bytes of static shared memory in a block, a kernel may have {}", function.name,
                            function.static_shared, kMostStaticShared));
  }
  if (function.static_shared + launch.dynamic_shared > launch.shared_limit) {
    throw Fault(fmt::format("{}: {} + {} bytes of shared memory in a block, the device has {}", function.name,
                            function.static_shared, launch.dynamic_shared, launch.shared_limit));
  }
  if (launch.params.size() != function.param_bytes) {
    throw Fault(fmt::format("{}: {} bytes of parameters, the kernel takes {}", function.name, launch.params.size(),
                            function.param_bytes));
  }
  memory_.begin_launch(module, function, launch.params, launch.dynamic_shared, padded_threads_);
  warps_.resize(padded_threads_ / 32);
  order_.resize(warps_.size());
  std::iota(order_.begin(), order_.end(), 0u);
  std::vector<uint32_t> blocks(size_t{grid[0]} * grid[1] * grid[2]);
  std::iota(blocks.begin(), blocks.end(), 0u);
  cuda_emu::Random random(launch.seed);
  if (launch.seed != 0) cuda_emu::shuffle_items(blocks, random);
  for (const uint32_t id : blocks) {
    if (launch.seed != 0) cuda_emu::shuffle_items(order_, random);
    run_block({id % grid[0], id / grid[0] % grid[1], id / (grid[0] * grid[1])}, id);
  }
}

void Machine::run_block(std::array<uint32_t, 3> block, uint32_t index) {
  memory_.begin_block();
  for (uint32_t w = 0; w < warps_.size(); ++w) {
    const uint32_t lanes = std::min(threads_ - 32 * w, 32u);
    warps_[w].start(*function_, memory_, launch_->shape, block, index * padded_threads_ + 32 * w, padded_threads_, w,
                    lanes == 32 ? ~0u : (1u << lanes) - 1);
  }
  try {
    for (bool waiting = true; waiting;) {
      waiting = false;
      for (const uint32_t w : order_) {
        running_ = &warps_[w];
        warps_[w].run();
        waiting = waiting || warps_[w].state() == Warp::State::kAtBarrier;
      }
      if (waiting) release_barrier();
    }
    memory_.end_block();
  } catch (const Fault& fault) {
    const std::string what = fault.what(), prefix = Fault("").what();
    explain(what.substr(what.starts_with(prefix) ? prefix.size() : 0), block);
  }
}

void Machine::release_barrier() {
  const Instruction* barrier = nullptr;
  uint32_t votes = 0, voters = 0;
  for (const Warp& warp : warps_) {
    if (warp.state() != Warp::State::kAtBarrier) continue;
    running_ = &warp;
    if (barrier != nullptr && barrier != &warp.barrier()) {
      throw Fault(fmt::format("divergent barrier: some warps of the block are at line {}, others at line {}",
                              barrier->line, warp.barrier().line));
    }
    barrier = &warp.barrier();
    votes += static_cast<uint32_t>(std::popcount(warp.barrier_predicate()));
    voters += static_cast<uint32_t>(std::popcount(warp.live()));
  }
  if (barrier->operands.size() > 1 && !barrier->has("red")) throw Fault("a barrier for some threads of a block");
  const bool vote = barrier->has("and") ? votes == voters : votes > 0;
  for (Warp& warp : warps_) {
    if (warp.state() == Warp::State::kAtBarrier) warp.pass_barrier(vote);
  }
}

void Machine::explain(const std::string& what, std::array<uint32_t, 3> block) const {
  std::string where;
  if (running_ != nullptr) {
    const Instruction& instruction = running_->current();
    where = fmt::format(" at {}:{} ({})", module_->name(), instruction.line, instruction.opcode());
    if (const std::string_view file = module_->file(instruction.file); !file.empty()) {
      where += fmt::format(", {}:{}",
                           file.substr(file.find("kernels/") == std::string_view::npos ? 0 : file.find("kernels/")),
                           instruction.source_line);
    }
  }
  throw Fault(
      fmt::format("{}\n  in {}, block ({}, {}, {}){}", what, function_->name, block[0], block[1], block[2], where));
}

}  // namespace ptx
