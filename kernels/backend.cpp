#include "kernels/backend.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"

namespace bam {

namespace {

// A super-tile is summarised when its last tile fills up; all 16 tiles are certainly still there if a head reaches
// further.
constexpr int64_t kSuperReach = 2 * kSuperTiles * kTileKeys;

template <typename T>
bool covers(std::span<const SequenceRows> sequences, Rows<T> rows) {
  return std::ranges::all_of(sequences, [&](const SequenceRows& seq) {
    return seq.row_begin >= 0 && seq.num_rows >= 0 && seq.row_begin + seq.num_rows <= rows.count && seq.start_pos >= 0;
  });
}

// Whether the tables have an entry for every position up to the last row, and positions are such as tables reach to.
bool tables_cover(std::span<const SequenceRows> sequences, const KvLayout& layout) {
  return std::ranges::all_of(sequences, [&](const SequenceRows& seq) {
    const int64_t end = seq.start_pos + seq.num_rows;
    return seq.num_rows == 0 ||
           (seq.block_table != nullptr && end <= kMaxPositions && (end - 1) / layout.page_size < seq.table_stride);
  });
}

bool all_below(std::span<const int32_t> values, int64_t end) {
  return std::ranges::all_of(values, [end](int32_t value) { return value >= 0 && value < end; });
}

template <typename T>
bool within(DrawSlice slice, const std::vector<T>& list) {
  return slice.begin >= 0 && slice.count >= 0 && std::cmp_less_equal(int64_t{slice.begin} + slice.count, list.size());
}

bool fits(const DrawBatch& batch, ConstFloatRows logits) {
  return std::ranges::all_of(batch.rows, [&](const DrawRow& row) {
    return row.row >= 0 && row.row < logits.count && within(row.seen, batch.seen) && within(row.biases, batch.biases) &&
           within(row.banned, batch.banned);
  });
}

void check_linear(const LinearWeights& weights, ConstOperandRows in, int64_t out_count, int64_t out_width) {
  BAM_CHECK(in.count == out_count);
  BAM_CHECK(in.width == weights.in_features());
  BAM_CHECK(out_width == weights.out_features());
}

}  // namespace

FloatRows Backend::float_rows(DeviceBuffer& buffer, int64_t count, int64_t width) const {
  BAM_CHECK(static_cast<size_t>(count * width) * sizeof(float) <= buffer.size_bytes());
  return {static_cast<float*>(buffer.data()), count, width};
}

OperandRows Backend::operand_rows(DeviceBuffer& buffer, int64_t count, int64_t width) const {
  BAM_CHECK(static_cast<size_t>(count * width) * operand_bytes() <= buffer.size_bytes());
  return {buffer.data(), count, width};
}

int64_t AttentionSpec::bias_positions(int head) const {
  const int64_t keys = reach_of(head);
  return keys < 0 ? kMaxPositions : std::min(kMaxPositions, keys + 2 * kSuperReach);
}

bool AttentionSpec::keeps_super_tiles(int kv_head) const {
  if (window >= 0) return false;
  const int group = num_heads / num_kv_heads;
  for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    if (reach_of(h) < 0 || reach_of(h) >= kSuperReach) return true;
  }
  return false;
}

int64_t positions_to_reserve(int64_t wanted) {
  constexpr int64_t kStep = 1024;
  return std::min(kMaxPositions, (wanted + kStep - 1) / kStep * kStep);
}

void Backend::embed(const HostMatrix& table, std::span<const int32_t> tokens, FloatRows x) {
  BAM_CHECK(x.width == table.cols && x.count == static_cast<int64_t>(tokens.size()));
  BAM_CHECK(all_below(tokens, table.rows));
  do_embed(table, tokens, x);
}

void Backend::load_rows(std::span<const float> host, FloatRows x) {
  BAM_CHECK(host.size() == static_cast<size_t>(x.size()));
  do_load_rows(host, x);
}

void Backend::do_load_rows(std::span<const float> host, FloatRows x) {
  BAM_CHECK(in_host_memory());
  std::memcpy(x.data, host.data(), host.size_bytes());
}

void Backend::load_rows_on_device(ConstFloatRows rows, FloatRows x) {
  BAM_CHECK(rows.count == x.count && rows.width == x.width);
  do_load_rows_on_device(rows, x);
}

void Backend::do_load_rows_on_device(ConstFloatRows rows, FloatRows x) {
  do_load_rows({rows.data, static_cast<size_t>(rows.size())}, x);
}

void Backend::add_sinusoidal(std::span<const SequenceRows> sequences, double theta, FloatRows x) {
  BAM_CHECK(covers(sequences, x));
  do_add_sinusoidal(sequences, theta, x);
}

void Backend::rms_norm(ConstFloatRows x, const DeviceBuffer& weight, float eps, OperandRows out) {
  BAM_CHECK(x.count == out.count && x.width == out.width);
  BAM_CHECK(weight.size_bytes() >= static_cast<size_t>(x.width) * sizeof(float));
  do_rms_norm(x, weight, eps, out);
}

void Backend::linear(const LinearWeights& weights, ConstOperandRows in, OperandRows out) {
  check_linear(weights, in, out.count, out.width);
  do_linear(weights, in, out);
}

void Backend::linear_add(const LinearWeights& weights, ConstOperandRows in, FloatRows residual) {
  check_linear(weights, in, residual.count, residual.width);
  do_linear_add(weights, in, residual);
}

void Backend::linear_logits(const LinearWeights& weights, ConstOperandRows in, FloatRows logits) {
  check_linear(weights, in, logits.count, logits.width);
  do_linear_logits(weights, in, logits);
}

void Backend::swiglu(ConstOperandRows in, OperandRows out) {
  BAM_CHECK(in.count == out.count && in.width == 2 * out.width);
  do_swiglu(in, out);
}

void Backend::write_kv(const AttentionLayer& layer, const KvCacheView& kv, std::span<const SequenceRows> sequences,
                       OperandRows qkv) {
  BAM_CHECK(qkv.width == layer.spec.qkv_width() && kv.layout.head_dim == layer.spec.head_dim);
  BAM_CHECK(covers(sequences, qkv) && tables_cover(sequences, kv.layout));
  do_write_kv(layer, kv, sequences, qkv);
}

void Backend::attention(const AttentionLayer& layer, const KvCacheView& kv, std::span<const SequenceRows> queries,
                        std::span<const int32_t> query_rows, ConstOperandRows qkv, const AttentionOptions& options,
                        OperandRows out, std::span<AttentionCounters> per_head) {
  BAM_CHECK(qkv.width == layer.spec.qkv_width() && kv.layout.head_dim == layer.spec.head_dim);
  BAM_CHECK(out.width == layer.spec.q_width() && per_head.size() == static_cast<size_t>(layer.spec.num_heads));
  BAM_CHECK(covers(queries, out) && tables_cover(queries, kv.layout));
  BAM_CHECK(query_rows.empty() ? out.count <= qkv.count : static_cast<int64_t>(query_rows.size()) == out.count);
  BAM_CHECK(all_below(query_rows, qkv.count));
  do_attention(layer, kv, queries, query_rows, qkv, options, out, per_head);
}

void Backend::write_and_attend(const AttentionLayer& layer, const KvCacheView& kv,
                               std::span<const SequenceRows> sequences, OperandRows qkv,
                               const AttentionOptions& options, OperandRows out,
                               std::span<AttentionCounters> per_head) {
  BAM_CHECK(qkv.width == layer.spec.qkv_width() && kv.layout.head_dim == layer.spec.head_dim);
  BAM_CHECK(out.width == layer.spec.q_width() && per_head.size() == static_cast<size_t>(layer.spec.num_heads));
  BAM_CHECK(out.count == qkv.count && covers(sequences, qkv) && tables_cover(sequences, kv.layout));
  do_write_and_attend(layer, kv, sequences, qkv, options, out, per_head);
}

void Backend::do_write_and_attend(const AttentionLayer& layer, const KvCacheView& kv,
                                  std::span<const SequenceRows> sequences, OperandRows qkv,
                                  const AttentionOptions& options, OperandRows out,
                                  std::span<AttentionCounters> per_head) {
  do_write_kv(layer, kv, sequences, qkv);
  do_attention(layer, kv, sequences, {}, qkv, options, out, per_head);
}

void Backend::gather_rows(ConstFloatRows in, std::span<const int32_t> rows, FloatRows out) {
  BAM_CHECK(in.width == out.width && out.count == static_cast<int64_t>(rows.size()));
  BAM_CHECK(all_below(rows, in.count));
  do_gather_rows(in, rows, out);
}

void Backend::read_floats(ConstFloatRows device, std::span<float> host) {
  BAM_CHECK(host.size() == static_cast<size_t>(device.size()));
  do_read_floats(device, host);
}

void Backend::keep_on_device(ConstFloatRows rows, FloatRows kept) {
  BAM_CHECK(rows.count == kept.count && rows.width == kept.width);
  do_keep_on_device(rows, kept);
}

void Backend::do_keep_on_device(ConstFloatRows rows, FloatRows kept) {
  BAM_CHECK(in_host_memory());
  do_read_floats(rows, {kept.data, static_cast<size_t>(kept.size())});
}

void Backend::read_operands(ConstOperandRows device, std::span<float> host) {
  BAM_CHECK(host.size() == static_cast<size_t>(device.size()));
  do_read_operands(device, host);
}

bool Backend::supports_drawing(int64_t) const { return false; }

void Backend::draw_tokens(ConstFloatRows logits, const DrawBatch& batch, std::span<int32_t> tokens,
                          std::span<const int32_t> wanted, std::span<float> host) {
  BAM_CHECK(supports_drawing(logits.width) && tokens.size() == batch.rows.size());
  BAM_CHECK(fits(batch, logits) && all_below(wanted, logits.count));
  BAM_CHECK(wanted.empty() || host.size() == static_cast<size_t>(logits.size()));
  do_draw_tokens(logits, batch, tokens, wanted, host);
}

void Backend::do_draw_tokens(ConstFloatRows, const DrawBatch&, std::span<int32_t>, std::span<const int32_t>,
                             std::span<float>) {
  BAM_CHECK(false && "this backend does not draw tokens");
}

void Backend::copy_page(const KvCacheView& kv, int32_t from, int32_t to) {
  BAM_CHECK(from >= 0 && from < kv.num_pages && to >= 0 && to < kv.num_pages);
  do_copy_page(kv, from, to);
}

void Backend::read_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<std::byte> out) {
  BAM_CHECK(out.size() == pages.size() * kv.layout.page_bytes() && all_below(pages, kv.num_pages));
  do_read_pages(kv, pages, out);
}

void Backend::write_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<const std::byte> in) {
  BAM_CHECK(in.size() == pages.size() * kv.layout.page_bytes() && all_below(pages, kv.num_pages));
  do_write_pages(kv, pages, in);
}

}  // namespace bam
