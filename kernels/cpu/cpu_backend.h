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
  AttentionSpec spec;
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
  double rounding_margin(int head_dim) const override;
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
  void embed(const HostMatrix& table, std::span<const int32_t> tokens, float* x) override;
  void add_sinusoidal(std::span<const SequenceRows> sequences, double theta, int64_t hidden, float* x) override;
  void rms_norm(const float* x, const DeviceBuffer& weight, float eps, int64_t rows, int64_t hidden,
                void* out) override;
  void linear(const LinearWeights& weights, const void* in, int64_t rows, void* out) override;
  void linear_add(const LinearWeights& weights, const void* in, int64_t rows, float* residual) override;
  void linear_logits(const LinearWeights& weights, const void* in, int64_t rows, float* logits) override;
  void swiglu(const void* in, int64_t rows, int64_t intermediate, void* out) override;
  void write_kv(const AttentionLayer& layer, const KvCacheView& kv, std::span<const SequenceRows> sequences,
                void* qkv) override;
  void attention(const AttentionLayer& layer, const KvCacheView& kv, std::span<const SequenceRows> queries,
                 std::span<const int32_t> query_rows, const void* qkv, const AttentionOptions& options, void* out,
                 std::span<AttentionCounters> per_head) override;
  void write_and_attend(const AttentionLayer& layer, const KvCacheView& kv, std::span<const SequenceRows> sequences,
                        void* qkv, const AttentionOptions& options, void* out,
                        std::span<AttentionCounters> per_head) override;
  void gather_rows(const float* in, std::span<const int32_t> rows, int64_t hidden, float* out) override;
  void read_floats(const float* device, std::span<float> host) override;
  void read_operands(const void* device, std::span<float> host) override {
    read_floats(static_cast<const float*>(device), host);
  }
  void copy_page(const KvCacheView& kv, int32_t from, int32_t to) override;
  void read_page(const KvCacheView& kv, int32_t page, std::span<std::byte> out) override;
  void write_page(const KvCacheView& kv, int32_t page, std::span<const std::byte> in) override;

 private:
  // One block of query rows: positions of one sequence inside one tile, all query heads of one KV head.
  struct Block {
    const SequenceRows* sequence;
    int64_t first_row;  // of the sequence's rows
    int num_positions;
    int kv_head;
    int first_head, num_heads;          // query heads taken together
    int64_t diagonal_tile, first_tile;  // tiles [first_tile, diagonal_tile] may be visited
    bool bounded;                       // every head has a finite reach
    bool writes = false;                // its one key and value must be stored first
    int64_t first_part = -1;            // split blocks: index of the anchor's state, then one per segment
    int64_t first_segment() const { return first_tile / kSegmentTiles; }
    int64_t last_segment() const { return num_segments(diagonal_tile); }
  };
  struct Task {
    int32_t block;
    int32_t num_blocks;  // small blocks are taken several at a time
    int64_t segment;     // -1: whole blocks
  };
  // A tile that rows of a step are written to.
  struct WrittenTile {
    const SequenceRows* sequence;
    int64_t tile;
  };
  struct Worker;

  template <typename Fn>
  void for_rows(int64_t rows, int64_t width, const Fn& fn);
  void gemm(const CpuLinear& weights, const float* in, int64_t rows, float* out, bool accumulate);
  // Activations in the format that quantised weights or pairs want, in rounded_; null: they stay float32.
  const uint8_t* round_rows(const CpuLinear& weights, const float* in, int64_t rows, int64_t row_bytes);
  void plan_writes(const SequenceRows& seq);
  void write_planned(const CpuAttention& layer, const KvCacheView& kv, float* qkv);
  void write_tile(const CpuAttention& layer, const KvCacheView& kv, const WrittenTile& written, int head, float* qkv);
  // Norm maxima chain from tile to tile, super boxes need 16 finished tiles: in order, one thread per head.
  void chain_stats(const CpuAttention& layer, const KvCacheView& kv, const SequenceRows& seq, int head);
  void plan_blocks(const CpuAttention& layer, std::span<const SequenceRows> queries, const AttentionOptions& options);
  void plan_tasks(int padded_dim);
  void plan_whole_blocks(size_t first, size_t end);
  void fetch_block(const CpuAttention& layer, const KvCacheView& kv, const Block& block) const;
  // Carries out the plan. write_from: qkv again if some blocks have to write.
  void attend(const CpuAttention& layer, const KvCacheView& kv, std::span<const int32_t> query_rows, const float* qkv,
              float* write_from, const AttentionOptions& options, float* out, std::span<AttentionCounters> per_head);
  void attend_whole(const AttentionItem& item, const Block& block, Worker& worker) const;
  SoftmaxState part_state(int64_t part, int padded_dim);
  void load_block(const CpuAttention& layer, const KvCacheView& kv, const Block& block,
                  std::span<const int32_t> query_rows, const float* qkv, const AttentionOptions& options,
                  Worker& worker, AttentionItem& item) const;
  static void count_left_out(const Block& block, const SoftmaxState& state, std::span<AttentionCounters> heads);
  void add_counters(const CpuAttention& layer, std::span<AttentionCounters> per_head) const;
  void count_block(const Block& block, Worker& worker) const;
  void store_block(const CpuAttention& layer, const Block& block, const SoftmaxState& state, int padded_dim,
                   float* out) const;
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
  std::vector<WrittenTile> written_;
  std::vector<const SequenceRows*> completing_;  // sequences that finish a tile in this step
  std::vector<Block> blocks_;
  std::vector<Task> tasks_;
  std::vector<float> partial_;       // states of split blocks
  std::vector<AnchorInfo> anchors_;  // per part; only those of anchors are used
  // Equal heads share a table (a global prior, ALiBi) of the same limit.
  std::map<std::pair<HeadBias, int64_t>, std::weak_ptr<BiasTable>> known_tables_;
  std::map<std::tuple<double, int, RopeStyle>, std::weak_ptr<const RopeTable>> known_rope_;  // theta, head_dim, style
};

}  // namespace bam::cpu
