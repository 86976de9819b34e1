#include "tests/support/backend_doors.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace bam::test {

namespace {

constexpr int kHeads = 2, kDim = 32;
constexpr int64_t kWidth = kHeads * kDim, kQkvWidth = 3 * kWidth, kMaxRows = 130;

// One attention layer with pages for one sequence of up to 128 tokens, and memory for operands of any operation.
class Doors {
 public:
  explicit Doors(Backend& backend_) : backend(backend_) {
    AttentionSpec spec;
    spec.num_heads = spec.num_kv_heads = kHeads;
    spec.head_dim = kDim;
    layer = backend.make_attention(spec);
    AttentionLayer* const layers[] = {layer.get()};
    backend.reserve_positions(layers, 128);
    kv.layout = make_kv_layout(DType::kF16, kDim, kTileKeys);
    kv.num_pages = static_cast<int64_t>(table.size());
    pages = backend.allocate(static_cast<size_t>(kv.num_pages) * kv.layout.page_bytes());
    kv.base = static_cast<std::byte*>(pages->data());
    memory = backend.allocate(kMaxRows * kQkvWidth * sizeof(float));
  }

  FloatRows floats(int64_t count, int64_t width) const { return backend.float_rows(*memory, count, width); }
  OperandRows operands(int64_t count, int64_t width) const { return backend.operand_rows(*memory, count, width); }
  SequenceRows rows(int64_t start, int64_t count) const { return {table.data(), 2, 0, count, start}; }
  void write_kv(const SequenceRows& sequence, int64_t count, int64_t width = kQkvWidth) {
    backend.write_kv(*layer, kv, {&sequence, 1}, operands(count, width));
  }
  void attend(const SequenceRows& sequence, int64_t count, int64_t out_width = kWidth) {
    backend.attention(*layer, kv, {&sequence, 1}, query_rows, operands(count, kQkvWidth), {},
                      operands(query_rows.empty() ? count : static_cast<int64_t>(query_rows.size()), out_width),
                      counters);
  }
  void write_and_attend(const SequenceRows& sequence, int64_t count, int64_t out_count) {
    backend.write_and_attend(*layer, kv, {&sequence, 1}, operands(count, kQkvWidth), {}, operands(out_count, kWidth),
                             counters);
  }

  Backend& backend;
  std::unique_ptr<AttentionLayer> layer;
  std::vector<int32_t> table = {0, 1, 2, 3};  // two groups of two pages
  std::vector<int32_t> query_rows;
  KvCacheView kv;
  std::unique_ptr<DeviceBuffer> pages, memory;
  std::vector<AttentionCounters> counters = std::vector<AttentionCounters>(kHeads);
};

void expect_rows_fit(Doors& doors) {
  Backend& backend = doors.backend;
  const std::vector<float> values(32 * 16);
  const HostMatrix matrix{reinterpret_cast<const std::byte*>(values.data()), DType::kF32, 32, 16};
  const int32_t good = 4, beyond = 32, negative = -1;
  EXPECT_DEATH(backend.embed(matrix, {&beyond, 1}, doors.floats(1, 16)), "all_below");
  EXPECT_DEATH(backend.embed(matrix, {&negative, 1}, doors.floats(1, 16)), "all_below");
  EXPECT_DEATH(backend.embed(matrix, {&good, 1}, doors.floats(1, 15)), "width");
  EXPECT_DEATH(backend.embed(matrix, {&good, 1}, doors.floats(2, 16)), "count");
  std::vector<float> host(64);
  EXPECT_DEATH(backend.load_rows(host, doors.floats(3, 16)), "size");
  EXPECT_DEATH(backend.read_floats(doors.floats(3, 16), host), "size");
  EXPECT_DEATH(backend.read_operands(doors.operands(3, 16), host), "size");
  const SequenceRows behind{nullptr, 0, 1, 4, 0};
  EXPECT_DEATH(backend.add_sinusoidal({&behind, 1}, 10000, doors.floats(4, 16)), "covers");
  const auto norm = backend.make_vector(std::span(values).first(15));
  EXPECT_DEATH(backend.rms_norm(doors.floats(4, 16), *norm, 1e-5f, doors.operands(4, 16)), "size_bytes");
  EXPECT_DEATH(backend.rms_norm(doors.floats(4, 15), *norm, 1e-5f, doors.operands(4, 16)), "width");
  EXPECT_DEATH(backend.rms_norm(doors.floats(4, 15), *norm, 1e-5f, doors.operands(3, 15)), "count");
  const int32_t row = 4;
  EXPECT_DEATH(backend.gather_rows(doors.floats(4, 16), {&row, 1}, doors.floats(1, 16)), "all_below");
  EXPECT_DEATH(backend.gather_rows(doors.floats(5, 12), {&row, 1}, doors.floats(2, 12)), "count");
  EXPECT_DEATH(backend.gather_rows(doors.floats(5, 12), {&row, 1}, doors.floats(1, 11)), "width");
  EXPECT_DEATH(backend.swiglu(doors.operands(2, 32), doors.operands(2, 32)), "width");
  EXPECT_DEATH(backend.swiglu(doors.operands(2, 32), doors.operands(1, 16)), "count");
  const auto buffer = backend.allocate(100 * sizeof(float));
  EXPECT_DEATH(backend.float_rows(*buffer, 11, 10), "size_bytes");
  EXPECT_DEATH(backend.operand_rows(*buffer, 21, 10), "size_bytes");
}

void expect_products_fit(Doors& doors) {
  Backend& backend = doors.backend;
  const std::vector<float> values(32 * 16);
  const HostMatrix matrix{reinterpret_cast<const std::byte*>(values.data()), DType::kF32, 32, 16};
  const auto weights = backend.make_linear({&matrix, 1}, DType::kF32);
  EXPECT_DEATH(backend.linear(*weights, doors.operands(4, 15), doors.operands(4, 32)), "in_features");
  EXPECT_DEATH(backend.linear(*weights, doors.operands(4, 16), doors.operands(4, 31)), "out_features");
  EXPECT_DEATH(backend.linear(*weights, doors.operands(4, 16), doors.operands(3, 32)), "count");
  EXPECT_DEATH(backend.linear_add(*weights, doors.operands(4, 15), doors.floats(4, 32)), "in_features");
  EXPECT_DEATH(backend.linear_add(*weights, doors.operands(4, 16), doors.floats(5, 32)), "count");
  EXPECT_DEATH(backend.linear_logits(*weights, doors.operands(4, 16), doors.floats(4, 31)), "out_features");
}

void expect_sequences_fit(Doors& doors) {
  EXPECT_DEATH(doors.write_kv(doors.rows(0, 5), 4), "covers");
  EXPECT_DEATH(doors.write_kv(doors.rows(0, 4), 4, kQkvWidth - 1), "qkv_width");
  EXPECT_DEATH(doors.write_kv(doors.rows(125, 4), 4), "tables_cover");
  EXPECT_DEATH(doors.write_kv(doors.rows(kMaxPositions - 1, 2), 2), "tables_cover");
  EXPECT_DEATH(doors.write_and_attend(doors.rows(0, 5), 4, 4), "covers");
  EXPECT_DEATH(doors.write_and_attend(doors.rows(0, 4), 4, 3), "count");
  EXPECT_DEATH(doors.write_and_attend(doors.rows(125, 4), 4, 4), "tables_cover");
  EXPECT_DEATH(doors.attend(doors.rows(128, 1), 1), "tables_cover");
  EXPECT_DEATH(doors.attend({nullptr, 2, 0, 4, 0}, 4), "tables_cover");
  EXPECT_DEATH(doors.attend(doors.rows(-1, 1), 1), "covers");
  EXPECT_DEATH(doors.attend(doors.rows(0, 1), 1, kDim), "q_width");
  doors.query_rows = {4};
  EXPECT_DEATH(doors.attend(doors.rows(0, 1), 4), "all_below");
  doors.query_rows.clear();
  doors.counters.resize(1);
  EXPECT_DEATH(doors.attend(doors.rows(0, 4), 4), "num_heads");
  doors.counters.resize(kHeads);
  const KvLayout layout = doors.kv.layout;
  doors.kv.layout = make_kv_layout(DType::kF16, 2 * kDim, kTileKeys);
  EXPECT_DEATH(doors.attend(doors.rows(0, 4), 4), "head_dim");
  doors.kv.layout = layout;
}

void expect_pages_fit(Doors& doors) {
  Backend& backend = doors.backend;
  std::vector<std::byte> bytes(2 * doors.kv.layout.page_bytes());
  const std::vector<int32_t> last = {2, 3}, beyond = {3, 4}, freed = {kNoPage, 0};
  EXPECT_DEATH(backend.copy_page(doors.kv, 0, 4), "num_pages");
  EXPECT_DEATH(backend.copy_page(doors.kv, kNoPage, 0), "num_pages");
  EXPECT_DEATH(backend.read_pages(doors.kv, beyond, bytes), "all_below");
  EXPECT_DEATH(backend.read_pages(doors.kv, freed, bytes), "all_below");
  EXPECT_DEATH(backend.read_page(doors.kv, 0, bytes), "page_bytes");
  EXPECT_DEATH(backend.write_pages(doors.kv, beyond, bytes), "all_below");
  EXPECT_DEATH(backend.write_page(doors.kv, 3, bytes), "page_bytes");
  backend.write_pages(doors.kv, last, bytes);
  backend.copy_page(doors.kv, 2, 0);
}

void expect_draws_fit(Doors& doors) {
  Backend& backend = doors.backend;
  DrawBatch batch;
  batch.rows = {{.row = 1, .greedy = true}};
  std::vector<int32_t> tokens(1);
  std::vector<float> host;
  if (!backend.supports_drawing(100)) {
    EXPECT_DEATH(backend.draw_tokens(doors.floats(2, 100), batch, tokens, {}, host), "supports_drawing");
    return;
  }
  EXPECT_DEATH(backend.draw_tokens(doors.floats(1, 100), batch, tokens, {}, host), "fits");
  EXPECT_DEATH(backend.draw_tokens(doors.floats(2, 100), batch, {}, {}, host), "size");
  const int32_t wanted = 2;
  EXPECT_DEATH(backend.draw_tokens(doors.floats(2, 100), batch, tokens, {&wanted, 1}, host), "all_below");
  const int32_t there = 1;
  EXPECT_DEATH(backend.draw_tokens(doors.floats(2, 100), batch, tokens, {&there, 1}, host), "size");
  batch.rows[0].banned = {0, 1};
  EXPECT_DEATH(backend.draw_tokens(doors.floats(2, 100), batch, tokens, {}, host), "fits");
}

}  // namespace

void expect_misfits_are_refused(Backend& backend) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a backend has threads
  Doors doors(backend);
  expect_rows_fit(doors);
  expect_products_fit(doors);
  expect_sequences_fit(doors);
  expect_pages_fit(doors);
  expect_draws_fit(doors);
  // What fits is let in.
  doors.write_and_attend(doors.rows(124, 4), 4, 4);
}

}  // namespace bam::test
