#include <algorithm>

#include "tests/ptx/execute.h"

namespace ptx {

namespace {

template <typename T>
using Unsigned = std::make_unsigned_t<T>;
template <typename T>
using Wide = std::conditional_t<
    std::is_signed_v<T>,
    std::conditional_t<sizeof(T) == 8, __int128, std::conditional_t<sizeof(T) == 4, int64_t, int32_t>>,
    std::conditional_t<sizeof(T) == 8, unsigned __int128, std::conditional_t<sizeof(T) == 4, uint64_t, uint32_t>>>;

// Wraps like the hardware's.
struct Add {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
  }
};
struct Sub {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
  }
};
struct MulLow {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Wide<Unsigned<T>>>(static_cast<Unsigned<T>>(a)) * static_cast<Unsigned<T>>(b));
  }
};
struct MulHigh {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b) >> (8 * sizeof(T)));
  }
};
struct MulWide {
  template <typename T>
  auto operator()(T a, T b) const {
    return static_cast<std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>(static_cast<Wide<T>>(a) *
                                                                                   static_cast<Wide<T>>(b));
  }
};
struct MadLow {
  template <typename T>
  T operator()(T a, T b, T c) const {
    return Add()(MulLow()(a, b), c);
  }
};
struct MadHigh {
  template <typename T>
  T operator()(T a, T b, T c) const {
    return Add()(MulHigh()(a, b), c);
  }
};
// Division by zero is not defined; all ones is what the hardware's code gives.
struct Div {
  template <typename T>
  T operator()(T a, T b) const {
    if (b == 0) return static_cast<T>(~T{0});
    if (std::is_signed_v<T> && b == static_cast<T>(-1))
      return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a));
    return static_cast<T>(a / b);
  }
};
struct Rem {
  template <typename T>
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct And {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <typename T>
  T operator()(T a) const {
    return static_cast<T>(~a);
  }
};
struct Neg {
  template <typename T>
  T operator()(T a) const {
    return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a));
  }
};
struct Abs {
  template <typename T>
  T operator()(T a) const {
    return a < 0 ? Neg()(a) : a;
  }
};
struct Popc {
  template <typename T>
  uint32_t operator()(T a) const {
    return static_cast<uint32_t>(std::popcount(static_cast<Unsigned<T>>(a)));
  }
};
struct Clz {
  template <typename T>
  uint32_t operator()(T a) const {
    return static_cast<uint32_t>(std::countl_zero(static_cast<Unsigned<T>>(a)));
  }
};
struct Brev {
  template <typename T>
  T operator()(T a) const {
    Unsigned<T> reversed = 0;
    for (size_t bit = 0; bit < 8 * sizeof(T); ++bit) {
      reversed = static_cast<Unsigned<T>>(reversed << 1 | (static_cast<Unsigned<T>>(a) >> bit & 1));
    }
    return static_cast<T>(reversed);
  }
};
// Position of the most significant bit that is not the sign.
template <bool kShiftAmount>
struct Bfind {
  template <typename T>
  uint32_t operator()(T a) const {
    const auto bits = static_cast<Unsigned<T>>(std::is_signed_v<T> && a < 0 ? ~a : a);
    if (bits == 0) return 0xffffffffu;
    const int zeros = std::countl_zero(bits);
    return static_cast<uint32_t>(kShiftAmount ? zeros : static_cast<int>(8 * sizeof(T)) - 1 - zeros);
  }
};

// Shift amounts are 32-bit numbers and do not wrap.
template <typename T, bool kLeft>
void shift(Warp& warp, const Instruction& instruction) {
  const Lanes<T> a = warp.get<T>(instruction.operands[1]);
  const Lanes<uint32_t> by = warp.get<uint32_t>(instruction.operands[2]);
  Lanes<T> d;
  for (size_t lane = 0; lane < 32; ++lane) {
    const bool all = by[lane] >= 8 * sizeof(T);
    if constexpr (kLeft) {
      d[lane] = all ? T{0} : static_cast<T>(static_cast<Unsigned<T>>(a[lane]) << by[lane]);
    } else {
      d[lane] = static_cast<T>(all ? (std::is_signed_v<T> && a[lane] < 0 ? -1 : 0) : a[lane] >> by[lane]);
    }
  }
  warp.put(instruction.operands[0], d);
}

// shf.{l,r}.{wrap,clamp}.b32 d, low, high, by
template <bool kLeft, bool kWrap>
void funnel_shift(Warp& warp, const Instruction& instruction) {
  const Lanes<uint32_t> low = warp.get<uint32_t>(instruction.operands[1]),
                        high = warp.get<uint32_t>(instruction.operands[2]),
                        by = warp.get<uint32_t>(instruction.operands[3]);
  Lanes<uint32_t> d;
  for (size_t lane = 0; lane < 32; ++lane) {
    const uint32_t n = kWrap ? by[lane] & 31 : std::min(by[lane], 32u);
    const uint64_t both = uint64_t{high[lane]} << 32 | low[lane];
    d[lane] = static_cast<uint32_t>(kLeft ? both << n >> 32 : both >> n);
  }
  warp.put(instruction.operands[0], d);
}

// bfe d, a, position, length
template <typename T>
void extract_field(Warp& warp, const Instruction& instruction) {
  const Lanes<T> a = warp.get<T>(instruction.operands[1]);
  const Lanes<uint32_t> from = warp.get<uint32_t>(instruction.operands[2]),
                        count = warp.get<uint32_t>(instruction.operands[3]);
  Lanes<T> d;
  constexpr uint32_t kBits = 8 * sizeof(T);
  for (size_t lane = 0; lane < 32; ++lane) {
    const uint32_t position = from[lane] & 0xff, length = count[lane] & 0xff;
    const bool negative = std::is_signed_v<T> && length > 0 &&
                          (static_cast<Unsigned<T>>(a[lane]) >> std::min(position + length - 1, kBits - 1) & 1) != 0;
    Unsigned<T> result =
        position >= kBits ? 0 : static_cast<Unsigned<T>>(static_cast<Unsigned<T>>(a[lane]) >> position);
    if (length < kBits) {
      result &= static_cast<Unsigned<T>>((Unsigned<T>{1} << length) - 1);
      if (negative) result |= static_cast<Unsigned<T>>(~((Unsigned<T>{1} << length) - 1));
    }
    d[lane] = static_cast<T>(result);
  }
  warp.put(instruction.operands[0], d);
}

// bfi d, a, b, position, length: the low bits of a into b
template <typename T>
void insert_field(Warp& warp, const Instruction& instruction) {
  const Lanes<T> a = warp.get<T>(instruction.operands[1]), b = warp.get<T>(instruction.operands[2]);
  const Lanes<uint32_t> from = warp.get<uint32_t>(instruction.operands[3]),
                        count = warp.get<uint32_t>(instruction.operands[4]);
  Lanes<T> d;
  for (size_t lane = 0; lane < 32; ++lane) {
    const uint32_t position = from[lane] & 0xff, length = count[lane] & 0xff;
    d[lane] = b[lane];
    for (uint32_t bit = 0; bit < length && position + bit < 8 * sizeof(T); ++bit) {
      const T mask = static_cast<T>(T{1} << (position + bit));
      d[lane] = static_cast<T>((a[lane] >> bit & 1) != 0 ? d[lane] | mask : d[lane] & ~mask);
    }
  }
  warp.put(instruction.operands[0], d);
}

// prmt d, a, b, selector
void permute_bytes(Warp& warp, const Instruction& instruction) {
  const Lanes<uint32_t> a = warp.get<uint32_t>(instruction.operands[1]),
                        b = warp.get<uint32_t>(instruction.operands[2]),
                        selector = warp.get<uint32_t>(instruction.operands[3]);
  Lanes<uint32_t> d;
  for (size_t lane = 0; lane < 32; ++lane) {
    const uint64_t both = uint64_t{b[lane]} << 32 | a[lane];
    d[lane] = 0;
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t pick = selector[lane] >> (4 * i) & 15;
      uint32_t byte = static_cast<uint32_t>(both >> (8 * (pick & 7))) & 0xff;
      if ((pick & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
      d[lane] |= byte << (8 * i);
    }
  }
  warp.put(instruction.operands[0], d);
}

// lop3 d, a, b, c, table
void logic3(Warp& warp, const Instruction& instruction) {
  const Lanes<uint32_t> a = warp.get<uint32_t>(instruction.operands[1]),
                        b = warp.get<uint32_t>(instruction.operands[2]),
                        c = warp.get<uint32_t>(instruction.operands[3]);
  const auto table = static_cast<uint32_t>(instruction.operands[4].bits);
  Lanes<uint32_t> d;
  for (size_t lane = 0; lane < 32; ++lane) {
    d[lane] = 0;
    for (uint32_t i = 0; i < 8; ++i) {
      if ((table >> i & 1) == 0) continue;
      d[lane] |= ((i & 4) != 0 ? a[lane] : ~a[lane]) & ((i & 2) != 0 ? b[lane] : ~b[lane]) &
                 ((i & 1) != 0 ? c[lane] : ~c[lane]);
    }
  }
  warp.put(instruction.operands[0], d);
}

// dp4a.s32.s32 d, a, b, c
void dot_bytes(Warp& warp, const Instruction& instruction) {
  const Lanes<uint32_t> a = warp.get<uint32_t>(instruction.operands[1]),
                        b = warp.get<uint32_t>(instruction.operands[2]),
                        c = warp.get<uint32_t>(instruction.operands[3]);
  Lanes<uint32_t> d;
  for (size_t lane = 0; lane < 32; ++lane) {
    d[lane] = c[lane];
    for (int i = 0; i < 4; ++i) {
      d[lane] +=
          static_cast<uint32_t>(static_cast<int8_t>(a[lane] >> (8 * i)) * static_cast<int8_t>(b[lane] >> (8 * i)));
    }
  }
  warp.put(instruction.operands[0], d);
}

// add.cc, addc, sub.cc, subc, mad.cc, madc of 32 or 64 bits: the carry (or borrow) of every lane goes through Warp::carry.
enum class Chain { kAdd, kSub, kMadLow, kMadHigh };
template <typename T, Chain kKind>
void chained(Warp& warp, const Instruction& instruction) {
  const std::string& family = instruction.parts.front();
  const bool in = family.back() == 'c', out = instruction.has("cc");
  const Lanes<T> a = warp.get<T>(instruction.operands[1]), b = warp.get<T>(instruction.operands[2]);
  constexpr bool kMultiplies = kKind == Chain::kMadLow || kKind == Chain::kMadHigh;
  const Lanes<T> addend = kMultiplies ? warp.get<T>(instruction.operands[3]) : Lanes<T>{};
  Lanes<T> d;
  uint32_t carry = 0;
  for (size_t lane = 0; lane < 32; ++lane) {
    const auto c = static_cast<T>(in ? warp.carry >> lane & 1 : 0);
    T x = a[lane], y = b[lane];
    if constexpr (kMultiplies) {
      x = kKind == Chain::kMadLow ? MulLow()(a[lane], b[lane]) : MulHigh()(a[lane], b[lane]);
      y = addend[lane];
    }
    const auto sum = kKind == Chain::kSub ? static_cast<Wide<T>>(x) - y - c : static_cast<Wide<T>>(x) + y + c;
    d[lane] = static_cast<T>(sum);
    carry |= static_cast<uint32_t>(sum >> (8 * sizeof(T)) & 1) << lane;
  }
  warp.put(instruction.operands[0], d);
  if (out) warp.carry = (warp.carry & ~warp.lanes()) | (carry & warp.lanes());
}

template <Chain kKind>
Handler chained_for(Type type) {
  return type_bytes(type) == 8 ? &chained<uint64_t, kKind> : &chained<uint32_t, kKind>;
}

// Operations on predicates.
template <typename Operation>
void predicate_operation(Warp& warp, const Instruction& instruction) {
  const uint32_t a = warp.get_predicate(instruction.operands[1]);
  const uint32_t b = instruction.operands.size() > 2 ? warp.get_predicate(instruction.operands[2]) : 0;
  warp.put_predicate(instruction.operands[0].reg, Operation()(a, b));
}
struct NotFirst {
  uint32_t operator()(uint32_t a, uint32_t) const { return ~a; }
};

template <typename Operation>
Handler logic(Type type) {
  if (type == Type::kPred) return &predicate_operation<Operation>;
  return with_integer(type, [](auto t) -> Handler { return &binary<typename decltype(t)::type, Operation>; });
}
template <typename Operation>
Handler two(Type type) {
  return with_integer(type, [](auto t) -> Handler { return &binary<typename decltype(t)::type, Operation>; });
}
template <typename Operation>
Handler one(Type type) {
  return with_integer(type, [](auto t) -> Handler { return &unary<typename decltype(t)::type, Operation>; });
}
template <typename Operation>
Handler three(Type type) {
  return with_integer(type, [](auto t) -> Handler { return &ternary<typename decltype(t)::type, Operation>; });
}

}  // namespace

Handler find_integer(const Instruction& i) {
  const std::string& family = i.parts.front();
  const Type type = i.type;
  if (type == Type::kF32 || type == Type::kF64) return nullptr;
  if (family == "and") return logic<And>(type);
  if (family == "or") return logic<Or>(type);
  if (family == "xor") return logic<Xor>(type);
  if (family == "not") return type == Type::kPred ? &predicate_operation<NotFirst> : one<Not>(type);
  if (family == "addc" || (family == "add" && i.has("cc"))) return chained_for<Chain::kAdd>(type);
  if (family == "subc" || (family == "sub" && i.has("cc"))) return chained_for<Chain::kSub>(type);
  if (family == "madc" || (family == "mad" && i.has("cc"))) {
    return i.has("hi") ? chained_for<Chain::kMadHigh>(type) : chained_for<Chain::kMadLow>(type);
  }
  if (family == "add") return two<Add>(type);
  if (family == "sub") return two<Sub>(type);
  if (family == "mul" && i.has("wide")) return type_bytes(type) == 8 ? nullptr : two<MulWide>(type);
  if (family == "mul") return i.has("hi") ? two<MulHigh>(type) : two<MulLow>(type);
  if (family == "mad" && !i.has("wide")) return i.has("hi") ? three<MadHigh>(type) : three<MadLow>(type);
  if (family == "mad") {
    const auto wide = [](Warp& warp, const Instruction& instruction) {
      const Lanes<int32_t> a = warp.get<int32_t>(instruction.operands[1]),
                           b = warp.get<int32_t>(instruction.operands[2]);
      const bool is_signed = instruction.type == Type::kS32;
      Lanes<uint64_t> d = warp.get<uint64_t>(instruction.operands[3]);
      for (size_t lane = 0; lane < 32; ++lane) {
        d[lane] += is_signed ? static_cast<uint64_t>(int64_t{a[lane]} * b[lane])
                             : uint64_t{static_cast<uint32_t>(a[lane])} * static_cast<uint32_t>(b[lane]);
      }
      warp.put(instruction.operands[0], d);
    };
    return type_bytes(type) == 4 ? Handler(wide) : nullptr;
  }
  if (family == "div") return two<Div>(type);
  if (family == "rem") return two<Rem>(type);
  if (family == "min") return two<Min>(type);
  if (family == "max") return two<Max>(type);
  if (family == "neg") return one<Neg>(type);
  if (family == "abs") return one<Abs>(type);
  if (family == "popc") return one<Popc>(type);
  if (family == "clz") return one<Clz>(type);
  if (family == "brev") return one<Brev>(type);
  if (family == "bfind") return i.has("shiftamt") ? one<Bfind<true>>(type) : one<Bfind<false>>(type);
  if (family == "shl")
    return with_integer(type, [](auto t) -> Handler { return &shift<typename decltype(t)::type, true>; });
  if (family == "shr")
    return with_integer(type, [](auto t) -> Handler { return &shift<typename decltype(t)::type, false>; });
  if (family == "shf") {
    if (i.has("l")) return i.has("wrap") ? &funnel_shift<true, true> : &funnel_shift<true, false>;
    return i.has("wrap") ? &funnel_shift<false, true> : &funnel_shift<false, false>;
  }
  if (family == "bfe")
    return with_integer(type, [](auto t) -> Handler { return &extract_field<typename decltype(t)::type>; });
  if (family == "bfi") return type_bytes(type) == 8 ? &insert_field<uint64_t> : &insert_field<uint32_t>;
  if (family == "prmt" && i.parts.size() == 2) return &permute_bytes;
  if (family == "lop3") return &logic3;
  if (family == "dp4a" && type == Type::kS32) return &dot_bytes;
  return nullptr;
}

}  // namespace ptx
