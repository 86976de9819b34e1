// 32 threads that execute one instruction together, as far as they agree on which. Where they part, each side is a path
// of its own up to the branch's immediate post-dominator; a path that has to wait for lanes of another one (a barrier, a
// shuffle) lets that one go first.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/ptx/memory.h"
#include "tests/ptx/module.h"

namespace ptx {

template <typename T>
using Lanes = std::array<T, 32>;

struct GridShape {
  std::array<uint32_t, 3> grid{1, 1, 1}, block{1, 1, 1};
};

template <typename T>
T from_bits(uint64_t bits) {
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits));
  } else if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<double>(bits);
  } else {
    return static_cast<T>(bits);
  }
}
template <typename T>
uint64_t to_bits(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<uint32_t>(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<uint64_t>(value);
  } else {
    return static_cast<uint64_t>(value);  // signed numbers are extended
  }
}

class Warp {
 public:
  enum class State : uint8_t { kRunning, kAtBarrier, kDone };

  // lanes: those that exist. block: index of the block, all three of its coordinates.
  void start(const Function& function, Memory& memory, const GridShape& shape, std::array<uint32_t, 3> block,
             uint32_t first_thread, uint32_t block_threads, uint32_t warp, uint32_t lanes);
  // Until a barrier or the end.
  void run();
  State state() const { return state_; }
  // Where it waits, and the vote of its lanes there.
  const Instruction& barrier() const { return function_->code[static_cast<size_t>(barrier_)]; }
  uint32_t barrier_predicate() const { return barrier_predicate_; }
  uint32_t live() const { return live_; }
  // All warps are there: `vote` goes to the predicate of a bar.red.
  void pass_barrier(bool vote);
  // The instruction that is being executed.
  const Instruction& current() const { return function_->code[static_cast<size_t>(pc_)]; }

  // ---- for handlers ----
  uint32_t lanes() const { return exec_; }  // that execute the instruction
  Memory& memory() { return *memory_; }
  const Function& function() const { return *function_; }
  Moment moment(int lane) const {
    return {first_thread_ + static_cast<uint32_t>(lane), block_threads_, barriers_, syncs_};
  }
  void synced() { ++syncs_; }
  template <typename Body>
  void for_lanes(Body&& body) const {
    for (uint32_t left = exec_; left != 0; left &= left - 1) body(std::countr_zero(left));
  }

  template <typename T>
  Lanes<T> get(const Operand& operand) const;
  template <typename T>
  void put(const Operand& operand, const Lanes<T>& values);
  uint32_t get_predicate(const Operand& operand) const;
  void put_predicate(int reg, uint32_t values);
  // The address that an operand [base + offset] names in every lane, inside the space of its instruction.
  Lanes<uint64_t> address(const Operand& operand) const;
  // A variable's address inside its space.
  uint64_t variable_address(int variable) const;
  // The space that an access through a variable is to: parameters of functions lie in local memory.
  Space space_of(const Instruction& instruction, const Operand& operand) const;
  uint32_t special(uint64_t which, int lane) const;
  uint32_t carry = 0;  // condition code of every lane

 private:
  struct Path {
    int pc = 0;
    uint32_t mask = 0;
    int join = -1;     // ends there
    int parent = -1;   // waits there for its paths
    int children = 0;  // that are still under way
    bool blocked = false;
    bool open = false;
  };
  int add_path(int pc, uint32_t mask, int join, int parent);
  void close_path(int index);
  // A path that can go on; -1: none.
  int choose() const;
  void branch(int index, const Instruction& instruction, uint32_t taken);
  void end_lanes(uint32_t lanes);
  void wake();
  // True if the path has every lane that the instruction wants.
  bool complete(const Path& path, const Instruction& instruction);
  uint32_t wanted_lanes(const Instruction& instruction) const;
  void step(int index);

  const uint32_t* words(int reg) const { return &registers_[offsets_[static_cast<size_t>(reg)]]; }
  uint32_t* words(int reg) { return &registers_[offsets_[static_cast<size_t>(reg)]]; }

  const Function* function_ = nullptr;
  Memory* memory_ = nullptr;
  const GridShape* shape_ = nullptr;
  std::array<uint32_t, 3> block_{};
  uint32_t first_thread_ = 0, block_threads_ = 32, warp_ = 0;
  std::vector<uint32_t> registers_;
  std::vector<uint32_t> offsets_;     // by register: its first word
  std::vector<uint32_t> predicates_;  // by register: a bit per lane
  std::vector<Path> paths_;
  State state_ = State::kRunning;
  uint32_t live_ = 0, exec_ = 0;
  int pc_ = 0;
  int barrier_ = -1, barrier_path_ = -1;
  uint32_t barrier_predicate_ = 0;
  uint32_t barriers_ = 0, syncs_ = 0;
};

template <typename T>
Lanes<T> Warp::get(const Operand& operand) const {
  Lanes<T> values{};
  switch (operand.kind) {
    case Operand::Kind::kRegister: {
      const uint32_t* from = words(operand.reg);
      if (function_->wide[static_cast<size_t>(operand.reg)]) {
        const auto* wide = reinterpret_cast<const uint64_t*>(from);
        for (size_t lane = 0; lane < 32; ++lane) values[lane] = from_bits<T>(wide[lane]);
      } else {
        for (size_t lane = 0; lane < 32; ++lane) values[lane] = from_bits<T>(from[lane]);
      }
      break;
    }
    case Operand::Kind::kImmediate: values.fill(from_bits<T>(operand.bits)); break;
    case Operand::Kind::kVariable: values.fill(from_bits<T>(variable_address(operand.variable))); break;
    case Operand::Kind::kSpecial:
      for (int lane = 0; lane < 32; ++lane)
        values[static_cast<size_t>(lane)] = from_bits<T>(special(operand.bits, lane));
      break;
    default: break;
  }
  return values;
}

template <typename T>
void Warp::put(const Operand& operand, const Lanes<T>& values) {
  if (operand.kind != Operand::Kind::kRegister) return;  // a sink
  uint32_t* to = words(operand.reg);
  const bool wide = function_->wide[static_cast<size_t>(operand.reg)];
  if (exec_ == 0xffffffffu) {
    if (wide) {
      for (size_t lane = 0; lane < 32; ++lane) reinterpret_cast<uint64_t*>(to)[lane] = to_bits(values[lane]);
    } else {
      for (size_t lane = 0; lane < 32; ++lane) to[lane] = static_cast<uint32_t>(to_bits(values[lane]));
    }
    return;
  }
  for_lanes([&](int lane) {
    const uint64_t bits = to_bits(values[static_cast<size_t>(lane)]);
    if (wide) {
      reinterpret_cast<uint64_t*>(to)[lane] = bits;
    } else {
      to[lane] = static_cast<uint32_t>(bits);
    }
  });
}

}  // namespace ptx
