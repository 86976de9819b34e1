// Certified skipping, splitting and cutting of attention on the emulated device at lengths where they matter.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>

#include "tests/cuda_emu/attention_test_support.h"

namespace bam {
namespace {

using cuda_test::Case;
using cuda_test::make_cuda;
using cuda_test::make_spec;
using cuda_test::run;

// 23 tiles: a super-tile and more, three segments.
Case long_case(DType operand, DType kv) {
  return {.name = "long",
          .operand = operand,
          .kv = kv,
          .head_dim = 32,
          .tokens = 1450,
          .prior = {{0.5, 0.9, 0}, {-0.5, 0.3, 0}, {0.1, 0.0, 0}, {0.2, -0.3, 0}}};
}

// Keys drift slowly so that boxes of neighbouring keys are tight; one key far back stands out.
std::vector<float> drifting_qkv(const Case& test) {
  std::vector<float> qkv = cuda_test::make_qkv(test, 12);
  const int64_t width = int64_t{test.heads + 2 * test.kv_heads} * test.head_dim;
  std::vector<float> drift(static_cast<size_t>(test.kv_heads * test.head_dim));
  for (int64_t i = 0; i < test.tokens; ++i) {
    float* keys = qkv.data() + i * width + int64_t{test.heads} * test.head_dim;
    for (size_t d = 0; d < drift.size(); ++d) {
      drift[d] = 0.99f * drift[d] + 0.05f * keys[d];
      keys[d] = cuda_test::rounded(drift[d] + (i == 500 ? 3.0f : 0.0f), test.operand);
    }
  }
  return qkv;
}

class Certify : public ::testing::TestWithParam<std::pair<DType, DType>> {
 protected:
  Case test_ = long_case(GetParam().first, GetParam().second);
  AttentionSpec spec_ = make_spec(test_);
  std::vector<float> qkv_ = drifting_qkv(test_);
  std::vector<float> compute(int64_t chunk, bool certified, std::vector<AttentionCounters>* counters = nullptr,
                             int page_size = 64, int64_t queries = 20) {
    Case test = test_;
    test.page_size = page_size;
    const auto backend = make_cuda(test.operand);
    return run(*backend, test, spec_, qkv_, chunk, {.certified = certified}, counters, test.tokens - queries);
  }
};

TEST_P(Certify, LosesLessThanEpsilonAndReadsLess) {
  std::vector<AttentionCounters> dense_counters, counters;
  const auto dense = compute(20, false, &dense_counters), certified = compute(20, true, &counters);
  double worst = 0;
  for (size_t i = 0; i < dense.size(); ++i)
    worst = std::max(worst, std::fabs(static_cast<double>(dense[i]) - certified[i]));
  // Values are below 5; the order of sums differs too.
  EXPECT_LT(worst, 10 * 0x1p-20 + 2 * std::max(cuda_test::unit(test_.operand), 1e-6) * 5);
  const uint64_t tiles = 20 * 23;
  for (size_t h = 0; h < 4; ++h) {
    EXPECT_EQ(dense_counters[h].visited, tiles);
    EXPECT_EQ(dense_counters[h].skipped, 0u);
    EXPECT_EQ(counters[h].visited + counters[h].skipped, tiles);
  }
  EXPECT_LT(counters[0].visited, tiles / 3) << "a local head reads a small window";
  EXPECT_GT(counters[3].bound_tests, 0u);
}

TEST_P(Certify, SameBitsInAnyCutPageSizeAndSplit) {
  for (const bool certified : {true, false}) {
    std::vector<AttentionCounters> counters, other_counters;
    const auto whole = compute(20, certified, &counters);
    const auto same = [&](const std::vector<float>& other, const char* what) {
      EXPECT_EQ(std::memcmp(whole.data(), other.data(), whole.size() * sizeof(float)), 0)
          << what << " certified " << certified;
      for (size_t h = 0; h < counters.size(); ++h) EXPECT_EQ(counters[h].visited, other_counters[h].visited) << what;
    };
    same(compute(1, certified, &other_counters), "token by token");
    same(compute(7, certified, &other_counters, 256), "chunks of 7, pages of 256");
    cuda_emu::Config small = cuda_emu::config();
    small.multiprocessors = 1;
    small.seed = 77;
    const cuda_emu::ScopedConfig scope(small);
    same(compute(20, certified, &other_counters), "no splitting, another order of threads");
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Certify,
                         ::testing::Values(std::pair{DType::kF32, DType::kF32}, std::pair{DType::kF16, DType::kF16},
                                           std::pair{DType::kF16, DType::kI8}, std::pair{DType::kF16, DType::kFp8}),
                         [](const auto& info) {
                           return std::string(dtype_name(info.param.first)) + "_" +
                                  std::string(dtype_name(info.param.second));
                         });

// The same attention on the CPU backend, for its counters.
std::vector<AttentionCounters> cpu_counters(const Case& test, const std::vector<float>& qkv, int64_t queries) {
  const auto backend = make_cpu_backend({.num_threads = 1});
  const auto layer = backend->make_attention(make_spec(test));
  AttentionLayer* layers[] = {layer.get()};
  backend->reserve_positions(layers, test.tokens);
  cuda_test::Cache cache(*backend, test);
  std::vector<float> rows = qkv, out(static_cast<size_t>(queries * test.heads * test.head_dim));
  const SequenceRows all = cache.rows(0, test.tokens), asking = cache.rows(test.tokens - queries, queries);
  const int64_t width = layer->spec.qkv_width(), out_width = layer->spec.q_width();
  backend->write_kv(*layer, cache.view, {&all, 1}, {rows.data(), test.tokens, width});
  std::vector<int32_t> query_rows(static_cast<size_t>(queries));
  std::iota(query_rows.begin(), query_rows.end(), static_cast<int32_t>(test.tokens - queries));
  std::vector<AttentionCounters> counters(static_cast<size_t>(test.heads));
  backend->attention(*layer, cache.view, {&asking, 1}, query_rows, {rows.data(), test.tokens, width}, {},
                     {out.data(), queries, out_width}, counters);
  return counters;
}

// Both count (row, tile) pairs of the same rule. The CPU compares with everything seen so far, the device with the
// anchor only, so it may read more, but not much.
TEST(CertifyCounters, AreThoseOfTheCpu) {
  const Case test = long_case(DType::kF32, DType::kF32);
  const int64_t queries = 20;
  const std::vector<float> qkv = drifting_qkv(test);
  const std::vector<AttentionCounters> cpu = cpu_counters(test, qkv, queries);
  std::vector<AttentionCounters> device;
  const auto backend = make_cuda(test.operand);
  run(*backend, test, make_spec(test), qkv, queries, {}, &device, test.tokens - queries);
  uint64_t cpu_skipped = 0;
  for (size_t h = 0; h < cpu.size(); ++h) {
    EXPECT_EQ(device[h].visited + device[h].skipped, cpu[h].visited + cpu[h].skipped) << "head " << h;
    EXPECT_GE(device[h].visited, cpu[h].visited) << "head " << h;
    EXPECT_LE(device[h].visited, cpu[h].visited + cpu[h].visited / 8) << "head " << h;
    cpu_skipped += cpu[h].skipped;
    EXPECT_EQ(device[h].left_out > 0, device[h].skipped > 0) << "head " << h;
    EXPECT_LE(device[h].left_out, AttentionOptions{}.epsilon * 1.0001f) << "head " << h;
  }
  EXPECT_GT(cpu_skipped, 0u);
}

// 20 whole tiles of one head and a query after them; all keys but those of its anchor are far ones. Values are 1 for far keys
// and 0 for the others, so that the output is the share of the mass that far keys have.
class CertifyRounding : public ::testing::Test {
 protected:
  static constexpr float kEpsilon = 0.01f;
  static constexpr int kDim = 32;
  using Vector = std::array<float, kDim>;

  // Attention at several distances between logits of near and far keys: what bounds leave out is never more than epsilon, and
  // somewhere it is something.
  static void expect_losses_within_epsilon(DType kv, int offsets, const Vector& query,
                                           const std::function<Vector(int offset)>& near,
                                           const std::function<Vector(int offset)>& far) {
    Case test{.encoding = PositionEncoding::kNope, .ssmax = false, .operand = DType::kF16, .kv = kv, .head_dim = kDim};
    test.heads = test.kv_heads = 1;
    test.tokens = 20 * 64 + 1;
    bool left_something_out = false;
    for (int offset = 0; offset < offsets; ++offset) {
      std::vector<float> qkv(static_cast<size_t>(test.tokens * 3 * kDim));
      for (int64_t i = 0; i < test.tokens; ++i) {
        float* row = qkv.data() + i * 3 * kDim;
        const bool is_far = i < 19 * 64;
        std::ranges::copy(query, row);
        std::ranges::copy(is_far ? far(offset) : near(offset), row + kDim);
        std::fill_n(row + 2 * kDim, kDim, is_far ? 1.0f : 0.0f);
      }
      const auto backend = make_cuda(test.operand);
      AttentionOptions options{.certified = false, .epsilon = kEpsilon};
      const auto dense = run(*backend, test, make_spec(test), qkv, 1, options, nullptr, test.tokens - 1);
      options.certified = true;
      std::vector<AttentionCounters> counters;
      const auto certified = run(*backend, test, make_spec(test), qkv, 1, options, &counters, test.tokens - 1);
      EXPECT_LE(dense[0] - certified[0], kEpsilon * 1.01f) << "offset " << offset;
      left_something_out = left_something_out || counters[0].skipped >= 8;
    }
    EXPECT_TRUE(left_something_out);
  }
};

// Attention rounds queries to the format of the pages before it multiplies. A bound of the unrounded query would be too
// low here: in the dims where far keys live the query rounds up, in those of near keys it rounds down, by a third of a
// percent of logits around 500.
TEST_F(CertifyRounding, BoundsAreThoseOfTheQueryThatIsMultiplied) {
  Vector query, near;
  for (size_t d = 0; d < kDim; ++d) {
    query[d] = d < kDim / 2 ? 1.0f + 3.0f / 512 : 1.0f + 1.0f / 512;
    near[d] = d < kDim / 2 ? 0.0f : 176.0f;
  }
  expect_losses_within_epsilon(
      DType::kBF16, 24, query, [&](int) { return near; },
      [](int offset) {
        Vector key{};
        for (int d = 0; d < kDim / 2; ++d) {
          key[static_cast<size_t>(d)] = 176.0f - static_cast<float>(3 + (d < offset) + (d + 16 < offset));
        }
        return key;
      });
}

// int8 pages meet queries in whole units of their largest component: here 2^-8, and the other components are a little more
// than half of one, which doubles logits of far keys from 1.36 to 2.72.
TEST_F(CertifyRounding, BoundsAreThoseOfWholeUnits) {
  Vector query, far;
  query.fill((0.5f + 0x1p-10f) * 0x1p-8f);
  query[0] = 127.0f;
  far.fill(127.0f);
  far[0] = 0;
  expect_losses_within_epsilon(
      DType::kI8, 24, query,
      [](int offset) {
        Vector key{};
        key[0] = (8.0f + 0.2f * static_cast<float>(offset)) / 127 * std::sqrt(static_cast<float>(kDim));
        return key;
      },
      [&](int) { return far; });
}

// What the two backends store for the same keys must be the same bytes: pages and snapshots move between devices.
TEST(KvWrite, PagesAreThoseOfTheCpu) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kI4}) {
    Case test{.name = "pages", .operand = DType::kF32, .kv = dtype, .head_dim = 34, .tokens = 17 * 64 + 5};
    const AttentionSpec spec = make_spec(test);
    const auto qkv = cuda_test::make_qkv(test, 5);
    const auto cuda = make_cuda(DType::kF32);
    const auto cpu = make_cpu_backend({.num_threads = 1});
    std::vector<std::vector<std::byte>> pages[2];
    for (Backend* backend : {cuda.get(), cpu.get()}) {
      const auto layer = backend->make_attention(spec);
      cuda_test::Cache cache(*backend, test);
      const int64_t width = int64_t{test.heads + 2 * test.kv_heads} * test.head_dim;
      for (int64_t start = 0; start < test.tokens; start += 300) {
        const int64_t count = std::min<int64_t>(300, test.tokens - start);
        std::vector<float> rows(qkv.begin() + start * width, qkv.begin() + (start + count) * width);
        const SequenceRows seq = cache.rows(start, count);
        if (backend == cpu.get()) {
          backend->write_kv(*layer, cache.view, {&seq, 1}, {rows.data(), count, width});
        } else {
          const auto operands = cuda_test::to_device(*backend, rows, DType::kF32);
          backend->write_kv(*layer, cache.view, {&seq, 1}, backend->operand_rows(*operands, count, width));
          cuda_test::operands(*backend, *operands, rows.size());
        }
      }
      for (const int32_t page : cache.table) {
        std::vector<std::byte> bytes(cache.view.layout.page_bytes());
        backend->read_page(cache.view, page, bytes);
        pages[backend == cpu.get()].push_back(std::move(bytes));
      }
    }
    const KvLayout layout = make_kv_layout(dtype, test.head_dim, 64);
    for (size_t p = 0; p < pages[0].size(); ++p) {
      const bool full = p % 18 != 17;
      const auto part = [&](size_t from, size_t to, const char* what) {
        EXPECT_EQ(std::memcmp(pages[0][p].data() + from, pages[1][p].data() + from, to - from), 0)
            << dtype_name(dtype) << " page " << p << " " << what;
      };
      part(layout.v_offset, layout.stats_offset, "values and scales");
      if (!full) continue;
      part(layout.k_offset, layout.k_offset + 64u * 34 * dtype_bits(dtype) / 8, "keys");
      part(layout.stats_offset + sizeof(KeyStats), layout.stats_offset + layout.stats_bytes(), "box");
      for (const size_t offset : {layout.stats_offset, layout.super_stats_offset}) {
        KeyStats a, b;
        std::memcpy(&a, pages[0][p].data() + offset, sizeof a);
        std::memcpy(&b, pages[1][p].data() + offset, sizeof b);
        ASSERT_EQ(a.valid, b.valid);
        if (a.valid != 1) continue;
        EXPECT_NEAR(a.radius, b.radius, 1e-4);
        EXPECT_NEAR(a.max_norm, b.max_norm, 1e-4);
        EXPECT_NEAR(a.max_norm_prefix, b.max_norm_prefix, 1e-4);
      }
    }
  }
}

// Sums of two floats on the device, doubles on the CPU: the same bits, also where positions are large.
TEST(KvWrite, RotatesAsTheCpuDoes) {
  for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kRotateHalf}) {
    for (const int64_t start : {int64_t{0}, int64_t{1000}, int64_t{62'500} * 64, kMaxPositions - 64}) {
      Case test{.encoding = PositionEncoding::kRope, .operand = DType::kF32, .kv = DType::kF32, .head_dim = 70};
      AttentionSpec spec = make_spec(test);
      spec.rope_style = style;
      const int64_t count = 20, width = int64_t{test.heads + 2 * test.kv_heads} * test.head_dim;
      const auto qkv = cuda_test::random_floats(static_cast<size_t>(count * width), 9);
      const int64_t pages = start / 64 + 1;
      std::vector<int32_t> table(static_cast<size_t>(pages * test.kv_heads), kNoPage);
      for (int h = 0; h < test.kv_heads; ++h) table[static_cast<size_t>((h + 1) * pages - 1)] = h;
      const SequenceRows seq{table.data(), pages, 0, count, start};
      std::vector<float> rotated[2] = {qkv, qkv};
      const auto cuda = make_cuda(DType::kF32);
      const auto cpu = make_cpu_backend({.num_threads = 1});
      for (Backend* backend : {cuda.get(), cpu.get()}) {
        const auto layer = backend->make_attention(spec);
        KvCacheView view;
        view.layout = make_kv_layout(test.kv, test.head_dim, 64);
        view.num_pages = test.kv_heads;
        const auto memory = backend->allocate(static_cast<size_t>(view.num_pages) * view.layout.page_bytes());
        view.base = static_cast<std::byte*>(memory->data());
        if (backend == cpu.get()) {
          backend->write_kv(*layer, view, {&seq, 1}, {rotated[1].data(), count, width});
        } else {
          const auto operands = cuda_test::to_device(*backend, qkv, DType::kF32);
          backend->write_kv(*layer, view, {&seq, 1}, backend->operand_rows(*operands, count, width));
          rotated[0] = cuda_test::operands(*backend, *operands, qkv.size());
        }
      }
      EXPECT_NE(rotated[1], qkv);
      size_t different = 0;
      for (size_t i = 0; i < qkv.size(); ++i) different += static_cast<size_t>(rotated[0][i] != rotated[1][i]);
      EXPECT_EQ(different, 0u) << "of " << qkv.size() << " from position " << start;
    }
  }
}

}  // namespace
}  // namespace bam
