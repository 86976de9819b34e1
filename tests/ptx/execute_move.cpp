// mov, selp, setp, cvta and their like; and cvt.
#include <fp8_bits.h>
#include <half_bits.h>

#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "tests/ptx/execute.h"

namespace ptx {

namespace {

template <typename T>
void move(Warp& warp, const Instruction& instruction) {
  warp.put(instruction.operands[0], warp.get<T>(instruction.operands[1]));
}

void move_predicate(Warp& warp, const Instruction& instruction) {
  warp.put_predicate(instruction.operands[0].reg, warp.get_predicate(instruction.operands[1]));
}

// mov.b64 d, {a, b} and mov.b64 {a, b}, d: pieces of equal size, the first one lowest.
template <bool kPack>
void move_pieces(Warp& warp, const Instruction& instruction) {
  const Operand& whole = instruction.operands[kPack ? 0 : 1];
  const std::vector<Operand>& pieces = instruction.operands[kPack ? 1 : 0].elements;
  const auto bits = 8 * static_cast<size_t>(type_bytes(instruction.type)) / pieces.size();
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  if constexpr (kPack) {
    Lanes<uint64_t> all{};
    for (size_t p = 0; p < pieces.size(); ++p) {
      const Lanes<uint64_t> piece = warp.get<uint64_t>(pieces[p]);
      for (size_t lane = 0; lane < 32; ++lane) all[lane] |= (piece[lane] & mask) << (p * bits);
    }
    warp.put(whole, all);
  } else {
    const Lanes<uint64_t> all = warp.get<uint64_t>(whole);
    for (size_t p = 0; p < pieces.size(); ++p) {
      Lanes<uint64_t> piece;
      for (size_t lane = 0; lane < 32; ++lane) piece[lane] = all[lane] >> (p * bits) & mask;
      warp.put(pieces[p], piece);
    }
  }
}

void select(Warp& warp, const Instruction& instruction) {
  const Lanes<uint64_t> a = warp.get<uint64_t>(instruction.operands[1]),
                        b = warp.get<uint64_t>(instruction.operands[2]);
  const uint32_t chosen = warp.get_predicate(instruction.operands[3]);
  Lanes<uint64_t> d;
  for (size_t lane = 0; lane < 32; ++lane) d[lane] = (chosen >> lane & 1) != 0 ? a[lane] : b[lane];
  warp.put(instruction.operands[0], d);
}

// cvta.shared d, a: into the generic window; cvta.to.shared: out of it.
template <bool kTo>
void convert_address(Warp& warp, const Instruction& instruction) {
  Lanes<uint64_t> a = warp.get<uint64_t>(instruction.operands[1]);
  const uint64_t window = instruction.space == Space::kShared  ? kSharedWindow
                          : instruction.space == Space::kLocal ? kLocalWindow
                          : instruction.space == Space::kParam ? kParamWindow
                                                               : 0;
  for (uint64_t& address : a) address = kTo ? address & (window == 0 ? ~uint64_t{0} : kWindowMask) : address | window;
  warp.put(instruction.operands[0], a);
}

enum class Compare { kEq, kNe, kLt, kLe, kGt, kGe, kNum, kNan };

template <typename T, Compare kHow, bool kUnordered>
void set_predicate(Warp& warp, const Instruction& instruction) {
  const Lanes<T> a = warp.get<T>(instruction.operands[1]), b = warp.get<T>(instruction.operands[2]);
  uint32_t result = 0;
  for (size_t lane = 0; lane < 32; ++lane) {
    bool holds = false;
    const T x = a[lane], y = b[lane];
    const bool nan = x != x || y != y;
    switch (kHow) {
      case Compare::kEq: holds = x == y; break;
      case Compare::kNe: holds = !nan && x != y; break;
      case Compare::kLt: holds = x < y; break;
      case Compare::kLe: holds = x <= y; break;
      case Compare::kGt: holds = x > y; break;
      case Compare::kGe: holds = x >= y; break;
      case Compare::kNum: holds = !nan; break;
      case Compare::kNan: holds = nan; break;
    }
    result |= static_cast<uint32_t>(holds || (kUnordered && nan)) << lane;
  }
  const Operand& to = instruction.operands[0];
  uint32_t other = ~result;
  if (instruction.operands.size() > 3) {  // setp.lt.and p|q, a, b, c
    const uint32_t c = warp.get_predicate(instruction.operands[3]);
    const bool both = instruction.has("and"), either = instruction.has("or");
    result = both ? result & c : either ? result | c : result ^ c;
    other = both ? other & c : either ? other | c : other ^ c;
  }
  warp.put_predicate(to.reg, result);
  warp.put_predicate(to.second, other);
}

template <typename T>
Handler compare_handler(const std::string& how) {
  static const std::map<std::string, Handler> kHandlers = {
      {"eq", &set_predicate<T, Compare::kEq, false>},   {"ne", &set_predicate<T, Compare::kNe, false>},
      {"lt", &set_predicate<T, Compare::kLt, false>},   {"le", &set_predicate<T, Compare::kLe, false>},
      {"gt", &set_predicate<T, Compare::kGt, false>},   {"ge", &set_predicate<T, Compare::kGe, false>},
      {"lo", &set_predicate<T, Compare::kLt, false>},   {"ls", &set_predicate<T, Compare::kLe, false>},
      {"hi", &set_predicate<T, Compare::kGt, false>},   {"hs", &set_predicate<T, Compare::kGe, false>},
      {"equ", &set_predicate<T, Compare::kEq, true>},   {"neu", &set_predicate<T, Compare::kNe, true>},
      {"ltu", &set_predicate<T, Compare::kLt, true>},   {"leu", &set_predicate<T, Compare::kLe, true>},
      {"gtu", &set_predicate<T, Compare::kGt, true>},   {"geu", &set_predicate<T, Compare::kGe, true>},
      {"num", &set_predicate<T, Compare::kNum, false>}, {"nan", &set_predicate<T, Compare::kNan, false>}};
  const auto it = kHandlers.find(how);
  return it == kHandlers.end() ? nullptr : it->second;
}

Handler find_compare(const Instruction& i) {
  if (i.parts.size() < 3 || i.has("ftz")) return nullptr;
  if (i.type == Type::kF32) return compare_handler<float>(i.parts[1]);
  if (i.type == Type::kF64) return compare_handler<double>(i.parts[1]);
  return with_integer(i.type, [&](auto t) { return compare_handler<typename decltype(t)::type>(i.parts[1]); });
}

// ---- cvt ----

template <typename From>
double rounded(From value, const Instruction& i) {
  const auto x = static_cast<double>(value);
  if (i.has("rni")) return std::nearbyint(x);
  if (i.has("rzi")) return std::trunc(x);
  if (i.has("rmi")) return std::floor(x);
  if (i.has("rpi")) return std::ceil(x);
  return x;
}

// Saturates as the hardware's do; NaN becomes 0.
template <typename To>
To to_integer(double x) {
  if (std::isnan(x)) return 0;
  if (x <= static_cast<double>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
  if (x >= static_cast<double>(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
  return static_cast<To>(x);
}

template <typename To, typename From>
void convert(Warp& warp, const Instruction& instruction) {
  const Lanes<From> a = warp.get<From>(instruction.operands[1]);
  const bool saturate = instruction.has("sat");
  Lanes<To> d;
  for (size_t lane = 0; lane < 32; ++lane) {
    const From x = a[lane];
    if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
      d[lane] = to_integer<To>(rounded(x, instruction));
    } else if constexpr (std::is_floating_point_v<From>) {
      d[lane] = static_cast<To>(rounded(x, instruction));
      if (saturate) d[lane] = d[lane] > 0 ? std::min(d[lane], To{1}) : To{0};
    } else if constexpr (std::is_integral_v<To>) {
      if (saturate) {
        const bool below = std::cmp_less(x, std::numeric_limits<To>::min());
        d[lane] = below                                                 ? std::numeric_limits<To>::min()
                  : std::cmp_greater(x, std::numeric_limits<To>::max()) ? std::numeric_limits<To>::max()
                                                                        : static_cast<To>(x);
      } else {
        d[lane] = static_cast<To>(x);
      }
    } else {
      d[lane] = static_cast<To>(x);
    }
  }
  warp.put(instruction.operands[0], d);
}

template <auto kFunction, typename From>
void convert_bits(Warp& warp, const Instruction& instruction) {
  const Lanes<From> a = warp.get<From>(instruction.operands[1]);
  Lanes<decltype(kFunction(a[0]))> d;
  for (size_t lane = 0; lane < 32; ++lane) d[lane] = kFunction(a[lane]);
  warp.put(instruction.operands[0], d);
}

// cvt.rn.f16x2.f32 d, a, b: b goes to the low half.
template <auto kFunction, int kBits>
void convert_pair(Warp& warp, const Instruction& instruction) {
  const Lanes<float> high = warp.get<float>(instruction.operands[1]), low = warp.get<float>(instruction.operands[2]);
  Lanes<uint32_t> d;
  for (size_t lane = 0; lane < 32; ++lane) {
    d[lane] = uint32_t{kFunction(low[lane])} | uint32_t{kFunction(high[lane])} << kBits;
  }
  warp.put(instruction.operands[0], d);
}

void e4m3_to_halves(Warp& warp, const Instruction& instruction) {
  const Lanes<uint16_t> a = warp.get<uint16_t>(instruction.operands[1]);
  const auto half = [](unsigned code) {
    return uint32_t{cuda_emu::float_to_half(static_cast<float>(cuda_emu::e4m3_to_double(static_cast<uint8_t>(code))))};
  };
  Lanes<uint32_t> d;
  for (size_t lane = 0; lane < 32; ++lane) d[lane] = half(a[lane] & 0xffu) | half(a[lane] >> 8u) << 16;
  warp.put(instruction.operands[0], d);
}

template <typename To>
Handler conversion_from(Type from) {
  if (from == Type::kF32) return &convert<To, float>;
  if (from == Type::kF64) return &convert<To, double>;
  return with_integer(from, [](auto f) -> Handler { return &convert<To, typename decltype(f)::type>; });
}

}  // namespace

Handler find_conversion(const Instruction& i) {
  if (i.parts.front() != "cvt" || i.parts.size() < 3) return nullptr;
  const Type from = i.type, to = type_of(i.parts[i.parts.size() - 2]);
  for (size_t p = 1; p + 2 < i.parts.size(); ++p) {
    const std::string& part = i.parts[p];
    if (part != "rn" && part != "rni" && part != "rzi" && part != "rmi" && part != "rpi" && part != "sat" &&
        part != "satfinite") {
      return nullptr;
    }
  }
  using namespace cuda_emu;
  if (to == Type::kF16 && from == Type::kF32) return &convert_bits<&float_to_half, float>;
  if (to == Type::kF32 && from == Type::kF16) return &convert_bits<&half_to_float, uint16_t>;
  if (to == Type::kBF16 && from == Type::kF32) return &convert_bits<&float_to_bfloat16, float>;
  if (to == Type::kF32 && from == Type::kBF16) return &convert_bits<&bfloat16_to_float, uint16_t>;
  if (to == Type::kF16x2 && from == Type::kF32) return &convert_pair<&float_to_half, 16>;
  if (to == Type::kBF16x2 && from == Type::kF32) return &convert_pair<&float_to_bfloat16, 16>;
  if (to == Type::kBF16x2 && from == Type::kF32) return &convert_pair<&float_to_bfloat16, 16>;
  if (to == Type::kE4M3x2 && from == Type::kF32 && i.has("satfinite")) return &convert_pair<&float_to_e4m3, 8>;
  if (to == Type::kF16x2 && from == Type::kE4M3x2) return &e4m3_to_halves;
  if (to == Type::kF32) return conversion_from<float>(from);
  if (to == Type::kF64) return conversion_from<double>(from);
  if (to == Type::kF16 || to == Type::kBF16 || from == Type::kF16 || from == Type::kBF16) return nullptr;
  return with_integer(to, [&](auto t) { return conversion_from<typename decltype(t)::type>(from); });
}

Handler find_move(const Instruction& i) {
  const std::string& family = i.parts.front();
  if (family == "setp") return find_compare(i);
  if (family == "cvta") return i.has("to") ? &convert_address<true> : &convert_address<false>;
  if (family == "selp") return &select;
  if (family != "mov") return nullptr;
  if (i.type == Type::kPred) return &move_predicate;
  if (i.operands.size() == 2 && i.operands[1].kind == Operand::Kind::kVector) return &move_pieces<true>;
  if (i.operands.size() == 2 && i.operands[0].kind == Operand::Kind::kVector) return &move_pieces<false>;
  return type_bytes(i.type) == 8 ? &move<uint64_t> : type_bytes(i.type) == 2 ? &move<uint16_t> : &move<uint32_t>;
}

}  // namespace ptx
