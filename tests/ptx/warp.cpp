#include "tests/ptx/warp.h"

#include <fmt/format.h>

#include <algorithm>

#include "tests/cuda_emu/emu/fault.h"

namespace ptx {

using cuda_emu::Fault;

void Warp::start(const Function& function, Memory& memory, const GridShape& shape, std::array<uint32_t, 3> block,
                 uint32_t first_thread, uint32_t block_threads, uint32_t warp, uint32_t lanes) {
  if (function_ != &function) {
    offsets_.clear();
    uint32_t size = 0;
    for (const bool wide : function.wide) {
      offsets_.push_back(size);
      size += wide ? 64 : 32;
    }
    registers_.resize(size);
    predicates_.resize(function.wide.size());
  }
  function_ = &function;
  memory_ = &memory;
  shape_ = &shape;
  block_ = block;
  first_thread_ = first_thread;
  block_threads_ = block_threads;
  warp_ = warp;
  std::fill(registers_.begin(), registers_.end(), 0xffffffffu);  // nobody may count on a register that nobody wrote
  std::fill(predicates_.begin(), predicates_.end(), 0);
  live_ = lanes;
  state_ = State::kRunning;
  barriers_ = syncs_ = 0;
  paths_.clear();
  add_path(0, lanes, -1, -1);
}

int Warp::add_path(int pc, uint32_t mask, int join, int parent) {
  const Path path{pc, mask, join, parent, 0, false, true};
  for (size_t i = 0; i < paths_.size(); ++i) {
    if (!paths_[i].open) {
      paths_[i] = path;
      return static_cast<int>(i);
    }
  }
  paths_.push_back(path);
  return static_cast<int>(paths_.size()) - 1;
}

void Warp::close_path(int index) {
  Path& path = paths_[static_cast<size_t>(index)];
  path.open = false;
  if (path.parent >= 0) {
    Path& parent = paths_[static_cast<size_t>(path.parent)];
    if (--parent.children == 0 && parent.mask == 0) close_path(path.parent);
  }
  wake();
}

// Something has changed: whoever waited for other lanes may look again.
void Warp::wake() {
  for (Path& path : paths_) path.blocked = false;
}

int Warp::choose() const {
  for (size_t i = paths_.size(); i-- > 0;) {
    if (paths_[i].open && paths_[i].children == 0 && !paths_[i].blocked) return static_cast<int>(i);
  }
  return -1;
}

void Warp::branch(int index, const Instruction& instruction, uint32_t taken) {
  Path& path = paths_[static_cast<size_t>(index)];
  const uint32_t stays = path.mask & ~taken;
  if (stays == 0) {
    path.pc = instruction.target;
  } else if (taken == 0) {
    ++path.pc;
  } else {
    const int next = path.pc + 1, target = instruction.target;
    path.pc = instruction.join;  // unused if the sides never meet
    path.children = 2;
    add_path(next, stays, instruction.join, index);
    add_path(target, taken, instruction.join, index);
  }
}

void Warp::end_lanes(uint32_t lanes) {
  live_ &= ~lanes;
  for (size_t i = 0; i < paths_.size(); ++i) {
    if (!paths_[i].open) continue;
    paths_[i].mask &= ~lanes;
  }
  for (size_t i = 0; i < paths_.size(); ++i) {
    if (paths_[i].open && paths_[i].mask == 0 && paths_[i].children == 0) close_path(static_cast<int>(i));
  }
  wake();
}

uint32_t Warp::wanted_lanes(const Instruction& instruction) const {
  const std::string& family = instruction.parts.front();
  const Operand* mask = nullptr;
  if (family == "shfl" || family == "vote" || family == "redux" || family == "match")
    mask = &instruction.operands.back();
  if (family == "bar" && instruction.has("warp")) mask = &instruction.operands.front();
  if (mask == nullptr) return live_;  // .aligned: all of them
  const Lanes<uint32_t> masks = get<uint32_t>(*mask);
  uint32_t wanted = 0;
  bool first = true;
  for_lanes([&](int lane) {
    const uint32_t own = masks[static_cast<size_t>(lane)];
    if ((own >> lane & 1) == 0) throw Fault(fmt::format("lane {} is not in its own mask {:#010x}", lane, own));
    if (!first && own != wanted)
      throw Fault(fmt::format("lanes disagree on their mask: {:#010x}, {:#010x}", wanted, own));
    wanted = own;
    first = false;
  });
  if ((wanted & ~live_) != 0)
    throw Fault(fmt::format("the mask {:#010x} names lanes that have ended or do not exist", wanted));
  return wanted;
}

bool Warp::complete(const Path& path, const Instruction& instruction) {
  if (exec_ != path.mask) throw Fault("a guard lets only some lanes of the warp through");
  const uint32_t wanted = instruction.flow == Flow::kBarrier ? live_ : wanted_lanes(instruction);
  if ((wanted & ~exec_) == 0) return true;
  if (choose() >= 0) return false;
  throw Fault(fmt::format("divergence: lanes {:#010x} are here, {:#010x} are wanted, and the others cannot come", exec_,
                          wanted));
}

void Warp::step(int index) {
  Path& path = paths_[static_cast<size_t>(index)];
  const Instruction& instruction = function_->code[static_cast<size_t>(path.pc)];
  pc_ = path.pc;
  exec_ = path.mask;
  if (instruction.guard >= 0) {
    const uint32_t guard = predicates_[static_cast<size_t>(instruction.guard)];
    exec_ &= instruction.guard_negated ? ~guard : guard;
  }
  switch (instruction.flow) {
    case Flow::kBranch: branch(index, instruction, exec_); return;
    case Flow::kExit:
      ++path.pc;
      if (exec_ != 0) end_lanes(exec_);
      return;
    case Flow::kNext:
      if (exec_ != 0) instruction.run(*this, instruction);
      ++path.pc;
      return;
    case Flow::kBarrier:
    case Flow::kWarpOperation: break;
  }
  if (exec_ == 0) {
    ++path.pc;
    return;
  }
  path.blocked = true;
  if (!complete(path, instruction)) return;
  path.blocked = false;
  if (instruction.flow == Flow::kWarpOperation) {
    instruction.run(*this, instruction);
    ++path.pc;
    return;
  }
  state_ = State::kAtBarrier;
  barrier_ = path.pc;
  barrier_path_ = index;
  const bool votes = instruction.operands.size() > 1 && instruction.has("red");
  barrier_predicate_ = votes ? get_predicate(instruction.operands.back()) & exec_ : 0;
}

void Warp::run() {
  while (state_ == State::kRunning) {
    const int index = choose();
    if (index < 0) {
      if (live_ != 0) throw Fault("a warp in which no lane can go on");
      state_ = State::kDone;
      return;
    }
    // As far as it goes alone.
    while (state_ == State::kRunning) {
      Path& path = paths_[static_cast<size_t>(index)];
      if (!path.open || path.children > 0 || path.blocked) break;
      if (path.pc == path.join && path.join >= 0) {
        close_path(index);
        break;
      }
      step(index);
    }
  }
}

void Warp::pass_barrier(bool vote) {
  const Instruction& instruction = barrier();
  Path& path = paths_[static_cast<size_t>(barrier_path_)];
  exec_ = path.mask;
  if (instruction.has("red")) put_predicate(instruction.operands.front().reg, vote ? ~0u : 0u);
  ++path.pc;
  ++barriers_;
  state_ = State::kRunning;
}

uint32_t Warp::get_predicate(const Operand& operand) const {
  const uint32_t value = operand.kind == Operand::Kind::kRegister ? predicates_[static_cast<size_t>(operand.reg)]
                         : operand.bits != 0                      ? ~0u
                                                                  : 0u;
  return operand.negated ? ~value : value;
}

void Warp::put_predicate(int reg, uint32_t values) {
  if (reg < 0) return;
  uint32_t& to = predicates_[static_cast<size_t>(reg)];
  to = (to & ~exec_) | (values & exec_);
}

uint64_t Warp::variable_address(int index) const {
  const Variable& variable = function_->variables[static_cast<size_t>(index)];
  return variable.dynamic ? memory_->dynamic_shared_address() : variable.offset;
}

Space Warp::space_of(const Instruction& instruction, const Operand& operand) const {
  if (instruction.space == Space::kParam && operand.variable >= 0 &&
      function_->variables[static_cast<size_t>(operand.variable)].thread_local_) {
    return Space::kLocal;
  }
  return instruction.space;
}

Lanes<uint64_t> Warp::address(const Operand& operand) const {
  Lanes<uint64_t> addresses;
  if (operand.reg >= 0) {
    Operand base;
    base.kind = Operand::Kind::kRegister;
    base.reg = operand.reg;
    addresses = get<uint64_t>(base);
  } else {
    addresses.fill(operand.variable >= 0 ? variable_address(operand.variable) : 0);
  }
  for (uint64_t& address : addresses) address += operand.bits;
  // 32-bit addresses of shared memory wrap.
  if (operand.reg >= 0 && !function_->wide[static_cast<size_t>(operand.reg)]) {
    for (uint64_t& address : addresses) address &= 0xffffffffu;
  }
  return addresses;
}

uint32_t Warp::special(uint64_t which, int lane) const {
  const uint64_t axis = which & 3;
  const uint32_t thread = first_thread_ % block_threads_ + static_cast<uint32_t>(lane);
  const std::array<uint32_t, 3>& block = shape_->block;
  switch (static_cast<SpecialRegister>(which >> 2)) {
    case SpecialRegister::kTid:
      return axis == 0 ? thread % block[0] : axis == 1 ? thread / block[0] % block[1] : thread / (block[0] * block[1]);
    case SpecialRegister::kNtid: return block[axis];
    case SpecialRegister::kCtaid: return block_[axis];
    case SpecialRegister::kNctaid: return shape_->grid[axis];
    case SpecialRegister::kLane: return static_cast<uint32_t>(lane);
    case SpecialRegister::kWarp: return warp_;
  }
  return 0;
}

}  // namespace ptx
