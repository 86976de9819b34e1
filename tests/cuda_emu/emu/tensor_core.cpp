// mma, ldmatrix, cp.async and cvt. Registers of a warp are seen here as 8x8 core matrices: register r of lanes 0..31,
// laid side by side, is one core matrix in row-major order (32 words of two 16-bit elements, or 64 accumulators). The
// tables of the PTX manual, which say the same lane by lane, are in lane_maps_test.cpp and nowhere else.
#include <fmt/format.h>
#include <fp8_bits.h>
#include <half_bits.h>

#include <cstring>

#include "tests/cuda_emu/emu/block.h"
#include "tests/cuda_emu/emu/device_memory.h"
#include "tests/cuda_emu/emu/fault.h"

namespace cuda_emu {

namespace {

struct MmaOperand {
  void* d;            // 4 accumulators
  const uint32_t* a;  // 4 registers
  const uint32_t* b;  // 2 registers
};

// Core matrix of register `r`: 8 rows of 16 bytes.
struct Core {
  uint32_t words[32];
};

template <typename Get>
Core gather(Get&& word_of_lane) {
  Core core;
  for (int lane = 0; lane < 32; ++lane) core.words[lane] = word_of_lane(lane);
  return core;
}

template <bool kBF16>
void widen(const Core& core, float (&out)[64]) {
  uint16_t elements[64];
  std::memcpy(elements, core.words, sizeof elements);
  for (int i = 0; i < 64; ++i) out[i] = kBF16 ? bfloat16_to_float(elements[i]) : half_to_float(elements[i]);
}

void widen_bytes(const Core& core, int8_t (&out)[128]) { std::memcpy(out, core.words, sizeof out); }

// A is two by two cores, down first; B one by two, each core the transpose of an 8x8 piece (rows are columns of B);
// the accumulators two by one.
template <bool kBF16>
void run_mma(void* const (&operands)[32], uint32_t) {
  const auto operand = [&](int lane) { return static_cast<const MmaOperand*>(operands[lane]); };
  float a[2][2][64];  // [k half][row half]
  float b[16][8];     // [k][n]
  for (int r = 0; r < 4; ++r) {
    widen<kBF16>(gather([&](int lane) { return operand(lane)->a[r]; }), a[r / 2][r % 2]);
  }
  for (int half = 0; half < 2; ++half) {
    float columns[64];
    widen<kBF16>(gather([&](int lane) { return operand(lane)->b[half]; }), columns);
    for (int n = 0; n < 8; ++n) {
      for (int k = 0; k < 8; ++k) b[half * 8 + k][n] = columns[n * 8 + k];
    }
  }
  for (int half = 0; half < 2; ++half) {
    float d[64];
    for (int lane = 0; lane < 32; ++lane) {
      std::memcpy(&d[lane * 2], static_cast<const float*>(operand(lane)->d) + half * 2, 2 * sizeof(float));
    }
    for (int row = 0; row < 8; ++row) {
      float sum[8] = {};
      for (int k = 0; k < 16; ++k) {
        const float left = a[k / 8][half][row * 8 + k % 8];
        for (int n = 0; n < 8; ++n) sum[n] += left * b[k][n];
      }
      for (int n = 0; n < 8; ++n) d[row * 8 + n] += sum[n];
    }
    for (int lane = 0; lane < 32; ++lane) {
      std::memcpy(static_cast<float*>(operand(lane)->d) + half * 2, &d[lane * 2], 2 * sizeof(float));
    }
  }
}

// The same with rows of 16 bytes instead of 8 halves: k is 32.
void run_mma_bytes(void* const (&operands)[32], uint32_t) {
  const auto operand = [&](int lane) { return static_cast<const MmaOperand*>(operands[lane]); };
  int8_t a[2][2][128];
  int8_t b[2][128];
  for (int r = 0; r < 4; ++r) {
    widen_bytes(gather([&](int lane) { return operand(lane)->a[r]; }), a[r / 2][r % 2]);
  }
  for (int half = 0; half < 2; ++half) {
    widen_bytes(gather([&](int lane) { return operand(lane)->b[half]; }), b[half]);
  }
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 64; ++i) {
      const int row = i / 8, n = i % 8;
      int32_t sum = 0;
      for (int k = 0; k < 32; ++k) sum += a[k / 16][half][row * 16 + k % 16] * b[k / 16][n * 16 + k % 16];
      auto* d = static_cast<uint32_t*>(operand(i / 2)->d) + half * 2 + i % 2;
      *d += static_cast<uint32_t>(sum);  // wraps like the hardware's
    }
  }
}

struct LdmatrixOperand {
  uint32_t* out;
  const void* row;
};

template <int kMatrices, bool kTransposed>
void run_ldmatrix(void* const (&operands)[32], uint32_t) {
  const auto operand = [&](int lane) { return static_cast<const LdmatrixOperand*>(operands[lane]); };
  for (int m = 0; m < kMatrices; ++m) {
    uint16_t elements[64];
    for (int row = 0; row < 8; ++row) {
      const void* address = operand(m * 8 + row)->row;
      if (reinterpret_cast<uintptr_t>(address) % 16 != 0)
        throw Fault("ldmatrix: a row's address is not 16-byte aligned");
      if (!running_block().shared().contains(address, 16)) throw Fault("ldmatrix: a row is not in shared memory");
      std::memcpy(&elements[row * 8], address, 16);
    }
    if constexpr (kTransposed) {
      for (int row = 0; row < 8; ++row) {
        for (int column = 0; column < row; ++column) std::swap(elements[row * 8 + column], elements[column * 8 + row]);
      }
    }
    uint32_t words[32];
    std::memcpy(words, elements, sizeof words);
    for (int lane = 0; lane < 32; ++lane) operand(lane)->out[m] = words[lane];
  }
}

constexpr uint32_t kWarp = 0xffffffffu;

}  // namespace

void mma_m16n8k16(bool bf16, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Where where) {
  MmaOperand operand{d, a, b};
  running_block().warp_operation(bf16 ? "mma.m16n8k16.bf16" : "mma.m16n8k16.f16", kWarp, &operand,
                                 bf16 ? &run_mma<true> : &run_mma<false>, where);
}

void mma_m16n8k32_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Where where) {
  MmaOperand operand{d, a, b};
  running_block().warp_operation("mma.m16n8k32.s8", kWarp, &operand, &run_mma_bytes, where);
}

void ldmatrix(int matrices, bool transposed, uint32_t* out, const void* row, Where where) {
  LdmatrixOperand operand{out, row};
  WarpFunction function = nullptr;
  switch (matrices) {
    case 1: function = transposed ? &run_ldmatrix<1, true> : &run_ldmatrix<1, false>; break;
    case 2: function = transposed ? &run_ldmatrix<2, true> : &run_ldmatrix<2, false>; break;
    default: function = transposed ? &run_ldmatrix<4, true> : &run_ldmatrix<4, false>; break;
  }
  running_block().warp_operation(transposed ? "ldmatrix.trans" : "ldmatrix", kWarp, &operand, function, where);
}

void cp_async(void* shared, const void* global, int bytes, int source_bytes) {
  Block& block = running_block();
  const auto aligned = [&](const void* address) {
    return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(bytes) == 0;
  };
  if (source_bytes < 0 || source_bytes > bytes) {
    throw Fault(fmt::format("cp.async of {} bytes: a source size of {}", bytes, source_bytes));
  }
  if (!aligned(shared) || !aligned(global)) {
    throw Fault(fmt::format("cp.async of {} bytes between {} and {}: not aligned", bytes, global, shared));
  }
  if (!block.shared().contains(shared, static_cast<size_t>(bytes))) {
    throw Fault("cp.async: the destination is not in shared memory");
  }
  if (source_bytes > 0 && !device_memory().contains(global, static_cast<size_t>(source_bytes))) {
    throw Fault("cp.async: the source is not in device memory");
  }
  block.thread().copies.issue(shared, global, bytes, source_bytes);
}

void cp_async_commit() { running_block().thread().copies.commit(); }

void cp_async_wait(int pending) { running_block().thread().copies.wait(pending); }

float exp2_flush(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.0f : y;
}

uint16_t cvt_e4m3x2(float low, float high) {
  return static_cast<uint16_t>(float_to_e4m3(low) | float_to_e4m3(high) << 8);
}

uint32_t cvt_f16x2_e4m3x2(uint16_t codes) {
  const auto half = [](int code) {
    return uint32_t{float_to_half(static_cast<float>(e4m3_to_double(static_cast<uint8_t>(code))))};
  };
  return half(codes & 0xff) | half(codes >> 8) << 16;
}

}  // namespace cuda_emu
