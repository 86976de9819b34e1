// ld, st, atom, red, cp.async.
#include <cstring>

#include "tests/cuda_emu/emu/fault.h"
#include "tests/ptx/execute.h"
#include "tests/ptx/traffic.h"

namespace ptx {

namespace {

// The operands of a vector access, or the one of another.
std::span<const Operand> elements_of(const Operand& operand) {
  if (operand.kind == Operand::Kind::kVector) return operand.elements;
  return {&operand, 1};
}

// A generic address counts as what it points to.
Space counted_space(Space space, uint64_t address) {
  if (space != Space::kGeneric) return space;
  const uint64_t window = address & ~kWindowMask;
  return window == kSharedWindow ? Space::kShared : window == 0 ? Space::kGlobal : Space::kLocal;
}

void count(const Warp& warp, const Instruction& instruction, Space space, const Lanes<uint64_t>& addresses,
           uint32_t bytes) {
  const auto first = static_cast<size_t>(std::countr_zero(warp.lanes()));
  count_access(warp, instruction, counted_space(space, addresses[first]), addresses, warp.lanes(), bytes);
}

template <typename T>
void load(Warp& warp, const Instruction& instruction) {
  const Operand& from = instruction.operands[1];
  const std::span<const Operand> to = elements_of(instruction.operands[0]);
  const Lanes<uint64_t> addresses = warp.address(from);
  const Space space = warp.space_of(instruction, from);
  std::array<Lanes<T>, 4> values;
  warp.for_lanes([&](int lane) {
    const auto l = static_cast<size_t>(lane);
    const uint8_t* at = warp.memory().read(space, addresses[l], sizeof(T) * to.size(), warp.moment(lane));
    for (size_t e = 0; e < to.size(); ++e) std::memcpy(&values[e][l], at + e * sizeof(T), sizeof(T));
  });
  for (size_t e = 0; e < to.size(); ++e) warp.put(to[e], values[e]);
  count(warp, instruction, space, addresses, static_cast<uint32_t>(sizeof(T) * to.size()));
}

template <typename T>
void store(Warp& warp, const Instruction& instruction) {
  const Operand& to = instruction.operands[0];
  const std::span<const Operand> from = elements_of(instruction.operands[1]);
  const Lanes<uint64_t> addresses = warp.address(to);
  const Space space = warp.space_of(instruction, to);
  std::array<Lanes<T>, 4> values;
  for (size_t e = 0; e < from.size(); ++e) values[e] = warp.get<T>(from[e]);
  warp.for_lanes([&](int lane) {
    const auto l = static_cast<size_t>(lane);
    T all[4];
    for (size_t e = 0; e < from.size(); ++e) all[e] = values[e][l];
    warp.memory().write(space, addresses[l], all, sizeof(T) * from.size(), warp.moment(lane));
  });
  count(warp, instruction, space, addresses, static_cast<uint32_t>(sizeof(T) * from.size()));
}

template <typename T, typename Operation>
void atomic(Warp& warp, const Instruction& instruction) {
  const bool returns = instruction.parts.front() == "atom";
  const Operand& to = instruction.operands[returns ? 1 : 0];
  const Lanes<uint64_t> addresses = warp.address(to);
  const Lanes<T> values = warp.get<T>(instruction.operands[returns ? 2 : 1]);
  const Lanes<T> next = instruction.operands.size() > 3 ? warp.get<T>(instruction.operands[3]) : Lanes<T>{};
  Lanes<T> old{};
  warp.for_lanes([&](int lane) {
    const auto l = static_cast<size_t>(lane);
    uint8_t* at = warp.memory().update(instruction.space, addresses[l], sizeof(T), warp.moment(lane));
    std::memcpy(&old[l], at, sizeof(T));
    const T result = Operation()(old[l], values[l], next[l]);
    std::memcpy(at, &result, sizeof(T));
  });
  if (returns) warp.put(instruction.operands[0], old);
  count(warp, instruction, instruction.space, addresses, sizeof(T));
}

struct AtomicAdd {
  template <typename T>
  T operator()(T a, T b, T) const {
    if constexpr (std::is_floating_point_v<T>) {
      return a + b;
    } else {
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
    }
  }
};
struct AtomicMin {
  template <typename T>
  T operator()(T a, T b, T) const {
    return b < a ? b : a;
  }
};
struct AtomicMax {
  template <typename T>
  T operator()(T a, T b, T) const {
    return a < b ? b : a;
  }
};
struct AtomicAnd {
  template <typename T>
  T operator()(T a, T b, T) const {
    return static_cast<T>(a & b);
  }
};
struct AtomicOr {
  template <typename T>
  T operator()(T a, T b, T) const {
    return static_cast<T>(a | b);
  }
};
struct AtomicXor {
  template <typename T>
  T operator()(T a, T b, T) const {
    return static_cast<T>(a ^ b);
  }
};
struct AtomicExch {
  template <typename T>
  T operator()(T, T b, T) const {
    return b;
  }
};
struct AtomicCas {
  template <typename T>
  T operator()(T a, T b, T c) const {
    return a == b ? c : a;
  }
};

template <typename Operation>
Handler atomic_for(Type type) {
  if (type_bytes(type) < 4) return nullptr;
  return with_integer(type, [](auto t) -> Handler { return &atomic<typename decltype(t)::type, Operation>; });
}

Handler find_atomic(const Instruction& i) {
  for (size_t p = 1; p + 1 < i.parts.size(); ++p) {
    const std::string& part = i.parts[p];
    if (part == "add" && i.type == Type::kF32) return &atomic<float, AtomicAdd>;
    if (part == "add") return atomic_for<AtomicAdd>(i.type);
    if (part == "min") return atomic_for<AtomicMin>(i.type);
    if (part == "max") return atomic_for<AtomicMax>(i.type);
    if (part == "and") return atomic_for<AtomicAnd>(i.type);
    if (part == "or") return atomic_for<AtomicOr>(i.type);
    if (part == "xor") return atomic_for<AtomicXor>(i.type);
    if (part == "exch") return atomic_for<AtomicExch>(i.type);
    if (part == "cas") return atomic_for<AtomicCas>(i.type);
  }
  return nullptr;
}

// cp.async.ca.shared.global [to], [from], bytes{, source bytes};
void start_copy(Warp& warp, const Instruction& instruction) {
  const Lanes<uint64_t> to = warp.address(instruction.operands[0]), from = warp.address(instruction.operands[1]);
  const uint64_t bytes = instruction.operands[2].bits;
  Lanes<uint32_t> sizes;
  sizes.fill(static_cast<uint32_t>(bytes));
  if (instruction.operands.size() > 3) sizes = warp.get<uint32_t>(instruction.operands[3]);
  uint32_t reading = 0;
  warp.for_lanes([&](int lane) {
    const auto l = static_cast<size_t>(lane);
    warp.memory().start_copy(to[l], Space::kGlobal, from[l], bytes, sizes[l], warp.moment(lane));
    if (sizes[l] > 0) reading |= 1u << lane;
  });
  count_access(warp, instruction, Space::kShared, to, warp.lanes(), static_cast<uint32_t>(bytes));
  count_access(warp, instruction, Space::kGlobal, from, reading, static_cast<uint32_t>(bytes));
}

void commit_copies(Warp& warp, const Instruction&) {
  warp.for_lanes([&](int lane) { warp.memory().commit(warp.moment(lane)); });
}

void wait_for_copies(Warp& warp, const Instruction& instruction) {
  const bool all = instruction.has("wait_all");
  if (all) commit_copies(warp, instruction);
  const size_t pending = all ? 0 : instruction.operands[0].bits;
  warp.for_lanes([&](int lane) { warp.memory().wait(pending, warp.moment(lane)); });
}

}  // namespace

Handler find_memory(const Instruction& i) {
  const std::string& family = i.parts.front();
  if (family == "atom" || family == "red") return find_atomic(i);
  if (family == "cp" && i.has("commit_group")) return &commit_copies;
  if (family == "cp" && (i.has("wait_group") || i.has("wait_all"))) return &wait_for_copies;
  if (family == "cp") return i.has("async") && i.has("shared") && i.has("global") ? &start_copy : nullptr;
  const bool loads = family == "ld" || family == "ldu";
  if (!loads && family != "st") return nullptr;
  if (i.has("v8")) return nullptr;
  if (i.type == Type::kF32) return loads ? &load<float> : &store<float>;
  if (i.type == Type::kF64) return loads ? &load<double> : &store<double>;
  return with_integer(i.type, [&](auto t) -> Handler {
    using T = typename decltype(t)::type;
    return loads ? &load<T> : &store<T>;
  });
}

}  // namespace ptx
