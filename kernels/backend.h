// The seam between models and devices: the operations a device offers. The residual stream and logits are float32
// device memory; "operands" (inputs and outputs of linear layers between them) have the backend's own format of
// operand_bytes() per element, so that a GPU may keep them in 16 bits. Operations are issued in order from one thread;
// those on a GPU return before they are done, read_floats() and its like wait.
//
// The public operations check shapes and hand over to the virtual ones that a device implements.
//
// Contract: every row's result depends on that row's data only. The number of rows, their order, and how a prompt was
// cut into calls never change a bit of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/attention_options.h"
#include "kernels/draw.h"
#include "kernels/head_bias.h"
#include "kernels/paged_kv.h"
#include "kernels/rounding.h"
#include "kernels/rows.h"
#include "kernels/table_history.h"

namespace bam {

class ThreadPool;

// The device will not compute again for this process: an illegal address, an ECC error, an Xid. Only a new process
// helps.
class DeviceLost : public Error {
 public:
  using Error::Error;
};

// A host matrix [rows, cols], row-major, possibly unaligned, in kF32, kF16, kBF16 or kI4 (kernels/int4.h).
struct HostMatrix {
  const std::byte* data = nullptr;  // kI4: codes
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* int4_factors = nullptr;
  const std::byte* int4_scales = nullptr;  // [rows] float32
};

// Device memory, freed with the object.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual void* data() = 0;
  virtual size_t size_bytes() const = 0;
};

// Weights of y = W x in the device's own packed form.
class LinearWeights {
 public:
  virtual ~LinearWeights() = default;
  virtual int64_t in_features() const = 0;
  virtual int64_t out_features() const = 0;
  virtual size_t size_bytes() const = 0;
};

// Everything static about attention in one layer.
struct AttentionSpec {
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  bool ssmax = false;
  int64_t window = -1;    // keys with i - j > window are not seen; -1: none
  double rope_theta = 0;  // 0: q and k are not rotated
  RopeStyle rope_style = RopeStyle::kInterleaved;
  std::vector<float> seq_scale;  // [heads] with SSMax
  std::vector<HeadBias> bias;    // [heads]; empty: nothing is added
  std::vector<int64_t> reach;    // [heads] a query at i never needs keys with i - j > reach; -1: unbounded
  int first_group = 0;           // group of KV head 0: layer * num_kv_heads

  bool rotates() const { return rope_theta > 0; }
  int64_t q_width() const { return int64_t{num_heads} * head_dim; }
  int64_t qkv_width() const { return int64_t{num_heads + 2 * num_kv_heads} * head_dim; }
  const HeadBias& bias_of(int head) const { return bias.empty() ? kNoBias : bias[static_cast<size_t>(head)]; }
  double seq_scale_of(int head) const { return ssmax ? seq_scale[static_cast<size_t>(head)] : 1.0; }
  int64_t reach_of(int head) const { return reach.empty() ? -1 : reach[static_cast<size_t>(head)]; }
  // Distances that a table of the head's bias can be asked about.
  int64_t bias_positions(int head) const;
  // Whether the boxes of super-tiles are kept for this KV head.
  bool keeps_super_tiles(int kv_head) const;

 private:
  static constexpr HeadBias kNoBias{};
};

// Tables of positions grow by steps: to how many, if this many are wanted.
int64_t positions_to_reserve(int64_t wanted);

class AttentionLayer {
 public:
  explicit AttentionLayer(const AttentionSpec& spec_) : spec(spec_) {}
  virtual ~AttentionLayer() = default;
  const AttentionSpec spec;
};

// The rows of one sequence inside a step: rows [row_begin, row_begin + num_rows) are its tokens at positions
// start_pos, start_pos + 1, ...
struct SequenceRows {
  const int32_t* block_table = nullptr;  // [groups][table_stride] page ids, host memory
  int64_t table_stride = 0;
  int64_t row_begin = 0;
  int64_t num_rows = 0;
  int64_t start_pos = 0;
  const TableHistory* history = nullptr;  // of block_table; null: devices take the table whole in every step
};

// Everything that the operations of one step will be asked about. The spans live until the step's results were read.
struct StepInput {
  std::span<const int32_t> tokens;  // [rows]
  std::span<const SequenceRows> sequences;
  std::span<const int32_t> logit_rows;
  const DrawBatch* draw = nullptr;  // null: nothing is drawn on the device
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string description() const = 0;
  // The kind of arithmetic: two backends that say the same compute the same bits from the same numbers. Part of a
  // snapshot's identity.
  virtual std::string numerics() const { return description(); }
  virtual ArithmeticRounding rounding(int /*head_dim*/) const { return {}; }
  virtual int num_threads() const = 0;  // host threads it computes with
  // These threads, for work of the caller's own between operations; null: there are none to lend.
  virtual ThreadPool* threads() { return nullptr; }
  virtual size_t operand_bytes() const = 0;
  // Whether operations can write float32 results straight to the caller's memory.
  virtual bool in_host_memory() const { return false; }
  // Which of the machine's GPUs it is, for libraries that move its memory; -1: none.
  virtual int gpu() const { return -1; }
  // Bytes that a KV cache could take now without hurting the machine.
  virtual size_t free_memory_bytes() const = 0;
  // Formats in which write_kv() can store keys and values.
  virtual bool supports_kv(DType dtype) const { return dtype != DType::kBF16 && dtype != DType::kFp8; }

  // Contents undefined but committed lazily where the device can.
  virtual std::unique_ptr<DeviceBuffer> allocate(size_t bytes) = 0;
  // Whether weights can be held, and given, in kI4; all other formats that make_linear() names always can.
  virtual bool supports_int4_weights() const { return false; }
  // Stacks `parts` along the output dimension. weight_dtype: kF32, kBF16, kF16, kI8 or kI4.
  virtual std::unique_ptr<LinearWeights> make_linear(std::span<const HostMatrix> parts, DType weight_dtype) = 0;
  // A float32 vector (norm weights) or table (embedding kept in its own dtype) on the device.
  virtual std::unique_ptr<DeviceBuffer> make_vector(std::span<const float> values) = 0;
  virtual std::unique_ptr<AttentionLayer> make_attention(const AttentionSpec& spec) = 0;
  // Extends position tables so that positions < num_positions can be computed; cheap when there is nothing to add.
  virtual void reserve_positions(std::span<AttentionLayer* const> layers, int64_t num_positions) = 0;

  // Before the first write_kv(): the layers will be used with pages of this layout. Throws Error if the device cannot;
  // says in the log where it can only slowly.
  virtual void prepare_attention(std::span<AttentionLayer* const> /*layers*/, const KvLayout& /*layout*/) {}
  // A step begins. A device may send all of its inputs at once, and run the whole step as one; operations that are
  // issued without it work as well.
  virtual void begin_step(const StepInput& /*step*/) {}
  // The step that was being issued has failed half-way: what was issued of it must not run later.
  virtual void abandon_step() noexcept {}

  // The first `count` rows of a buffer that was allocated for at least so many.
  FloatRows float_rows(DeviceBuffer& buffer, int64_t count, int64_t width) const;
  OperandRows operand_rows(DeviceBuffer& buffer, int64_t count, int64_t width) const;

  // x[r, :] = table[tokens[r], :]; `table` stays in host memory on the CPU (mapped checkpoint).
  void embed(const HostMatrix& table, std::span<const int32_t> tokens, FloatRows x);
  // x = host: the start of a step whose rows have come through earlier layers elsewhere, as embed() is of one that
  // begins with tokens.
  void load_rows(std::span<const float> host, FloatRows x);
  // The same from rows that are in the device's memory already. They may go when it returns, as those of the host.
  void load_rows_on_device(ConstFloatRows rows, FloatRows x);
  // Adds the sinusoidal position vectors of each sequence's rows.
  void add_sinusoidal(std::span<const SequenceRows> sequences, double theta, FloatRows x);
  // out = x * rsqrt(mean(x^2) + eps) * weight
  void rms_norm(ConstFloatRows x, const DeviceBuffer& weight, float eps, OperandRows out);
  void linear(const LinearWeights& weights, ConstOperandRows in, OperandRows out);
  // residual[r, :] += W in[r, :]
  void linear_add(const LinearWeights& weights, ConstOperandRows in, FloatRows residual);
  void linear_logits(const LinearWeights& weights, ConstOperandRows in, FloatRows logits);
  // in = gate | up, twice as wide as out; out = silu(gate) * up
  void swiglu(ConstOperandRows in, OperandRows out);
  // qkv [rows, (heads + 2 * kv_heads) * head_dim]: rotates q and k if the layer says so (q in place), stores k and v of
  // all rows in their pages and completes tile statistics.
  void write_kv(const AttentionLayer& layer, const KvCacheView& kv, std::span<const SequenceRows> sequences,
                OperandRows qkv);
  // Attention of the query rows described by `queries` over the pages written so far. Row r of `queries` reads q from
  // qkv row query_rows[r] (or r when empty) and writes out row r [heads * head_dim]. The counters are complete after
  // the next read_floats() or read_operands(); until then per_head must live, or the layer be gone.
  void attention(const AttentionLayer& layer, const KvCacheView& kv, std::span<const SequenceRows> queries,
                 std::span<const int32_t> query_rows, ConstOperandRows qkv, const AttentionOptions& options,
                 OperandRows out, std::span<AttentionCounters> per_head);
  // write_kv() and attention() of all rows of the same sequences, in one go where that saves a way through memory.
  void write_and_attend(const AttentionLayer& layer, const KvCacheView& kv, std::span<const SequenceRows> sequences,
                        OperandRows qkv, const AttentionOptions& options, OperandRows out,
                        std::span<AttentionCounters> per_head);
  // out[r, :] = in[rows[r], :]
  void gather_rows(ConstFloatRows in, std::span<const int32_t> rows, FloatRows out);
  // Copies finished float32 results to the host.
  void read_floats(ConstFloatRows device, std::span<float> host);
  // The same to other memory of the device: it waits, and counters are complete.
  void keep_on_device(ConstFloatRows rows, FloatRows kept);
  // The same for operands, converted to float32.
  void read_operands(ConstOperandRows device, std::span<float> host);
  // Whether draw_tokens() is there for a vocabulary of this size.
  virtual bool supports_drawing(int64_t vocab_size) const;
  // Draws one token (or kDraw...) per row of the batch from the logits and copies the logit rows `wanted` to the same
  // rows of `host`. Waits like read_floats(), once for both.
  void draw_tokens(ConstFloatRows logits, const DrawBatch& batch, std::span<int32_t> tokens,
                   std::span<const int32_t> wanted, std::span<float> host);
  // Copies page `from` to page `to` (copy-on-write).
  void copy_page(const KvCacheView& kv, int32_t from, int32_t to);
  // Raw page contents for snapshots and swap, one after the other in host memory; a GPU waits once, not per page.
  void read_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<std::byte> out);
  void write_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<const std::byte> in);
  void read_page(const KvCacheView& kv, int32_t page, std::span<std::byte> out) { read_pages(kv, {&page, 1}, out); }
  void write_page(const KvCacheView& kv, int32_t page, std::span<const std::byte> in) {
    write_pages(kv, {&page, 1}, in);
  }

 protected:
  // The operations above, with shapes that fit.
  virtual void do_embed(const HostMatrix& table, std::span<const int32_t> tokens, FloatRows x) = 0;
  virtual void do_load_rows(std::span<const float> host, FloatRows x);
  virtual void do_load_rows_on_device(ConstFloatRows rows, FloatRows x);
  virtual void do_add_sinusoidal(std::span<const SequenceRows> sequences, double theta, FloatRows x) = 0;
  virtual void do_rms_norm(ConstFloatRows x, const DeviceBuffer& weight, float eps, OperandRows out) = 0;
  virtual void do_linear(const LinearWeights& weights, ConstOperandRows in, OperandRows out) = 0;
  virtual void do_linear_add(const LinearWeights& weights, ConstOperandRows in, FloatRows residual) = 0;
  virtual void do_linear_logits(const LinearWeights& weights, ConstOperandRows in, FloatRows logits) = 0;
  virtual void do_swiglu(ConstOperandRows in, OperandRows out) = 0;
  virtual void do_write_kv(const AttentionLayer& layer, const KvCacheView& kv, std::span<const SequenceRows> sequences,
                           OperandRows qkv) = 0;
  virtual void do_attention(const AttentionLayer& layer, const KvCacheView& kv, std::span<const SequenceRows> queries,
                            std::span<const int32_t> query_rows, ConstOperandRows qkv, const AttentionOptions& options,
                            OperandRows out, std::span<AttentionCounters> per_head) = 0;
  virtual void do_write_and_attend(const AttentionLayer& layer, const KvCacheView& kv,
                                   std::span<const SequenceRows> sequences, OperandRows qkv,
                                   const AttentionOptions& options, OperandRows out,
                                   std::span<AttentionCounters> per_head);
  virtual void do_gather_rows(ConstFloatRows in, std::span<const int32_t> rows, FloatRows out) = 0;
  virtual void do_read_floats(ConstFloatRows device, std::span<float> host) = 0;
  virtual void do_keep_on_device(ConstFloatRows rows, FloatRows kept);
  virtual void do_read_operands(ConstOperandRows device, std::span<float> host) = 0;
  virtual void do_draw_tokens(ConstFloatRows logits, const DrawBatch& batch, std::span<int32_t> tokens,
                              std::span<const int32_t> wanted, std::span<float> host);
  virtual void do_copy_page(const KvCacheView& kv, int32_t from, int32_t to) = 0;
  virtual void do_read_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<std::byte> out) = 0;
  virtual void do_write_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<const std::byte> in) = 0;
};

struct BackendOptions {
  int num_threads = 0;       // 0: all cores this process may use
  std::string isa = "auto";  // cpu: auto, portable, avx2, avx512, avx512vnni, avx512bf16
  // cpu: exact: 16-bit weights are multiplied in float32; fast: 16-bit weights and activations in pairs of bfloat16.
  std::string math = "exact";
  // cpu: f32, or int8: attention over int8 and int4 pages multiplies codes; queries and weights are rounded to bytes.
  std::string attention_math = "f32";
  int device = 0;  // cuda: which one of the machine's
  // cuda: format of operands and of 16-bit weights: f32 (no tensor cores), bf16, anything else: f16.
  std::string operands = "auto";
  // cuda: matrix products by own kernels, which are batch-invariant, or by cublas, which is not.
  std::string gemm = "own";
};
std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options);

}  // namespace bam
