// Instructions of a whole warp. Fragments follow the tables of the PTX manual, element by element: where the emulation
// (tests/cuda_emu/emu/tensor_core.cpp) sees 8x8 core matrices, this file sees rows and columns of a lane.
#include <half_bits.h>

#include <cstring>

#include "tests/cuda_emu/emu/fault.h"
#include "tests/ptx/execute.h"
#include "tests/ptx/traffic.h"

namespace ptx {

using cuda_emu::Fault;

namespace {

// shfl.sync.mode.b32 d|p, a, b, c, mask: c = clamp in bits 0-4, mask of segments in bits 8-12.
enum class Shuffle { kUp, kDown, kButterfly, kIndex };
template <Shuffle kMode>
void shuffle(Warp& warp, const Instruction& instruction) {
  const Lanes<uint32_t> a = warp.get<uint32_t>(instruction.operands[1]),
                        b = warp.get<uint32_t>(instruction.operands[2]),
                        c = warp.get<uint32_t>(instruction.operands[3]);
  Lanes<uint32_t> d{};
  uint32_t inside = 0;
  warp.for_lanes([&](int lane) {
    const auto l = static_cast<size_t>(lane);
    const int by = static_cast<int>(b[l] & 31), clamp = static_cast<int>(c[l] & 31),
              segment = static_cast<int>(c[l] >> 8 & 31);
    const int most = (lane & segment) | (clamp & ~segment), least = lane & segment;
    int from = lane;
    bool valid = false;
    switch (kMode) {
      case Shuffle::kUp: from = lane - by, valid = from >= most; break;
      case Shuffle::kDown: from = lane + by, valid = from <= most; break;
      case Shuffle::kButterfly: from = lane ^ by, valid = from <= most; break;
      case Shuffle::kIndex: from = least | (by & ~segment), valid = from <= most; break;
    }
    if (!valid) from = lane;
    if ((warp.lanes() >> from & 1) == 0) throw Fault("shfl from a lane that takes no part");
    d[l] = a[static_cast<size_t>(from)];
    inside |= static_cast<uint32_t>(valid) << lane;
  });
  warp.put(instruction.operands[0], d);
  warp.put_predicate(instruction.operands[0].second, inside);
}

// vote.sync.{ballot.b32 | all.pred | any.pred | uni.pred} d, {!}a, mask
void vote(Warp& warp, const Instruction& instruction) {
  const uint32_t lanes = warp.lanes(), votes = warp.get_predicate(instruction.operands[1]) & lanes;
  if (instruction.has("ballot")) {
    Lanes<uint32_t> d;
    d.fill(votes);
    return warp.put(instruction.operands[0], d);
  }
  const bool result = instruction.has("all")   ? votes == lanes
                      : instruction.has("any") ? votes != 0
                                               : votes == 0 || votes == lanes;
  warp.put_predicate(instruction.operands[0].reg, result ? ~0u : 0u);
}

// redux.sync.op.type d, a, mask
void reduce(Warp& warp, const Instruction& instruction) {
  const Lanes<uint32_t> a = warp.get<uint32_t>(instruction.operands[1]);
  uint32_t result = 0;
  bool first = true;
  const bool is_signed = instruction.type == Type::kS32;
  warp.for_lanes([&](int lane) {
    const uint32_t x = a[static_cast<size_t>(lane)];
    const bool less = is_signed ? static_cast<int32_t>(x) < static_cast<int32_t>(result) : x < result;
    if (first) {
      result = x;
    } else if (instruction.has("add")) {
      result += x;
    } else if (instruction.has("min")) {
      result = less ? x : result;
    } else if (instruction.has("max")) {
      result = less ? result : x;
    } else if (instruction.has("and")) {
      result &= x;
    } else if (instruction.has("or")) {
      result |= x;
    } else {
      result ^= x;
    }
    first = false;
  });
  Lanes<uint32_t> d;
  d.fill(result);
  warp.put(instruction.operands[0], d);
}

// Orders the memory of the lanes that take part.
void sync_warp(Warp& warp, const Instruction&) {
  if (warp.lanes() != warp.live())
    throw Fault("a bar.warp.sync of some lanes only: races among them are not looked for");
  warp.synced();
}

// ldmatrix.sync.aligned.m8n8.xN{.trans}.shared.b16 {r...}, [row]: lanes 8 m ... 8 m + 7 name the rows of matrix m. Lane
// l gets elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4, transposed: of column l / 4.
template <int kMatrices, bool kTransposed>
void load_matrices(Warp& warp, const Instruction& instruction) {
  const Lanes<uint64_t> rows = warp.address(instruction.operands[1]);
  for (int m = 0; m < kMatrices; ++m) {
    uint16_t elements[8][8];
    for (int row = 0; row < 8; ++row) {
      const int lane = 8 * m + row;
      const uint8_t* at = warp.memory().read(Space::kShared, rows[static_cast<size_t>(lane)], 16, warp.moment(lane));
      std::memcpy(elements[row], at, 16);
    }
    Lanes<uint32_t> d;
    for (uint32_t lane = 0; lane < 32; ++lane) {
      const uint32_t group = lane / 4, pair = lane % 4 * 2;
      const uint32_t low = kTransposed ? elements[pair][group] : elements[group][pair];
      const uint32_t high = kTransposed ? elements[pair + 1][group] : elements[group][pair + 1];
      d[lane] = low | high << 16;
    }
    const Operand& to = instruction.operands[0];
    warp.put(to.kind == Operand::Kind::kVector ? to.elements[static_cast<size_t>(m)] : to, d);
    count_access(warp, instruction, Space::kShared, rows, 0xffu << (8 * m), 16);
  }
}

template <size_t kCount, typename T>
std::array<Lanes<T>, kCount> registers(const Warp& warp, const Operand& vector) {
  if (vector.elements.size() != kCount) throw Fault("mma with another number of registers");
  std::array<Lanes<T>, kCount> values;
  for (size_t r = 0; r < kCount; ++r) values[r] = warp.get<T>(vector.elements[r]);
  return values;
}

// mma.sync.aligned.m16n8kK.row.col of elements of kBits bits, K = 256 / kBits. With e elements in a register:
//   A  row = lane / 4 + 8 (register is odd)      column = lane % 4 * e + i, and 4 e more in registers 2 and 3
//   B  row = lane % 4 * e + i, 4 e more in register 1      column = lane / 4
//   C  row = lane / 4 + 8 (register >= 2)      column = lane % 4 * 2 + register % 2
template <typename Element, typename Sum, int kBits, Element (*kDecode)(uint32_t)>
void multiply(Warp& warp, const Instruction& instruction) {
  constexpr uint32_t kPerRegister = 32 / kBits, kDepth = 8 * kPerRegister;
  const auto a_registers = registers<4, uint32_t>(warp, instruction.operands[1]);
  const auto b_registers = registers<2, uint32_t>(warp, instruction.operands[2]);
  auto c = registers<4, Sum>(warp, instruction.operands[3]);
  Element a[16][kDepth], b[kDepth][8];
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t i = 0; i < kPerRegister; ++i) {
      const uint32_t k = lane % 4 * kPerRegister + i, shift = kBits * i;
      for (uint32_t r = 0; r < 4; ++r) {
        a[lane / 4 + 8 * (r & 1)][k + 4 * kPerRegister * (r >> 1)] = kDecode(a_registers[r][lane] >> shift);
      }
      for (uint32_t r = 0; r < 2; ++r) b[k + 4 * kPerRegister * r][lane / 4] = kDecode(b_registers[r][lane] >> shift);
    }
  }
  Sum sums[16][8] = {};
  for (uint32_t row = 0; row < 16; ++row) {
    for (uint32_t k = 0; k < kDepth; ++k) {
      for (uint32_t column = 0; column < 8; ++column) {
        sums[row][column] = static_cast<Sum>(sums[row][column] + static_cast<Sum>(a[row][k] * b[k][column]));
      }
    }
  }
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t r = 0; r < 4; ++r) {
      c[r][lane] = static_cast<Sum>(c[r][lane] + sums[lane / 4 + 8 * (r >> 1)][lane % 4 * 2 + (r & 1)]);
    }
  }
  for (size_t r = 0; r < 4; ++r) warp.put(instruction.operands[0].elements[r], c[r]);
}

float decode_half(uint32_t bits) { return cuda_emu::half_to_float(static_cast<uint16_t>(bits)); }
float decode_bfloat16(uint32_t bits) { return cuda_emu::bfloat16_to_float(static_cast<uint16_t>(bits)); }
int32_t decode_byte(uint32_t bits) { return static_cast<int8_t>(bits); }

Handler find_ldmatrix(const Instruction& i) {
  if (!i.has("m8n8") || !i.has("b16") || !i.has("shared")) return nullptr;
  const bool trans = i.has("trans");
  if (i.has("x4")) return trans ? &load_matrices<4, true> : &load_matrices<4, false>;
  if (i.has("x2")) return trans ? &load_matrices<2, true> : &load_matrices<2, false>;
  if (i.has("x1")) return trans ? &load_matrices<1, true> : &load_matrices<1, false>;
  return nullptr;
}

Handler find_mma(const Instruction& i) {
  const std::string opcode = i.opcode();
  if (opcode == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") return &multiply<float, float, 16, &decode_half>;
  if (opcode == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
    return &multiply<float, float, 16, &decode_bfloat16>;
  if (opcode == "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32") return &multiply<int32_t, int32_t, 8, &decode_byte>;
  return nullptr;
}

}  // namespace

Handler find_warp(const Instruction& i) {
  const std::string& family = i.parts.front();
  if (family == "shfl") {
    if (i.has("up")) return &shuffle<Shuffle::kUp>;
    if (i.has("down")) return &shuffle<Shuffle::kDown>;
    return i.has("bfly") ? &shuffle<Shuffle::kButterfly> : &shuffle<Shuffle::kIndex>;
  }
  if (family == "vote") return &vote;
  if (family == "redux") return type_bytes(i.type) == 4 ? &reduce : nullptr;
  if (family == "bar" && i.has("warp")) return &sync_warp;
  if (family == "ldmatrix") return find_ldmatrix(i);
  if (family == "mma") return find_mma(i);
  return nullptr;
}

}  // namespace ptx
