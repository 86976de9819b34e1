// float32 and float64. The host rounds to nearest even and keeps subnormals, as .rn without .ftz does.
#include <half_bits.h>

#include <cmath>
#include <limits>

#include "tests/ptx/execute.h"

namespace ptx {

namespace {

struct Add {
  template <typename T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct Sub {
  template <typename T>
  T operator()(T a, T b) const {
    return a - b;
  }
};
struct Mul {
  template <typename T>
  T operator()(T a, T b) const {
    return a * b;
  }
};
struct Div {
  template <typename T>
  T operator()(T a, T b) const {
    return a / b;
  }
};
struct Fma {
  template <typename T>
  T operator()(T a, T b, T c) const {
    return std::fma(a, b, c);
  }
};
// fma.rm and fma.rp of float32: the exact sum, then rounded towards minus or plus infinity.
template <bool kDown>
struct DirectedFma {
  float operator()(float a, float b, float c) const {
    const double exact = cuda_emu::exact_fma(a, b, c);  // odd in its last bit if anything was lost
    const auto nearest = static_cast<float>(exact);
    if (kDown && static_cast<double>(nearest) > exact)
      return std::nextafter(nearest, -std::numeric_limits<float>::infinity());
    if (!kDown && static_cast<double>(nearest) < exact)
      return std::nextafter(nearest, std::numeric_limits<float>::infinity());
    return nearest;
  }
};
// The one that is a number; -0 is less than +0.
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    if (std::isnan(a)) return b;
    if (std::isnan(b)) return a;
    if (a == b) return std::signbit(a) ? a : b;
    return a < b ? a : b;
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    if (std::isnan(a)) return b;
    if (std::isnan(b)) return a;
    if (a == b) return std::signbit(a) ? b : a;
    return a < b ? b : a;
  }
};
struct Neg {
  template <typename T>
  T operator()(T a) const {
    return -a;
  }
};
struct Abs {
  template <typename T>
  T operator()(T a) const {
    return std::fabs(a);
  }
};
struct Sqrt {
  template <typename T>
  T operator()(T a) const {
    return std::sqrt(a);
  }
};
struct Rcp {
  template <typename T>
  T operator()(T a) const {
    return T{1} / a;
  }
};
struct Rsqrt {
  template <typename T>
  T operator()(T a) const {
    return static_cast<T>(1.0 / std::sqrt(static_cast<double>(a)));
  }
};
// Only the upper 32 bits of the result are there.
struct RcpApprox64 {
  double operator()(double a) const {
    return std::bit_cast<double>(std::bit_cast<uint64_t>(1.0 / a) & 0xffffffff00000000u);
  }
};
struct RsqrtApprox64 {
  double operator()(double a) const {
    return std::bit_cast<double>(std::bit_cast<uint64_t>(1.0 / std::sqrt(a)) & 0xffffffff00000000u);
  }
};
// Functions of the special unit, computed accurately: tests must not depend on their last bits.
float flush(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
template <bool kFlush>
struct Exp2 {
  float operator()(float a) const { return kFlush ? flush(std::exp2(a)) : std::exp2(a); }
};
template <bool kFlush>
struct Log2 {
  float operator()(float a) const { return std::log2(kFlush ? flush(a) : a); }
};
struct Sin {
  float operator()(float a) const { return std::sin(a); }
};
struct Cos {
  float operator()(float a) const { return std::cos(a); }
};
struct Tanh {
  float operator()(float a) const { return std::tanh(a); }
};

template <typename Operation>
Handler two(Type type) {
  return type == Type::kF64 ? &binary<double, Operation> : &binary<float, Operation>;
}
template <typename Operation>
Handler one(Type type) {
  return type == Type::kF64 ? &unary<double, Operation> : &unary<float, Operation>;
}

// What this interpreter knows of the modifiers of arithmetic: anything else must not pass as something similar.
bool plain(const Instruction& i) {
  for (size_t p = 1; p + 1 < i.parts.size(); ++p) {
    if (i.parts[p] != "rn") return false;
  }
  return true;
}

// Both halves of a register; a sum or product of two float16 is exact in double and rounded once.
template <typename Operation>
void halves(Warp& warp, const Instruction& instruction) {
  const Lanes<uint32_t> a = warp.get<uint32_t>(instruction.operands[1]),
                        b = warp.get<uint32_t>(instruction.operands[2]);
  const auto half = [](uint32_t x, uint32_t y) {
    const double exact = Operation()(static_cast<double>(cuda_emu::half_to_float(static_cast<uint16_t>(x))),
                                     static_cast<double>(cuda_emu::half_to_float(static_cast<uint16_t>(y))));
    return uint32_t{cuda_emu::float_to_half(cuda_emu::round_to_odd(exact))};
  };
  Lanes<uint32_t> d;
  for (size_t lane = 0; lane < 32; ++lane) {
    d[lane] = half(a[lane] & 0xffffu, b[lane] & 0xffffu) | half(a[lane] >> 16, b[lane] >> 16) << 16;
  }
  warp.put(instruction.operands[0], d);
}

}  // namespace

Handler find_float(const Instruction& i) {
  const std::string& family = i.parts.front();
  const Type type = i.type;
  if (type == Type::kF16x2 && i.parts.size() == 2) {
    if (family == "add") return &halves<Add>;
    if (family == "sub") return &halves<Sub>;
    if (family == "mul") return &halves<Mul>;
  }
  if (type != Type::kF32 && type != Type::kF64) return nullptr;
  const bool flushes = i.has("ftz");
  if (type == Type::kF32) {
    if (family == "ex2") return flushes ? &unary<float, Exp2<true>> : &unary<float, Exp2<false>>;
    if (family == "lg2") return flushes ? &unary<float, Log2<true>> : &unary<float, Log2<false>>;
    if (family == "sin") return &unary<float, Sin>;
    if (family == "cos") return &unary<float, Cos>;
    if (family == "tanh") return &unary<float, Tanh>;
    if (family == "rsqrt" && !flushes) return &unary<float, Rsqrt>;
    if (family == "fma" && i.has("rm") && !flushes) return &ternary<float, DirectedFma<true>>;
    if (family == "fma" && i.has("rp") && !flushes) return &ternary<float, DirectedFma<false>>;
  } else {
    if (family == "rcp" && i.has("approx")) return &unary<double, RcpApprox64>;
    if (family == "rsqrt" && i.has("approx")) return &unary<double, RsqrtApprox64>;
  }
  if (!plain(i)) return nullptr;
  if (family == "add") return two<Add>(type);
  if (family == "sub") return two<Sub>(type);
  if (family == "mul") return two<Mul>(type);
  if (family == "div") return two<Div>(type);
  if (family == "min") return two<Min>(type);
  if (family == "max") return two<Max>(type);
  if (family == "fma") return type == Type::kF64 ? &ternary<double, Fma> : &ternary<float, Fma>;
  if (family == "neg") return one<Neg>(type);
  if (family == "abs") return one<Abs>(type);
  if (family == "sqrt") return one<Sqrt>(type);
  if (family == "rcp") return one<Rcp>(type);
  return nullptr;
}

}  // namespace ptx
