// Families of opcodes. Each function returns null if the instruction is none of its own.
#pragma once

#include <bit>
#include <type_traits>

#include "tests/ptx/warp.h"

namespace ptx {

Handler find_integer(const Instruction& instruction);     // add, mad, shl, min, bfi, ...
Handler find_float(const Instruction& instruction);       // add.f32, fma, div, sqrt, ex2, ...
Handler find_move(const Instruction& instruction);        // mov, selp, setp, cvta
Handler find_conversion(const Instruction& instruction);  // cvt
Handler find_memory(const Instruction& instruction);      // ld, st, atom, cp.async
Handler find_warp(const Instruction& instruction);        // shfl, vote, bar.warp, ldmatrix, mma

// Calls body(std::type_identity<T>()) with the C++ type that an integer type's arithmetic is done in.
template <typename Body>
Handler with_integer(Type type, Body&& body) {
  switch (type) {
    case Type::kU8: return body(std::type_identity<uint8_t>());
    case Type::kS8: return body(std::type_identity<int8_t>());
    case Type::kB8: return body(std::type_identity<uint8_t>());
    case Type::kU16:
    case Type::kB16: return body(std::type_identity<uint16_t>());
    case Type::kS16: return body(std::type_identity<int16_t>());
    case Type::kU32:
    case Type::kB32: return body(std::type_identity<uint32_t>());
    case Type::kS32: return body(std::type_identity<int32_t>());
    case Type::kU64:
    case Type::kB64: return body(std::type_identity<uint64_t>());
    case Type::kS64: return body(std::type_identity<int64_t>());
    default: return nullptr;
  }
}

// d = operation(a, b, ...) in every lane.
template <typename T, typename Operation>
void unary(Warp& warp, const Instruction& instruction) {
  const Lanes<T> a = warp.get<T>(instruction.operands[1]);
  Lanes<decltype(Operation()(a[0]))> d;
  for (size_t lane = 0; lane < 32; ++lane) d[lane] = Operation()(a[lane]);
  warp.put(instruction.operands[0], d);
}
template <typename T, typename Operation>
void binary(Warp& warp, const Instruction& instruction) {
  const Lanes<T> a = warp.get<T>(instruction.operands[1]), b = warp.get<T>(instruction.operands[2]);
  Lanes<decltype(Operation()(a[0], b[0]))> d;
  for (size_t lane = 0; lane < 32; ++lane) d[lane] = Operation()(a[lane], b[lane]);
  warp.put(instruction.operands[0], d);
}
template <typename T, typename Operation>
void ternary(Warp& warp, const Instruction& instruction) {
  const Lanes<T> a = warp.get<T>(instruction.operands[1]), b = warp.get<T>(instruction.operands[2]),
                 c = warp.get<T>(instruction.operands[3]);
  Lanes<T> d;
  for (size_t lane = 0; lane < 32; ++lane) d[lane] = Operation()(a[lane], b[lane], c[lane]);
  warp.put(instruction.operands[0], d);
}

}  // namespace ptx
