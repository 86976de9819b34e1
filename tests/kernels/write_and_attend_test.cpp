// write_and_attend() against write_kv() and attention(), byte for byte: outputs, pages and counters, step after step of
// streams that decode beside prompts that are read in chunks.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/backend.h"

namespace bam {
namespace {

constexpr int kDim = 24;          // padded to 32
constexpr int64_t kTokens = 330;  // five full tiles and a part
constexpr int64_t kPages = (kTokens + kTileKeys - 1) / kTileKeys;

struct Case {
  const char* name;
  PositionEncoding encoding;
  int heads, kv_heads;
  DType dtype;
  int threads;
  std::string isa = "auto";
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class WriteAndAttend : public ::testing::TestWithParam<Case> {};

// A backend with pages for several sequences.
struct Side {
  Side(const Case& c, const AttentionSpec& spec, size_t sequences)
      : backend(make_cpu_backend({.num_threads = c.threads, .isa = c.isa})), layer(backend->make_attention(spec)) {
    view.layout = make_kv_layout(c.dtype, kDim, kTileKeys);
    view.num_pages = static_cast<int64_t>(sequences) * c.kv_heads * kPages;
    memory = backend->allocate(static_cast<size_t>(view.num_pages) * view.layout.page_bytes());
    view.base = static_cast<std::byte*>(memory->data());
    std::memset(view.base, 0x5a, memory->size_bytes());  // recycled pages
    AttentionLayer* layers[] = {layer.get()};
    backend->reserve_positions(layers, kTokens);
  }
  std::unique_ptr<Backend> backend;
  std::unique_ptr<AttentionLayer> layer;
  KvCacheView view;
  std::unique_ptr<DeviceBuffer> memory;
};

TEST_P(WriteAndAttend, IsWritingThenAttending) {
  const Case c = GetParam();
  AttentionSpec spec;
  spec.num_heads = c.heads;
  spec.num_kv_heads = c.kv_heads;
  spec.head_dim = kDim;
  if (c.encoding == PositionEncoding::kRope) spec.rope_theta = 10000;
  spec.ssmax = c.encoding == PositionEncoding::kBam;
  for (int h = 0; h < c.heads; ++h) {
    spec.seq_scale.push_back(0.3f + 0.1f * static_cast<float>(h % 4));
    const PriorParams prior{0.2, h % 3 == 0 ? 0.8 : (h % 3 == 1 ? 0.2 : -0.2), 0};
    if (c.encoding == PositionEncoding::kBam)
      spec.bias.push_back(power_bias(PriorForm::kScaleOutside, prior, 1e-5, true, spec.seq_scale_of(h)));
    if (c.encoding == PositionEncoding::kT5)
      spec.bias.push_back(bucket_bias(std::vector<float>{0.5f, -1, 2, -3, 0.1f * static_cast<float>(h), -6}, 90));
    if (c.encoding == PositionEncoding::kAlibi) spec.bias.push_back(linear_bias(alibi_slope(h, c.heads)));
  }
  // Rows that a sequence adds in each step; the last one joins when a tile of the others is nearly full.
  const std::vector<int64_t> prompt = {62, 1, 63, 130, 200};
  Side apart(c, spec, prompt.size()), together(c, spec, prompt.size());
  std::vector<int32_t> table(static_cast<size_t>(apart.view.num_pages));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(table.size() - 1 - i);

  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const int64_t width = (c.heads + 2 * c.kv_heads) * kDim, out_width = c.heads * kDim;
  std::vector<int64_t> length(prompt.size());
  for (int step = 0; step < 70; ++step) {
    std::vector<SequenceRows> rows;
    int64_t total = 0;
    for (size_t s = 0; s < prompt.size(); ++s) {
      const int64_t count = step == 0 || (s == 4 && step == 3) ? prompt[s] : 1;
      if (s == 4 && step < 3) continue;
      if (length[s] + count > kTokens) continue;
      rows.push_back({table.data() + static_cast<int64_t>(s) * c.kv_heads * kPages, kPages, total, count, length[s]});
      length[s] += count;
      total += count;
    }
    std::vector<float> qkv(static_cast<size_t>(total * width));
    for (float& value : qkv) value = normal(random);
    std::vector<float> same = qkv, out_apart(static_cast<size_t>(total * out_width)), out_together = out_apart;
    std::vector<AttentionCounters> count_apart(static_cast<size_t>(c.heads)), count_together = count_apart;
    const AttentionOptions options{.certified = true, .epsilon = 0x1p-20f};
    apart.backend->write_kv(*apart.layer, apart.view, rows, {qkv.data(), total, width});
    apart.backend->attention(*apart.layer, apart.view, rows, {}, {qkv.data(), total, width}, options,
                             {out_apart.data(), total, out_width}, count_apart);
    together.backend->write_and_attend(*together.layer, together.view, rows, {same.data(), total, width}, options,
                                       {out_together.data(), total, out_width}, count_together);
    ASSERT_EQ(std::memcmp(out_apart.data(), out_together.data(), out_apart.size() * sizeof(float)), 0) << step;
    ASSERT_EQ(std::memcmp(apart.view.base, together.view.base, apart.memory->size_bytes()), 0) << step;
    for (size_t h = 0; h < count_apart.size(); ++h) {
      ASSERT_EQ(count_apart[h].visited, count_together[h].visited) << step;
      ASSERT_EQ(count_apart[h].skipped, count_together[h].skipped) << step;
    }
  }
  EXPECT_GT(length[1], kTileKeys) << "a stream that began with one token has filled a tile by decoding";
}

INSTANTIATE_TEST_SUITE_P(
    Cases, WriteAndAttend,
    ::testing::Values(Case{"bam_f16", PositionEncoding::kBam, 4, 4, DType::kF16, 3},
                      Case{"bam_f32_grouped", PositionEncoding::kBam, 6, 2, DType::kF32, 2},
                      Case{"bam_i8", PositionEncoding::kBam, 4, 2, DType::kI8, 3},
                      Case{"bam_i4_portable", PositionEncoding::kBam, 4, 4, DType::kI4, 2, "portable"},
                      Case{"t5_grouped", PositionEncoding::kT5, 6, 2, DType::kF16, 3},
                      Case{"rope_one_thread", PositionEncoding::kRope, 4, 2, DType::kF16, 1},
                      Case{"rope_grouped", PositionEncoding::kRope, 8, 2, DType::kF16, 4},
                      Case{"alibi_portable", PositionEncoding::kAlibi, 4, 4, DType::kF16, 2, "portable"},
                      // More query heads than one block holds: the block does not own its KV head.
                      Case{"one_kv_head_for_80", PositionEncoding::kNope, 80, 1, DType::kF16, 4}),
    [](const auto& case_info) { return std::string(case_info.param.name); });

// Layers with the same theta may still rotate differently: each must be as if it were alone on its backend.
TEST(Rotation, TablesAreSharedOnlyByLayersThatRotateAlike) {
  const auto rotated = [](Backend& backend, const AttentionSpec& spec, std::unique_ptr<AttentionLayer>& layer) {
    layer = backend.make_attention(spec);
    KvCacheView kv;
    kv.layout = make_kv_layout(DType::kF32, spec.head_dim, kTileKeys);
    kv.num_pages = 1;
    const auto memory = backend.allocate(kv.layout.page_bytes());
    kv.base = static_cast<std::byte*>(memory->data());
    const int32_t page = 0;
    const SequenceRows rows{&page, 1, 0, 5, 0};
    std::vector<float> qkv(static_cast<size_t>(5 * 3 * spec.head_dim));
    for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = static_cast<float>(i % 17) - 8.0f;
    backend.write_kv(*layer, kv, {&rows, 1}, {qkv.data(), 5, 3 * spec.head_dim});
    return qkv;
  };
  std::vector<AttentionSpec> specs;
  for (const auto& [head_dim, style] : {std::pair{32, RopeStyle::kInterleaved},
                                        {32, RopeStyle::kRotateHalf},
                                        {64, RopeStyle::kInterleaved},
                                        {16, RopeStyle::kInterleaved}}) {
    AttentionSpec spec;
    spec.num_heads = spec.num_kv_heads = 1;
    spec.head_dim = head_dim;
    spec.rope_theta = 10000;
    spec.rope_style = style;
    specs.push_back(spec);
  }
  const auto shared = make_cpu_backend({.num_threads = 1});
  std::vector<std::unique_ptr<AttentionLayer>> layers(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto alone = make_cpu_backend({.num_threads = 1});
    std::unique_ptr<AttentionLayer> layer;
    EXPECT_EQ(rotated(*shared, specs[i], layers[i]), rotated(*alone, specs[i], layer)) << "layer " << i;
  }
}

}  // namespace
}  // namespace bam
