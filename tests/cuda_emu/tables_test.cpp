// Block tables that stay on the device: a step sends what changed and computes what it would with the whole table.
#include <gtest/gtest.h>

#include "tests/cuda_emu/attention_test_support.h"

namespace bam {
namespace {

using cuda_test::Case;

constexpr int64_t kReach = 300, kGroups = 4, kFirstGroup = 2;

struct Decoding {
  std::vector<float> values;
  std::vector<uint64_t> bytes, copies, captures;  // of every step
};

// Decodes `steps` tokens after `start` known ones, of which only the last are really there: older ones are out of reach. A
// block's pages come when it begins, and the oldest of them go.
Decoding decode(bool resident, int64_t start, int64_t steps) {
  const Case test{.head_dim = 32, .heads = 2, .kv_heads = 2};
  AttentionSpec spec = cuda_test::make_spec(test);
  spec.reach = {kReach, kReach};
  spec.first_group = kFirstGroup;
  const auto backend = cuda_test::make_cuda();
  const auto layer = backend->make_attention(spec);
  AttentionLayer* layers[] = {layer.get()};
  backend->reserve_positions(layers, start + steps);

  constexpr int64_t kPages = 64;
  KvCacheView kv;
  kv.layout = make_kv_layout(test.kv, test.head_dim, test.page_size);
  kv.num_pages = kPages;
  const auto memory = backend->allocate(kPages * kv.layout.page_bytes());
  kv.base = static_cast<std::byte*>(memory->data());
  for (int32_t page = 0; page < kPages; ++page) {
    backend->write_page(kv, page, std::vector<std::byte>(kv.layout.page_bytes(), std::byte{0}));
  }
  const int64_t stride = (start + steps) / kTileKeys + 8;
  std::vector<int32_t> table(static_cast<size_t>(kGroups * stride), kNoPage);
  TableHistory history;
  history.start_over(kGroups);
  const auto set = [&](int64_t block, bool there) {
    for (int64_t group = 0; group < kGroups; ++group) {
      table[static_cast<size_t>(group * stride + block)] =
          there ? static_cast<int32_t>((block * kGroups + group) % kPages) : kNoPage;
    }
    history.note(-1, block);
  };

  constexpr int64_t kHidden = 16;
  const int64_t width = spec.qkv_width();
  const auto embedding = cuda_test::random_floats(8 * kHidden, 4);
  const HostMatrix matrix = cuda_test::host_matrix(embedding, 8, kHidden);
  std::vector<AttentionCounters> counters(static_cast<size_t>(test.heads));
  constexpr int64_t kPrompt = 400;
  const auto x = backend->allocate(kPrompt * kHidden * sizeof(float));
  const auto out = backend->allocate(static_cast<size_t>(kPrompt * spec.q_width()) * backend->operand_bytes());
  // One place for all steps, as a model has it: a graph knows addresses.
  const auto operands = backend->allocate(static_cast<size_t>(kPrompt * width) * backend->operand_bytes());
  const auto step = [&](int64_t from, int64_t count) {
    for (int64_t block = from / kTileKeys; block * kTileKeys < from + count; ++block) {
      if (table[static_cast<size_t>(block)] == kNoPage) set(block, true);
    }
    for (int64_t block = from / kTileKeys - 1; block >= 0 && table[static_cast<size_t>(block)] != kNoPage; --block) {
      if (from - (block * kTileKeys + kTileKeys - 1) > kReach) set(block, false);
    }
    const auto qkv = cuda_test::to_device(
        *backend, cuda_test::random_floats(static_cast<size_t>(count * width), static_cast<uint32_t>(from)),
        DType::kF16);
    cuda_emu_test::check(
        cudaMemcpy(operands->data(), qkv->data(), static_cast<size_t>(count * width) * 2, cudaMemcpyDeviceToDevice));
    cuda_emu_test::check(cudaDeviceSynchronize());
    const std::vector<int32_t> tokens(static_cast<size_t>(count), 3);
    const SequenceRows rows{table.data(), stride, 0, count, from, resident ? &history : nullptr};
    backend->embed(matrix, tokens, backend->float_rows(*x, count, kHidden));
    backend->write_kv(*layer, kv, {&rows, 1}, backend->operand_rows(*operands, count, width));
    backend->attention(*layer, kv, {&rows, 1}, {}, backend->operand_rows(*operands, count, width), {},
                       backend->operand_rows(*out, count, spec.q_width()), counters);
    return cuda_test::operands(*backend, *out, static_cast<size_t>(count * spec.q_width()));
  };
  set((start - kPrompt) / kTileKeys - 1, true);  // the tile before the first one is always there
  step(start - kPrompt, kPrompt);
  Decoding result;
  for (int64_t i = 0; i < steps; ++i) {
    const cuda_emu::Statistics before = cuda_emu::statistics();
    const std::vector<float> values = step(start + i, 1);
    const cuda_emu::Statistics after = cuda_emu::statistics();
    result.bytes.push_back(after.copied_bytes - before.copied_bytes);
    result.copies.push_back(after.copies - before.copies);
    result.captures.push_back(after.captures - before.captures);
    result.values.insert(result.values.end(), values.begin(), values.end());
  }
  return result;
}

// 7813 blocks: at position 500032 a new one begins and an old one goes.
TEST(ResidentTables, ADecodeStepAt500KSendsNoMoreThanAt5K) {
  constexpr int64_t kSteps = 8;
  const Decoding far = decode(true, 500032 - 4, kSteps), near = decode(true, 5056 - 4, kSteps);
  const Decoding whole = decode(false, 500032 - 4, kSteps);
  EXPECT_EQ(far.values, whole.values);
  for (const float value : far.values) ASSERT_FALSE(std::isnan(value));
  for (size_t i = 2; i < kSteps; ++i) {
    EXPECT_EQ(far.bytes[i], near.bytes[i]) << "step " << i;
    EXPECT_EQ(far.bytes[i], far.bytes[2]) << "step " << i;
    EXPECT_EQ(far.copies[i], far.copies[2]) << "step " << i;
    EXPECT_EQ(far.captures[i], 0u) << "step " << i;
    EXPECT_GE(whole.bytes[i], far.bytes[i] + 2 * 7813 * sizeof(int32_t) - 16384) << "step " << i;
  }
}

// Whoever is too far behind takes the whole table; a copy of a table is another one.
TEST(ResidentTables, HistoryKeepsTheNewestChanges) {
  TableHistory history;
  history.start_over(3);
  for (int64_t i = 0; i < 5000; ++i) history.note(i % 3, i);
  EXPECT_FALSE(history.since(0).has_value());
  ASSERT_TRUE(history.since(4990).has_value());
  ASSERT_EQ(history.since(4990)->size(), 10u);
  EXPECT_EQ(history.since(4990)->front().block, 4990);
  const TableHistory copy = history;
  EXPECT_NE(copy.id(), history.id());
}

// Tables that do not stay on the device are found by where they come from, not by comparing each with all others.
TEST(UploadedTables, AreComparedOnceHoweverManyThereAre) {
  constexpr int64_t kSequences = 40, kLayers = 3;
  const Case test{.head_dim = 32, .heads = 2, .kv_heads = 2};
  const auto device = std::make_unique<cuda::CudaBackend>(BackendOptions{.operands = "f16"});
  Backend& backend = *device;
  std::vector<std::unique_ptr<AttentionLayer>> layers;
  KvCacheView kv;
  kv.layout = make_kv_layout(test.kv, test.head_dim, test.page_size);
  kv.num_pages = kSequences * kLayers * test.kv_heads;
  const auto memory = backend.allocate(static_cast<size_t>(kv.num_pages) * kv.layout.page_bytes());
  kv.base = static_cast<std::byte*>(memory->data());
  std::vector<int32_t> table(static_cast<size_t>(kv.num_pages));
  std::iota(table.begin(), table.end(), 0);
  std::vector<SequenceRows> rows;
  for (int64_t s = 0; s < kSequences; ++s) rows.push_back({table.data() + s * kLayers * test.kv_heads, 1, s, 1, 0});
  std::vector<AttentionCounters> counters(static_cast<size_t>(test.heads));
  uint64_t before = 0;
  for (int64_t l = 0; l < kLayers; ++l) {
    AttentionSpec spec = cuda_test::make_spec(test);
    spec.first_group = l * test.kv_heads;
    layers.push_back(backend.make_attention(spec));
    AttentionLayer* const layer = layers.back().get();
    backend.reserve_positions({&layer, 1}, 1);
    const auto qkv = cuda_test::to_device(
        backend, cuda_test::random_floats(static_cast<size_t>(kSequences * spec.qkv_width()), 2), DType::kF16);
    const auto out = backend.allocate(static_cast<size_t>(kSequences * spec.q_width()) * backend.operand_bytes());
    before = device->tables_compared();
    backend.write_kv(*layer, kv, rows, backend.operand_rows(*qkv, kSequences, spec.qkv_width()));
    backend.attention(*layer, kv, rows, {}, backend.operand_rows(*qkv, kSequences, spec.qkv_width()), {},
                      backend.operand_rows(*out, kSequences, spec.q_width()), counters);
    EXPECT_EQ(device->tables_compared() - before, static_cast<uint64_t>(kSequences))
        << "by attention, of what keys need";
    cuda_test::operands(backend, *out, static_cast<size_t>(kSequences * spec.q_width()));
  }
}

}  // namespace
}  // namespace bam
