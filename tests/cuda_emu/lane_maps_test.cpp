// Which lane holds which element of a matrix fragment. The tables below are written down from the PTX ISA ("Matrix
// Fragments for mma.m16n8k16 with floating point type", "... for mma.m16n8k32", "ldmatrix") as data. The emulator,
// which is written from another view of the same registers (8x8 core matrices), and the index arithmetic of the kernels
// (kernels/cuda/fragments.h) are checked against them separately: one mistake made twice would have to be made three
// times.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>
#include <vector>

#include "kernels/cuda/fragments.h"
#include "kernels/cuda/ptx.h"
#include "tests/cuda_emu/emu/fault.h"
#include "tests/cuda_emu/emu_test_support.h"

namespace {

using bam::cuda::launch;
using cuda_emu_test::check;
using cuda_emu_test::DeviceArray;
namespace fragments = bam::cuda::fragments;

struct Element {
  int row, col;
  bool operator==(const Element&) const = default;
  auto operator<=>(const Element&) const = default;
};

// Element i of a lane is at table[i] + lane_row * (lane / 4) + lane_col * (lane % 4): what the manual calls groupID and
// threadID_in_group.
template <int kElements>
struct Map {
  std::array<Element, kElements> of_lane_0;
  Element per_group;   // added for every group of four lanes
  Element per_thread;  // added for every thread in its group
  Element at(int lane, int i) const {
    const int group = lane / 4, thread = lane % 4;
    return {of_lane_0[i].row + group * per_group.row + thread * per_thread.row,
            of_lane_0[i].col + group * per_group.col + thread * per_thread.col};
  }
};

// mma.m16n8k16, 16-bit types: a0..a7, b0..b3, c0..c3.
constexpr Map<8> kA16 = {{{{0, 0}, {0, 1}, {8, 0}, {8, 1}, {0, 8}, {0, 9}, {8, 8}, {8, 9}}}, {1, 0}, {0, 2}};
constexpr Map<4> kB16 = {{{{0, 0}, {1, 0}, {8, 0}, {9, 0}}}, {0, 1}, {2, 0}};
constexpr Map<4> kC = {{{{0, 0}, {0, 1}, {8, 0}, {8, 1}}}, {1, 0}, {0, 2}};
// mma.m16n8k32, 8-bit types: a0..a15, b0..b7.
constexpr Map<16> kA8 = {{{{0, 0},
                           {0, 1},
                           {0, 2},
                           {0, 3},
                           {8, 0},
                           {8, 1},
                           {8, 2},
                           {8, 3},
                           {0, 16},
                           {0, 17},
                           {0, 18},
                           {0, 19},
                           {8, 16},
                           {8, 17},
                           {8, 18},
                           {8, 19}}},
                         {1, 0},
                         {0, 4}};
constexpr Map<8> kB8 = {{{{0, 0}, {1, 0}, {2, 0}, {3, 0}, {16, 0}, {17, 0}, {18, 0}, {19, 0}}}, {0, 1}, {4, 0}};
// ldmatrix m8n8 .b16: the two elements of one register, as positions of the stored matrix.
constexpr Map<2> kLoaded = {{{{0, 0}, {0, 1}}}, {1, 0}, {0, 2}};
constexpr Map<2> kLoadedTransposed = {{{{0, 0}, {1, 0}}}, {0, 1}, {2, 0}};

template <int kElements>
void expect_covers(const Map<kElements>& map, int rows, int cols) {
  std::set<Element> seen;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < kElements; ++i) {
      const Element e = map.at(lane, i);
      EXPECT_TRUE(e.row >= 0 && e.row < rows && e.col >= 0 && e.col < cols);
      EXPECT_TRUE(seen.insert(e).second) << "element " << e.row << ", " << e.col << " is held twice";
    }
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(rows) * static_cast<size_t>(cols));
}

TEST(LaneMaps, EachTableHoldsEveryElementOnce) {
  expect_covers(kA16, 16, 16);
  expect_covers(kB16, 16, 8);
  expect_covers(kC, 16, 8);
  expect_covers(kA8, 16, 32);
  expect_covers(kB8, 32, 8);
  expect_covers(kLoaded, 8, 8);
  expect_covers(kLoadedTransposed, 8, 8);
}

TEST(LaneMaps, KernelsIndexFragmentsAsTheTablesSay) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 8; ++i)
      EXPECT_EQ((Element{fragments::a_row(lane, i), fragments::a_col(lane, i)}), kA16.at(lane, i));
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ((Element{fragments::b_row(lane, i), fragments::b_col(lane, i)}), kB16.at(lane, i));
      EXPECT_EQ((Element{fragments::c_row(lane, i), fragments::c_col(lane, i)}), kC.at(lane, i));
    }
    for (int e = 0; e < 2; ++e) {
      EXPECT_EQ((Element{fragments::ldmatrix_out_row(lane, e, false), fragments::ldmatrix_out_col(lane, e, false)}),
                kLoaded.at(lane, e));
      EXPECT_EQ((Element{fragments::ldmatrix_out_row(lane, e, true), fragments::ldmatrix_out_col(lane, e, true)}),
                kLoadedTransposed.at(lane, e));
    }
    // Threads 0-7 give the rows of the first matrix, 8-15 of the second, and so on.
    EXPECT_EQ(fragments::ldmatrix_matrix(lane) * 8 + fragments::ldmatrix_row(lane), lane);
  }
}

// An ldmatrix.x4 in the kernels' order of matrices must give the A registers of an mma: register r of the fragment is
// elements 2r and 2r + 1.
TEST(LaneMaps, KernelsOrderMatricesSoThatRegistersFitTheFragments) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      for (int e = 0; e < 2; ++e) {
        const Element inside = kLoaded.at(lane, e);
        EXPECT_EQ((Element{fragments::a_matrix_row(r) + inside.row, fragments::a_matrix_col(r) + inside.col}),
                  kA16.at(lane, r * 2 + e));
        // B from memory that holds its columns as rows ([n][k]), not transposed: the stored row is n, the column k.
        const Element b = kB16.at(lane, (r % 2) * 2 + e);
        EXPECT_EQ(fragments::b_matrix_k(r) + inside.col, b.row);
        EXPECT_EQ(fragments::b_matrix_n(r) + inside.row, b.col + (r / 2) * 8);
      }
    }
  }
}

// Fragments are given by the host, lane by lane, and come back the same way.
template <bam::cuda::MmaType kType>
__global__ void one_mma(const uint32_t* a, const uint32_t* b, float* d) {
  const unsigned lane = threadIdx.x;
  uint32_t ra[4], rb[2];
  float rd[4];
  for (int r = 0; r < 4; ++r) ra[r] = a[lane * 4 + r];
  for (int r = 0; r < 2; ++r) rb[r] = b[lane * 2 + r];
  for (int r = 0; r < 4; ++r) rd[r] = d[lane * 4 + r];
  bam::cuda::mma_m16n8k16<kType>(rd, ra, rb);
  for (int r = 0; r < 4; ++r) d[lane * 4 + r] = rd[r];
}

__global__ void one_mma_s8(const uint32_t* a, const uint32_t* b, int32_t* d) {
  const unsigned lane = threadIdx.x;
  uint32_t ra[4], rb[2];
  int32_t rd[4];
  for (int r = 0; r < 4; ++r) ra[r] = a[lane * 4 + r];
  for (int r = 0; r < 2; ++r) rb[r] = b[lane * 2 + r];
  for (int r = 0; r < 4; ++r) rd[r] = d[lane * 4 + r];
  bam::cuda::mma_m16n8k32_s8(rd, ra, rb);
  for (int r = 0; r < 4; ++r) d[lane * 4 + r] = rd[r];
}

// Small integers: every format and every order of summation gives the exact product.
int value_a(int row, int k) { return (row * 7 + k * 5 + row * k) % 11 - 5; }
int value_b(int k, int col) { return (k * 3 + col * 13 + k * col) % 9 - 4; }
int value_c(int row, int col) { return row * 8 + col - 60; }

template <typename T, int kElements, typename Value>
std::vector<uint32_t> pack(const Map<kElements>& map, Value&& value) {
  std::vector<uint32_t> registers(32 * kElements * sizeof(T) / 4);
  std::vector<T> elements;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < kElements; ++i) {
      const Element e = map.at(lane, i);
      elements.push_back(static_cast<T>(value(e.row, e.col)));
    }
  }
  std::memcpy(registers.data(), elements.data(), registers.size() * 4);
  return registers;
}

template <typename T, typename D, int kA, int kB>
void check_mma(const Map<kA>& a_map, const Map<kB>& b_map, int depth,
               void (*kernel)(const uint32_t*, const uint32_t*, D*)) {
  const DeviceArray<uint32_t> a(pack<T>(a_map, [](int row, int col) { return value_a(row, col); }));
  const DeviceArray<uint32_t> b(pack<T>(b_map, [](int row, int col) { return value_b(row, col); }));
  std::vector<D> start(128);
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) start[lane * 4 + i] = static_cast<D>(value_c(kC.at(lane, i).row, kC.at(lane, i).col));
  }
  const DeviceArray<D> d(start);
  check(launch(kernel, 1, 32, 0, nullptr, a.data(), b.data(), d.data()));
  const auto result = d.read();
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const Element e = kC.at(lane, i);
      int expected = value_c(e.row, e.col);
      for (int k = 0; k < depth; ++k) expected += value_a(e.row, k) * value_b(k, e.col);
      EXPECT_EQ(result[lane * 4 + i], static_cast<D>(expected)) << "lane " << lane << " element " << i;
    }
  }
}

TEST(LaneMaps, TheEmulatedMmaReadsAndWritesFragmentsAsTheTablesSay) {
  check_mma<__half, float>(kA16, kB16, 16, &one_mma<bam::cuda::MmaType::kF16>);
  check_mma<__nv_bfloat16, float>(kA16, kB16, 16, &one_mma<bam::cuda::MmaType::kBF16>);
  check_mma<int8_t, int32_t>(kA8, kB8, 32, &one_mma_s8);
}

constexpr int kPitch = 24;  // elements between rows in shared memory: 16-byte aligned, no power of two

template <int kMatrices, bool kTransposed>
__global__ void one_ldmatrix(uint32_t* out) {
  BAM_SHARED(uint16_t, tile, [32 * kPitch]);
  for (unsigned i = threadIdx.x; i < 32 * kPitch; i += 32) tile[i] = static_cast<uint16_t>(i);
  __syncwarp();
  const uint16_t* row = tile + threadIdx.x * kPitch;  // lane l: row l % 8 of matrix l / 8
  uint32_t r[4] = {~0u, ~0u, ~0u, ~0u};
  if constexpr (kMatrices == 4) {
    kTransposed ? bam::cuda::ldmatrix_x4_trans(r, row) : bam::cuda::ldmatrix_x4(r, row);
  } else if constexpr (kMatrices == 2) {
    uint32_t two[2];
    kTransposed ? bam::cuda::ldmatrix_x2_trans(two, row) : bam::cuda::ldmatrix_x2(two, row);
    r[0] = two[0], r[1] = two[1];
  } else {
    kTransposed ? bam::cuda::ldmatrix_x1_trans(r[0], row) : bam::cuda::ldmatrix_x1(r[0], row);
  }
  for (int m = 0; m < 4; ++m) out[threadIdx.x * 4 + m] = r[m];
}

template <int kMatrices, bool kTransposed>
void check_ldmatrix() {
  const DeviceArray<uint32_t> out(128);
  check(launch(one_ldmatrix<kMatrices, kTransposed>, 1, 32, 0, nullptr, out.data()));
  const auto registers = out.read();
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < 4; ++m) {
      for (int e = 0; e < 2; ++e) {
        const Element at = (kTransposed ? kLoadedTransposed : kLoaded).at(lane, e);
        const unsigned expected = m < kMatrices ? static_cast<unsigned>((m * 8 + at.row) * kPitch + at.col) : 0xffffu;
        EXPECT_EQ(registers[lane * 4 + m] >> (16 * e) & 0xffffu, expected) << "lane " << lane << " matrix " << m;
      }
    }
  }
}

TEST(LaneMaps, TheEmulatedLdmatrixDistributesAsTheTablesSay) {
  check_ldmatrix<1, false>();
  check_ldmatrix<2, false>();
  check_ldmatrix<4, false>();
  check_ldmatrix<1, true>();
  check_ldmatrix<2, true>();
  check_ldmatrix<4, true>();
}

__global__ void misaligned_ldmatrix(int offset, bool outside) {
  BAM_SHARED(uint16_t, tile, [32 * 16]);
  uint16_t local[16] = {};
  uint32_t r;
  const uint16_t* row = outside ? local : tile + threadIdx.x * 16 + offset;
  bam::cuda::ldmatrix_x1(r, row);
}

TEST(LaneMaps, LdmatrixFromBadAddressesIsAFault) {
  const auto run = [](int offset, bool outside) {
    check(launch(misaligned_ldmatrix, 1, 32, 0, nullptr, offset, outside));
    check(cudaDeviceSynchronize());
  };
  EXPECT_NO_THROW(run(8, false));
  EXPECT_THROW(run(4, false), cuda_emu::Fault);
  EXPECT_THROW(run(0, true), cuda_emu::Fault);
}

}  // namespace
