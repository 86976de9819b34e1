#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "base/thread_pool.h"
#include "kernels/backend.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/kv_store.h"
#include "kernels/cpu/position_tables.h"

namespace bam::cpu {

struct CpuBuffer final : DeviceBuffer {
  explicit CpuBuffer(LazyMemory memory_) : memory(std::move(memory_)) {}
  void* data() override { return memory.data(); }
  size_t size_bytes() const override { return memory.size(); }
  LazyMemory memory;
};

struct CpuLinear final : LinearWeights {
  int64_t in_features() const override { return k; }
  int64_t out_features() const override { return n; }
  size_t size_bytes() const override {
    return panels.size() + factors.size() + scale.size() * sizeof(float) + offset.size() * sizeof(int32_t);
  }
  int64_t k = 0, n = 0;
  DType dtype = DType::kF32;
  bool in_pairs = false;  // of bfloat16, for PairKernels
  LazyMemory panels;
  LazyMemory factors;           // int4
  std::vector<float> scale;     // int8, int4: [padded n]
  std::vector<int32_t> offset;  // int8, int4: [padded n]
};

struct CpuAttention final : AttentionLayer {
  using AttentionLayer::AttentionLayer;
  int shape = 0;                                   // for the planner
  std::vector<std::shared_ptr<BiasTable>> tables;  // [heads], null without a bias
  std::shared_ptr<const RopeTable> rope;           // null: no rotation
  std::vector<HeadInfo> heads;                     // [heads]
  std::vector<bool> use_super;                     // [kv heads] super-tile boxes are kept
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const BackendOptions& options);
  ~CpuBackend() override;

  std::string description() const override;
  std::string numerics() const override;
  ArithmeticRounding rounding(int head_dim) const override;
  int num_threads() const override { return pool_.num_threads(); }
  bool in_host_memory() const override { return true; }
  ThreadPool* threads() override { return &pool_; }
  size_t operand_bytes() const override { return sizeof(float); }
  size_t free_memory_bytes() const override { return available_memory_bytes(); }
  std::unique_ptr<DeviceBuffer> allocate(size_t bytes) override;
  bool supports_int4_weights() const override { return true; }
  std::unique_ptr<LinearWeights> make_linear(std::span<const HostMatrix> parts, DType weight_dtype) override;
  std::unique_ptr<DeviceBuffer> make_vector(std::span<const float> values) override;
  std::unique_ptr<AttentionLayer> make_attention(const AttentionSpec& spec) override;
  void reserve_positions(std::span<AttentionLayer* const> layers, int64_t num_positions) override;
  const AttentionPlanner& planner() const { return planner_; }

 protected:
  void do_embed(const HostMatrix& table, std::span<const int32_t> tokens, FloatRows x) override;
  void do_add_sinusoidal(std::span<const SequenceRows> sequences, double theta, FloatRows x) override;
  void do_rms_norm(ConstFloatRows x, const DeviceBuffer& weight, float eps, OperandRows out) override;
  void do_linear(const LinearWeights& weights, ConstOperandRows in, OperandRows out) override;
  void do_linear_add(const LinearWeights& weights, ConstOperandRows in, FloatRows residual) override;
  void do_linear_logits(const LinearWeights& weights, ConstOperandRows in, FloatRows logits) override;
  void do_swiglu(ConstOperandRows in, OperandRows out) override;
  void do_write_kv(const AttentionLayer& layer, const KvCacheView& kv, std::span<const SequenceRows> sequences,
                   OperandRows qkv) override;
  void do_attention(const AttentionLayer& layer, const KvCacheView& kv, std::span<const SequenceRows> queries,
                    std::span<const int32_t> query_rows, ConstOperandRows qkv, const AttentionOptions& options,
                    OperandRows out, std::span<AttentionCounters> per_head) override;
  void do_write_and_attend(const AttentionLayer& layer, const KvCacheView& kv, std::span<const SequenceRows> sequences,
                           OperandRows qkv, const AttentionOptions& options, OperandRows out,
                           std::span<AttentionCounters> per_head) override;
  void do_gather_rows(ConstFloatRows in, std::span<const int32_t> rows, FloatRows out) override;
  void do_read_floats(ConstFloatRows device, std::span<float> host) override;
  void do_copy_page(const KvCacheView& kv, int32_t from, int32_t to) override;
  void do_read_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<std::byte> out) override;
  void do_write_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<const std::byte> in) override;
  void do_read_operands(ConstOperandRows device, std::span<float> host) override {
    do_read_floats({static_cast<const float*>(device.data), device.count, device.width}, host);
  }

 private:
  struct Worker;

  template <typename Fn>
  void for_rows(int64_t rows, int64_t width, const Fn& fn);
  void gemm(const CpuLinear& weights, const float* in, int64_t rows, float* out, bool accumulate);
  // Activations in the format that quantised weights or pairs want, in rounded_; null: they stay float32.
  const uint8_t* round_rows(const CpuLinear& weights, const float* in, int64_t rows, int64_t row_bytes);
  // One call of attention() or write_and_attend().
  struct Call {
    const CpuAttention& layer;
    const KvCacheView& kv;
    const AttentionPlan& plan;
    std::span<const SequenceRows> sequences;
    std::span<const int32_t> query_rows;
    const float* qkv;
    float* write_from;  // qkv again if some blocks have to write
    const AttentionOptions& options;
    float* out;

    const SequenceRows& sequence_of(const QueryBlock& block) const {
      return sequences[static_cast<size_t>(block.sequence)];
    }
  };

  void write_planned(const CpuAttention& layer, const KvCacheView& kv, std::span<const SequenceRows> sequences,
                     const WritePlan& plan, float* qkv);
  void write_tile(const CpuAttention& layer, const KvCacheView& kv, const SequenceRows& seq, int64_t tile_index,
                  int head, float* qkv);
  // Norm maxima chain from tile to tile, super boxes need 16 finished tiles: in order, one thread per head.
  void chain_stats(const CpuAttention& layer, const KvCacheView& kv, const SequenceRows& seq, int head);
  void fetch_block(const Call& call, const QueryBlock& block) const;
  void attend(const Call& call, std::span<AttentionCounters> per_head);
  void attend_anchors(const Call& call);
  void attend_block(const Call& call, const QueryBlock& block, int64_t segment, const QueryBlock* following,
                    Worker& worker);
  void attend_whole(const AttentionItem& item, const QueryBlock& block, Worker& worker) const;
  void merge_parts(const Call& call, std::span<AttentionCounters> per_head);
  SoftmaxState part_state(int64_t part, int padded_dim);
  void load_block(const Call& call, const QueryBlock& block, Worker& worker, AttentionItem& item) const;
  static void count_left_out(const QueryBlock& block, const SoftmaxState& state, std::span<AttentionCounters> heads);
  void add_counters(const Call& call, std::span<AttentionCounters> per_head) const;
  void count_block(const QueryBlock& block, Worker& worker) const;
  void store_block(const Call& call, const QueryBlock& block, const SoftmaxState& state) const;
  void ensure_workers(int padded_dim);
  // Scratch of every worker for a matrix product of this depth.
  void ensure_unpack(const CpuLinear& weights);
  // Whether attention over these pages multiplies codes.
  bool in_integers(const KvLayout& layout) const {
    return integer_attention_ && (layout.dtype == DType::kI8 || layout.dtype == DType::kI4);
  }

  GemmKernels gemm_;
  PairKernels pairs_;
  bool fast_ = false;
  bool integer_attention_ = false;
  AttentionKernels attention_;
  KvStoreKernels kv_store_;
  ElementwiseKernels elementwise_;
  std::string isa_name_;
  ThreadPool pool_;
  std::vector<std::unique_ptr<Worker>> workers_;
  MemoryArena arena_;   // weights and activations
  LazyMemory rounded_;  // int8 or bfloat16 activations of one call
  std::vector<float> rounded_scale_;
  AttentionPlanner planner_;
  WritePlan writes_;                 // of write_kv()
  std::vector<float> partial_;       // states of split blocks
  std::vector<AnchorInfo> anchors_;  // per part; only those of anchors are used
  // Equal heads share a table (a global prior, ALiBi) of the same limit.
  std::map<std::pair<HeadBias, int64_t>, std::weak_ptr<BiasTable>> known_tables_;
  std::map<std::tuple<double, int, RopeStyle>, std::weak_ptr<const RopeTable>> known_rope_;  // theta, head_dim, style
};

}  // namespace bam::cpu
