// One block of threads at a time, each thread on its own stack. A thread runs until it has to wait for others; who goes
// on next follows an order drawn from the seed, so that code which lacks a barrier meets its data in the wrong order.
#pragma once

#include <cuda_emu.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "tests/cuda_emu/emu/async_copy.h"
#include "tests/cuda_emu/emu/fiber.h"
#include "tests/cuda_emu/emu/random.h"
#include "tests/cuda_emu/emu/shared_memory.h"

namespace cuda_emu {

// What a warp operation does once all its lanes are there. operands[l] is what lane l brought, null if it takes no
// part.
using WarpFunction = void (*)(void* const (&operands)[32], uint32_t mask);

struct Thread {
  enum class State : uint8_t { kReady, kAtBarrier, kInWarp, kDone };
  Context context;
  uint3 index{};
  int lane = 0;
  int warp = 0;
  State state = State::kReady;
  // Of the operation it waits in.
  const char* operation = nullptr;
  Where where;
  uint32_t mask = 0;
  WarpFunction function = nullptr;
  void* operand = nullptr;
  AsyncCopies copies;
};

class Block {
 public:
  // Runs all blocks of a grid, one after the other. Faults leave as exceptions.
  void run_grid(const LaunchShape& shape, const std::function<void()>& body);

  // For the running thread:
  Thread& thread() { return *current_; }
  SharedMemory& shared() { return shared_; }
  int barrier(BlockReduce kind, int predicate, Where where);
  void warp_operation(const char* name, uint32_t mask, void* operand, WarpFunction function, Where where);

 private:
  struct Warp {
    uint32_t waiting = 0;
    uint32_t done = 0;
    uint32_t existing = 0;
  };
  static void thread_main();
  void prepare(const LaunchShape& shape);
  void run_block();
  void draw_order();
  void resume(Thread& thread);
  void wait(Thread::State state);
  void release_barrier();
  void check_agreement(const Warp& warp, const Thread& self) const;
  std::string describe_waiting() const;

  StackPool stacks_;
  SharedMemory shared_;
  Random random_{0};
  Context scheduler_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<uint32_t> order_;
  const std::function<void()>* body_ = nullptr;
  Thread* current_ = nullptr;
  std::exception_ptr error_;
  size_t num_done_ = 0;
  // The barrier of the block.
  size_t at_barrier_ = 0;
  const char* barrier_name_ = nullptr;
  Where barrier_where_;
  int barrier_count_ = 0;   // predicates that were true
  int barrier_result_ = 0;  // of the last one that all reached
  int barrier_voters_ = 0;
};

// The block that this code runs in; a fault outside of kernels.
Block& running_block();

// Runs a grid now. Only one thread at a time can.
void run_grid(const LaunchShape& shape, const std::function<void()>& body);

}  // namespace cuda_emu
