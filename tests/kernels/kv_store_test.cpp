// What lies in a page after write_kv: every format against a plain scalar reading of its definition, the same bytes on
// every instruction set and for every cut into calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "base/error.h"
#include "kernels/backend.h"

namespace bam {
namespace {

constexpr int kHeads = 3;
constexpr int64_t kKeys = 3 * kTileKeys + 17;

struct Case {
  DType dtype;
  int head_dim;
};

// Keys and values of every size: ordinary, tiny (subnormal in half precision), large, zero rows, equal rows.
std::vector<float> make_rows(int head_dim) {
  std::mt19937 random(static_cast<uint32_t>(head_dim));
  std::normal_distribution<float> normal;
  const int64_t width = int64_t{3} * kHeads * head_dim;
  std::vector<float> rows(static_cast<size_t>(kKeys * width));
  for (int64_t i = 0; i < kKeys; ++i) {
    const float size = i % 7 == 1 ? 1e-6f : i % 7 == 2 ? 300.0f : i % 7 == 3 ? 0.0f : 1.0f;
    for (int64_t c = 0; c < width; ++c) rows[static_cast<size_t>(i * width + c)] = size * normal(random);
  }
  return rows;
}

// All pages of all heads, one after the other, after writing `chunk` rows per call.
std::vector<std::byte> written(const std::string& isa, const Case& c, const std::vector<float>& rows, int64_t chunk,
                               int threads, int before = 0x5a) {
  const auto backend = make_cpu_backend({.num_threads = threads, .isa = isa});
  AttentionSpec spec;
  spec.num_heads = spec.num_kv_heads = kHeads;
  spec.head_dim = c.head_dim;
  const auto layer = backend->make_attention(spec);
  const KvLayout layout = make_kv_layout(c.dtype, c.head_dim, kTileKeys);
  const int64_t tiles = (kKeys + kTileKeys - 1) / kTileKeys, pages = kHeads * tiles;
  const auto memory = backend->allocate(static_cast<size_t>(pages) * layout.page_bytes());
  std::memset(memory->data(), before, memory->size_bytes());  // a page that was used before
  const KvCacheView kv{static_cast<std::byte*>(memory->data()), pages, layout};
  std::vector<int32_t> table(static_cast<size_t>(pages));
  std::iota(table.begin(), table.end(), 0);
  std::vector<float> copy = rows;
  const int64_t width = int64_t{3} * kHeads * c.head_dim;
  for (int64_t begin = 0; begin < kKeys; begin += chunk) {
    const SequenceRows seq{table.data(), tiles, 0, std::min(chunk, kKeys - begin), begin};
    backend->write_kv(*layer, kv, {&seq, 1}, {copy.data() + begin * width, seq.num_rows, width});
  }
  const auto* bytes = static_cast<const std::byte*>(memory->data());
  return {bytes, bytes + memory->size_bytes()};
}

// ---- the plain reading ----

float stored_number(const KvLayout& layout, const std::byte* tile, bool value, int slot, int d) {
  const std::byte* base = tile + (value ? layout.v_offset : layout.k_offset);
  const int64_t index = value ? int64_t{slot} * layout.padded_dim + d
                              : (int64_t{slot / kPanelKeys} * layout.head_dim + d) * kPanelKeys + slot % kPanelKeys;
  const auto* scales =
      reinterpret_cast<const uint16_t*>(tile + (value ? layout.v_scale_offset : layout.k_scale_offset));
  switch (layout.dtype) {
    case DType::kF32: return reinterpret_cast<const float*>(base)[index];
    case DType::kF16: return f16_to_f32(reinterpret_cast<const uint16_t*>(base)[index]);
    case DType::kI8: return f16_to_f32(scales[slot]) * static_cast<float>(reinterpret_cast<const int8_t*>(base)[index]);
    default: {
      const auto byte = static_cast<uint8_t>(base[index / 16 * 8 + index % 8]);
      const int code = index % 16 < 8 ? byte & 0x0f : byte >> 4;
      return f16_to_f32(scales[kTileKeys + slot]) + f16_to_f32(scales[slot]) * static_cast<float>(code);
    }
  }
}

// How far a stored number may be from the one that was written.
float tolerance(DType dtype, const float* row, int head_dim, float value) {
  const auto [low, high] = std::minmax_element(row, row + head_dim);
  const float largest = std::max(std::fabs(*low), std::fabs(*high));
  switch (dtype) {
    case DType::kF32: return 0;
    case DType::kF16: return std::max(std::fabs(value) * 0x1p-11f, 0x1p-25f);
    case DType::kI8: return 0.501f * largest / 127 * (1 + 0x1p-10f) + 0x1p-24f * 64;
    default: return 0.51f * (*high - *low) / 15 + largest * 0x1p-9f + 0x1p-24f * 16;
  }
}

class KvStore : public ::testing::TestWithParam<Case> {};

TEST_P(KvStore, HoldsWhatWasWritten) {
  const Case c = GetParam();
  const auto rows = make_rows(c.head_dim);
  const KvLayout layout = make_kv_layout(c.dtype, c.head_dim, kTileKeys);
  const auto pages = written("auto", c, rows, kKeys, 2);
  const int64_t tiles = (kKeys + kTileKeys - 1) / kTileKeys, width = int64_t{3} * kHeads * c.head_dim;
  for (int64_t i = 0; i < kKeys; ++i) {
    for (int h = 0; h < kHeads; ++h) {
      const std::byte* tile = pages.data() + static_cast<size_t>(h * tiles + i / kTileKeys) * layout.page_bytes();
      for (const bool value : {false, true}) {
        const float* row = rows.data() + i * width + int64_t{(value ? 2 : 1) * kHeads + h} * c.head_dim;
        for (int d = 0; d < c.head_dim; ++d) {
          const float stored = stored_number(layout, tile, value, static_cast<int>(i % kTileKeys), d);
          ASSERT_NEAR(stored, row[d], tolerance(c.dtype, row, c.head_dim, row[d])) << "key " << i << " dim " << d;
          if (c.dtype == DType::kF16) {
            ASSERT_EQ(stored, f16_to_f32(f32_to_f16(row[d])));
          }
        }
      }
    }
  }
}

// Pages are compared, hashed and stored whole: gaps between their parts and slots that are still empty count.
TEST_P(KvStore, NothingOfAPagesPastRemains) {
  const Case c = GetParam();
  const auto rows = make_rows(c.head_dim);
  EXPECT_EQ(written("auto", c, rows, kKeys, 1, 0x5a), written("auto", c, rows, kKeys, 1, 0x00));
}

TEST_P(KvStore, AFullTileKnowsItsKeys) {
  const Case c = GetParam();
  const KvLayout layout = make_kv_layout(c.dtype, c.head_dim, kTileKeys);
  const auto pages = written("auto", c, make_rows(c.head_dim), kKeys, 2);
  const int64_t tiles = (kKeys + kTileKeys - 1) / kTileKeys;
  for (int h = 0; h < kHeads; ++h) {
    double norm_so_far = 0;
    for (int64_t t = 0; t < tiles; ++t) {
      const std::byte* tile = pages.data() + static_cast<size_t>(h * tiles + t) * layout.page_bytes();
      KeyStats stats;
      std::memcpy(&stats, tile + layout.stats_offset, sizeof stats);
      ASSERT_EQ(stats.valid, t + 1 < tiles ? 1u : 0u);
      if (stats.valid == 0) continue;
      const auto* lo = reinterpret_cast<const uint16_t*>(tile + layout.stats_offset + sizeof stats);
      const uint16_t* hi = lo + layout.padded_dim;
      double max_norm = 0, radius = 0;
      for (int s = 0; s < kTileKeys; ++s) {
        double norm2 = 0, dist2 = 0;
        for (int d = 0; d < c.head_dim; ++d) {
          const double key = stored_number(layout, tile, false, s, d);
          const double low = f16_to_f32(lo[d]), high = f16_to_f32(hi[d]);
          ASSERT_LE(low, key);
          ASSERT_GE(high, key);
          norm2 += key * key;
          dist2 += (key - (low + high) / 2) * (key - (low + high) / 2);
        }
        max_norm = std::max(max_norm, std::sqrt(norm2));
        radius = std::max(radius, std::sqrt(dist2));
      }
      for (int d = 0; d < c.head_dim; ++d) {  // the box is no wider than half precision needs
        float least = stored_number(layout, tile, false, 0, d), most = least;
        for (int s = 1; s < kTileKeys; ++s) {
          least = std::min(least, stored_number(layout, tile, false, s, d));
          most = std::max(most, stored_number(layout, tile, false, s, d));
        }
        ASSERT_NEAR(f16_to_f32(lo[d]), least, std::fabs(least) * 0x1p-10f + 0x1p-24f);
        ASSERT_NEAR(f16_to_f32(hi[d]), most, std::fabs(most) * 0x1p-10f + 0x1p-24f);
      }
      norm_so_far = std::max(norm_so_far, max_norm);
      for (const auto& [bound, exact] : {std::pair{stats.max_norm, max_norm}, std::pair{stats.radius, radius},
                                         std::pair{stats.max_norm_prefix, norm_so_far}}) {
        ASSERT_GE(bound, exact) << "tile " << t;
        ASSERT_LE(bound, exact * (1 + 3e-5)) << "tile " << t;
      }
    }
  }
}

// No bound over keys with a NaN is one, wherever the NaN is.
TEST(KvStoreNan, ShowsInTheStatisticsOfItsTileAndAllLaterOnes) {
  const Case c{DType::kF16, 48};
  const KvLayout layout = make_kv_layout(c.dtype, c.head_dim, kTileKeys);
  const int64_t tiles = (kKeys + kTileKeys - 1) / kTileKeys, width = int64_t{3} * kHeads * c.head_dim;
  for (const int64_t key : {int64_t{kTileKeys}, int64_t{kTileKeys + 30}, int64_t{2 * kTileKeys - 1}}) {
    auto rows = make_rows(c.head_dim);
    rows[static_cast<size_t>(key * width + kHeads * c.head_dim + 7)] = std::nanf("");  // of head 0
    const auto pages = written("auto", c, rows, kKeys, 1);
    for (int64_t t = 0; t < 3; ++t) {
      KeyStats stats;
      std::memcpy(&stats, pages.data() + static_cast<size_t>(t) * layout.page_bytes() + layout.stats_offset,
                  sizeof stats);
      EXPECT_EQ(std::isnan(stats.max_norm), t == 1) << "key " << key << " tile " << t;
      EXPECT_EQ(std::isnan(stats.radius), t == 1) << "key " << key << " tile " << t;
      EXPECT_EQ(std::isnan(stats.max_norm_prefix), t >= 1) << "key " << key << " tile " << t;
    }
    ASSERT_GE(tiles, 3);
  }
}

TEST_P(KvStore, TheBytesDoNotDependOnInstructionsOrCuts) {
  const Case c = GetParam();
  const auto rows = make_rows(c.head_dim);
  const auto expected = written("portable", c, rows, kKeys, 1);
  for (const char* isa : {"portable", "avx2", "avx512", "avx512vnni"}) {
    for (const int64_t chunk : {int64_t{1}, int64_t{50}, kKeys}) {
      std::vector<std::byte> got;
      try {
        got = written(isa, c, rows, chunk, 1 + static_cast<int>(chunk % 3));
      } catch (const UsageError&) {
        continue;  // this machine does not have it
      }
      ASSERT_EQ(got.size(), expected.size());
      ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size()), 0) << isa << ", chunks of " << chunk;
    }
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kI4}) {
    for (const int head_dim : {32, 48, 50, 64, 128, 256}) cases.push_back({dtype, head_dim});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Formats, KvStore, ::testing::ValuesIn(all_cases()), [](const auto& info) {
  return std::string(dtype_name(info.param.dtype)) + "_" + std::to_string(info.param.head_dim);
});

}  // namespace
}  // namespace bam
