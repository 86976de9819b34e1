// A layer of attention with every kind of head, its keys, and how to run it: shared by the tests of attention.
#pragma once

#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace bam::attention_subject {

inline constexpr int kHeads = 4, kKvHeads = 2, kDim = 32;
inline constexpr int64_t kWidth = (kHeads + 2 * kKvHeads) * kDim;

// Local, heavy tail, flat, retrieval.
inline constexpr PriorParams kPrior[kHeads] = {{0.5, 0.9, 0}, {-0.5, 0.3, 0}, {0.1, 0.0, 0}, {0.2, -0.3, 0}};

inline AttentionSpec make_spec(bool ssmax) {
  AttentionSpec spec;
  spec.num_heads = kHeads;
  spec.num_kv_heads = kKvHeads;
  spec.head_dim = kDim;
  spec.ssmax = ssmax;
  spec.seq_scale = {0.4f, 0.6f, 0.5f, 0.3f};
  for (int h = 0; h < kHeads; ++h)
    spec.bias.push_back(power_bias(PriorForm::kScaleOutside, kPrior[h], 1e-5, ssmax, spec.seq_scale_of(h)));
  return spec;
}

// Rows of q | k | v; keys drift slowly so that boxes of neighbouring keys are tight, one key far back stands out.
inline std::vector<float> make_qkv(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> qkv(static_cast<size_t>(n * kWidth)), drift(kKvHeads * kDim);
  for (int64_t i = 0; i < n; ++i) {
    float* row = qkv.data() + i * kWidth;
    for (int d = 0; d < kHeads * kDim; ++d) row[d] = normal(random);
    for (int d = 0; d < kKvHeads * kDim; ++d) {
      drift[static_cast<size_t>(d)] = 0.99f * drift[static_cast<size_t>(d)] + 0.05f * normal(random);
      row[kHeads * kDim + d] = drift[static_cast<size_t>(d)] + 0.02f * normal(random) + (i == n / 3 ? 3.0f : 0.0f);
      row[(kHeads + kKvHeads) * kDim + d] = normal(random);
    }
  }
  return qkv;
}

struct Cache {
  Cache(Backend& backend, int64_t n, DType dtype, int page_size = 64) {
    view.layout = make_kv_layout(dtype, kDim, page_size);
    stride = (n + page_size - 1) / page_size;
    view.num_pages = stride * kKvHeads;
    memory = backend.allocate(static_cast<size_t>(view.num_pages) * view.layout.page_bytes());
    view.base = static_cast<std::byte*>(memory->data());
    table.resize(static_cast<size_t>(view.num_pages));
    std::iota(table.rbegin(), table.rend(), 0);  // any order of pages will do
  }
  SequenceRows rows(int64_t start, int64_t count) const { return {table.data(), stride, 0, count, start}; }
  KvCacheView view;
  int64_t stride;
  std::vector<int32_t> table;
  std::unique_ptr<DeviceBuffer> memory;
};

struct RunResult {
  std::vector<float> out;  // [queries][heads * dim]
  std::vector<AttentionCounters> counters;
};

// Writes all keys in chunks, then asks for the queries at positions [n - queries, n), `at_once` rows per call.
inline RunResult run(const std::string& isa, int threads, const AttentionSpec& spec, const std::vector<float>& qkv,
                     int64_t n, int64_t queries, int64_t at_once, DType dtype, bool certified, float epsilon = 0x1p-20f,
                     int page_size = 64, const std::string& attention_math = "f32") {
  const auto backend = make_cpu_backend({.num_threads = threads, .isa = isa, .attention_math = attention_math});
  const auto layer = backend->make_attention(spec);
  AttentionLayer* layers[] = {layer.get()};
  backend->reserve_positions(layers, n);
  Cache cache(*backend, n, dtype, page_size);
  std::vector<float> rows = qkv;
  for (int64_t begin = 0; begin < n; begin += 777) {
    const int64_t count = std::min<int64_t>(777, n - begin);
    const SequenceRows seq = cache.rows(begin, count);
    backend->write_kv(*layer, cache.view, {&seq, 1}, {rows.data() + begin * kWidth, count, kWidth});
  }
  RunResult result;
  result.out.resize(static_cast<size_t>(queries * kHeads * kDim));
  result.counters.resize(kHeads);
  for (int64_t q = 0; q < queries; q += at_once) {
    const int64_t count = std::min(at_once, queries - q), start = n - queries + q;
    const SequenceRows seq = cache.rows(start, count);
    backend->attention(*layer, cache.view, {&seq, 1}, {}, {rows.data() + start * kWidth, count, kWidth},
                       {.certified = certified, .epsilon = epsilon},
                       {result.out.data() + q * kHeads * kDim, count, kHeads * kDim}, result.counters);
  }
  return result;
}

}  // namespace bam::attention_subject
