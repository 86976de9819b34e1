// One attention layer over one cached sequence on the emulated device.
#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "tests/cuda_emu/backend_test_support.h"

namespace bam::cuda_test {

constexpr int64_t kT5Distance = 50;

struct Case {
  std::string name;
  PositionEncoding encoding = PositionEncoding::kBam;
  bool ssmax = true, ssmax_prior = true;
  PriorForm form = PriorForm::kScaleOutside;
  DType operand = DType::kF16, kv = DType::kF16;
  int head_dim = 32, heads = 4, kv_heads = 2;
  int64_t tokens = 150, chunk = 70;
  int page_size = 64;
  std::vector<PriorParams> prior = {{0.5, 0.9, 0}, {-0.5, 0.3, 0.4}, {0.1, 0.0, 0}, {0.2, -0.6, -0.7}};
  const PriorParams& prior_of(int head) const { return prior[static_cast<size_t>(head) % prior.size()]; }
  // t5: nearly flat, falling, rising and jumping heads in turn.
  std::vector<float> buckets_of(int head) const {
    std::vector<float> values;
    for (int b = 0; b < 12; ++b) {
      const float by = head % 4 == 0   ? 0.01f
                       : head % 4 == 1 ? -0.9f
                       : head % 4 == 2 ? 0.4f
                                       : (b % 2 == 0 ? -1.5f : 1.0f);
      values.push_back(by * static_cast<float>(b));
    }
    return values;
  }
  bool rotates() const { return encoding == PositionEncoding::kRope || encoding == PositionEncoding::kRopeLocal; }
  friend std::ostream& operator<<(std::ostream& stream, const Case& test) { return stream << test.name; }
};

inline AttentionSpec make_spec(const Case& test) {
  AttentionSpec spec;
  spec.num_heads = test.heads;
  spec.num_kv_heads = test.kv_heads;
  spec.head_dim = test.head_dim;
  spec.ssmax = test.ssmax;
  if (test.rotates()) spec.rope_theta = 10000;
  if (test.encoding == PositionEncoding::kRopeLocal) spec.window = 37;
  for (int h = 0; h < test.heads; ++h) {
    spec.seq_scale.push_back(0.3f + 0.1f * static_cast<float>(h));
    if (test.encoding == PositionEncoding::kBam) {
      spec.bias.push_back(
          power_bias(test.form, test.prior_of(h), 1e-5, test.ssmax && test.ssmax_prior, spec.seq_scale_of(h)));
    }
    if (test.encoding == PositionEncoding::kT5) spec.bias.push_back(bucket_bias(test.buckets_of(h), kT5Distance));
    if (test.encoding == PositionEncoding::kAlibi) spec.bias.push_back(linear_bias(alibi_slope(h, test.heads)));
  }
  return spec;
}

// A cache for one sequence with pages in scattered order, poisoned.
struct Cache {
  Cache(Backend& backend, const Case& test) {
    view.layout = make_kv_layout(test.kv, test.head_dim, test.page_size);
    stride = (test.tokens + test.page_size - 1) / test.page_size;
    view.num_pages = stride * test.kv_heads;
    memory = backend.allocate(static_cast<size_t>(view.num_pages) * view.layout.page_bytes());
    view.base = static_cast<std::byte*>(memory->data());
    table.resize(static_cast<size_t>(view.num_pages));
    std::iota(table.rbegin(), table.rend(), 0);
    const std::vector<std::byte> poison(view.layout.page_bytes(), std::byte{0xff});
    for (const int32_t page : table) backend.write_page(view, page, poison);
  }
  SequenceRows rows(int64_t start, int64_t count) const { return {table.data(), stride, 0, count, start}; }
  KvCacheView view;
  int64_t stride;
  std::vector<int32_t> table;
  std::unique_ptr<DeviceBuffer> memory;
};

// Attention of every position from first_query on, computed in chunks as a prompt is: [queries][heads * head_dim].
inline std::vector<float> run(Backend& backend, const Case& test, const AttentionSpec& spec,
                              const std::vector<float>& qkv, int64_t chunk, const AttentionOptions& options,
                              std::vector<AttentionCounters>* counters = nullptr, int64_t first_query = 0) {
  const auto layer = backend.make_attention(spec);
  AttentionLayer* layers[] = {layer.get()};
  backend.reserve_positions(layers, test.tokens);
  Cache cache(backend, test);
  const int64_t width = int64_t{test.heads + 2 * test.kv_heads} * test.head_dim,
                out_width = int64_t{test.heads} * test.head_dim;
  std::vector<AttentionCounters> own(static_cast<size_t>(test.heads));
  std::vector<float> result;
  for (int64_t start = 0; start < test.tokens;) {
    // Keys before the first query are written without asking.
    const bool asks = start >= first_query;
    const int64_t count = asks ? std::min(chunk, test.tokens - start) : std::min<int64_t>(200, first_query - start);
    const std::vector<float> rows(qkv.begin() + start * width, qkv.begin() + (start + count) * width);
    const auto operands = cuda_test::to_device(backend, rows, test.operand);
    const auto out = backend.allocate(static_cast<size_t>(count * out_width) * backend.operand_bytes());
    const SequenceRows seq = cache.rows(start, count);
    const OperandRows qkv_rows = backend.operand_rows(*operands, count, width);
    backend.write_kv(*layer, cache.view, {&seq, 1}, qkv_rows);
    start += count;
    if (!asks) continue;
    backend.attention(*layer, cache.view, {&seq, 1}, {}, qkv_rows, options,
                      backend.operand_rows(*out, count, out_width), own);
    const std::vector<float> values = cuda_test::operands(backend, *out, static_cast<size_t>(count * out_width));
    result.insert(result.end(), values.begin(), values.end());
  }
  if (counters != nullptr) *counters = own;
  return result;
}

inline std::vector<float> make_qkv(const Case& test, uint32_t seed) {
  const auto count = static_cast<size_t>(test.tokens * (test.heads + 2 * test.kv_heads) * test.head_dim);
  return rounded(cuda_test::random_floats(count, seed), test.operand);
}

}  // namespace bam::cuda_test
