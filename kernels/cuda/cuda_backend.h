// The CUDA backend: operations are queued on one stream; the host waits once per step, when results are read.
#pragma once

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/page_swap.h"

namespace bam::cuda {

class CudaBackend;

// Inputs in flight; beyond it the host waits.
inline constexpr size_t kMaxStagedBytes = size_t{64} << 20;
// Copies of block tables; the oldest go when there are more, unless the step uses them.
inline constexpr size_t kMaxResidentBytes = size_t{64} << 20;
inline constexpr int64_t kMaxCounters = int64_t{1} << 16;  // heads of all layers of all models

struct CudaBuffer final : DeviceBuffer {
  CudaBuffer(CudaBackend& owner, size_t bytes) : backend(owner), memory(bytes) {}  // on the current device
  ~CudaBuffer() override;
  void* data() override { return memory.data(); }
  size_t size_bytes() const override { return memory.size(); }
  CudaBackend& backend;
  DeviceMemory memory;
};

struct CudaLinear final : LinearWeights {
  explicit CudaLinear(CudaBackend& owner) : backend(owner) {}
  ~CudaLinear() override;
  int64_t in_features() const override { return k; }
  int64_t out_features() const override { return n; }
  size_t size_bytes() const override { return weights.size() + scale.size(); }
  CudaBackend& backend;
  int64_t k = 0, n = 0, ldk = 0;
  DType dtype = DType::kF16;
  DeviceMemory weights;  // [n, ldk]
  DeviceMemory scale;    // int8: [n]
};

// B(d) of one head on the device. Equal heads share a table (a global prior, ALiBi).
struct BiasTable {
  HeadBias bias;
  int64_t limit = 0;  // distances beyond are never read
  int64_t size = 0;
  DeviceMemory memory;
};

// The counters of one layer on their way to the host.
struct LayerCounters {
  int64_t offset = 0;                   // of this layer's heads among all counters of the device
  std::vector<DeviceCounters> seen;     // [heads] what the host has taken over already
  std::vector<uint64_t> pairs;          // [heads] (row, tile) pairs asked for since then
  std::vector<float> left_out;          // [heads] by static reach alone
  std::span<AttentionCounters> target;  // where they go; empty: nothing pending
};

struct CudaAttention final : AttentionLayer {
  CudaAttention(CudaBackend& owner, const AttentionSpec& spec_) : AttentionLayer(spec_), backend(owner) {}
  ~CudaAttention() override;
  CudaBackend& backend;
  std::vector<std::shared_ptr<BiasTable>> tables;  // [heads], null without a bias
  std::vector<HeadParams> heads;                   // [heads] host copy of head_params
  DeviceMemory head_params;                        // [heads] HeadParams
  std::vector<uint8_t> use_super;                  // [kv heads] super-tile boxes are kept
  DeviceMemory super_heads;                        // the same on the device
  std::shared_ptr<const DeviceMemory> rope_memory;
  RopeTables rope;
  std::unique_ptr<LayerCounters> counters;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const BackendOptions& options);
  ~CudaBackend() override;

  std::string description() const override { return fmt::format("cuda:{} {}", context_.device(), kind()); }
  // Which of several equal devices it is makes no difference.
  std::string numerics() const override { return "cuda " + kind(); }
  int num_threads() const override { return 1; }
  int gpu() const override { return context_.device(); }
  size_t operand_bytes() const override { return dtype_bits(operand_) / 8; }
  size_t free_memory_bytes() const override;
  bool supports_kv(DType) const override { return true; }
  std::unique_ptr<DeviceBuffer> allocate(size_t bytes) override;
  std::unique_ptr<LinearWeights> make_linear(std::span<const HostMatrix> parts, DType weight_dtype) override;
  std::unique_ptr<DeviceBuffer> make_vector(std::span<const float> values) override;
  std::unique_ptr<AttentionLayer> make_attention(const AttentionSpec& spec) override;
  void reserve_positions(std::span<AttentionLayer* const> layers, int64_t num_positions) override;
  void prepare_attention(std::span<AttentionLayer* const> layers, const KvLayout& layout) override;
  void abandon_step() noexcept override;
  bool supports_drawing(int64_t vocab_size) const override { return vocab_size <= kMaxDrawVocab; }

  // How often a block table was compared with one that is already there.
  uint64_t tables_compared() const { return tables_compared_; }
  // Memory is going away that a recorded step may use: that step runs first.
  void settle() noexcept;
  // A layer is going away: its counters must not be written any more.
  void forget(const LayerCounters* counters);

 protected:
  void do_embed(const HostMatrix& table, std::span<const int32_t> tokens, FloatRows x) override;
  void do_load_rows(std::span<const float> host, FloatRows x) override;
  void do_load_rows_on_device(ConstFloatRows rows, FloatRows x) override;
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
  void do_gather_rows(ConstFloatRows in, std::span<const int32_t> rows, FloatRows out) override;
  void do_copy_page(const KvCacheView& kv, int32_t from, int32_t to) override;
  void do_read_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<std::byte> out) override;
  void do_write_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<const std::byte> in) override;
  void do_read_floats(ConstFloatRows device, std::span<float> host) override;
  void do_keep_on_device(ConstFloatRows rows, FloatRows kept) override;
  void do_read_operands(ConstOperandRows device, std::span<float> host) override;
  void do_draw_tokens(ConstFloatRows logits, const DrawBatch& batch, std::span<int32_t> tokens,
                      std::span<const int32_t> wanted, std::span<float> host) override;

 private:
  std::string kind() const;
  // Query blocks that one launch takes: up to 16 rows or up to 64.
  struct BlockClass {
    std::vector<QueryBlock> blocks;
    int max_rows = 0;
    int bias_floats = 0;
  };

  // Waits for the stream; then everything staged is free again and counters are taken over.
  void synchronize();
  // synchronize(), and counters come with it.
  void finish_read();
  // Where a step's work goes: to the stream, or into the record of its graph.
  Queue queue() { return graph_.queue(stream_.get()); }
  // Launches the step that is being recorded, if there is one.
  void flush();
  // Everything issued so far, for another stream to wait for.
  cudaEvent_t step_end();
  template <typename T>
  T* upload(std::span<const T> values);
  // A slice of staging_ on its way; those of a recorded step go together.
  void send(const Staging::Slice& slice, size_t bytes);
  // Ordinary host memory to the device, in stream order: the source may go when this returns.
  void copy_in(const DeviceMemory& to, const void* from);
  // Everything that was handed out in this step is free again.
  void forget_step();
  bool on_tensor_cores(const KvLayout& layout) const;
  // Query heads of one KV head that one block takes; kernels are prepared for it when it is asked for the first time.
  int heads_at_once(int group, const KvLayout& layout);
  // Brings the copies of these sequences' tables up to date: what changed since the last step, or new tables whole.
  void refresh_tables(std::span<const SequenceRows> sequences);
  void refresh_table(const SequenceRows& sequence);
  void apply_patches();
  // The block table of one layer of one sequence, as far as `num_tiles` reach.
  struct Table {
    const int32_t* source = nullptr;  // host, to recognise it
    int64_t source_stride = 0, num_pages = 0;
    const int32_t* host = nullptr;  // [kv heads][num_pages] what the device has
    const int32_t* device = nullptr;
  };
  Table upload_table(const AttentionSpec& spec, const SequenceRows& sequence, int64_t num_tiles,
                     const KvLayout& layout);
  void gemm(const LinearWeights& weights, ConstOperandRows in, OperandRows out, GemmOutput output);
  const void* embedding_on_device(const HostMatrix& table);
  const unsigned long long* sinusoidal_turns(double theta, int64_t hidden);
  void begin_rows();
  void collect_counters();

  void plan_blocks(const CudaAttention& layer, const KvLayout& layout, std::span<const SequenceRows> queries,
                   const AttentionOptions& options);
  void run_class(BlockClass& blocks, const AttentionArgs& args);
  void run_blocks(std::span<QueryBlock> blocks, const BlockClass& of, AttentionArgs args);
  void launch_attention(AttentionArgs args, std::span<const WorkItem> items, const BlockClass& of);
  std::shared_ptr<const DeviceMemory> rope_tables(const AttentionSpec& spec);

  CudaContext context_;  // first: what follows is made on its device
  DType operand_ = DType::kF16;
  bool tensor_cores_ = false;
  Stream stream_;
  Uploads uploads_;
  Event step_end_;
  PageSwap swap_;
  StepGraph graph_;
  Staging staging_;
  Scratch slots_, masks_, lists_, list_sizes_, seeds_, left_out_, quantised_, quantised_scale_, products_, converted_,
      draw_work_, drawn_;
  PinnedMemory result_;    // bounce buffer of reads
  DeviceMemory counters_;  // [kMaxCounters] DeviceCounters of all layers
  int64_t counters_used_ = 0;
  PinnedMemory counter_result_;
  std::vector<DeviceMemory> retired_;  // tables that were replaced while kernels may still read them

  struct Embedding {
    HostMatrix source;
    uint64_t fingerprint;  // of a few rows: another checkpoint may be mapped at the same address
    DeviceMemory memory;
  };
  std::vector<Embedding> embeddings_;
  std::map<std::pair<double, int64_t>, DeviceMemory> turns_;  // by theta and hidden size
  // Uploaded in this step, by source: writing K and V and attending to them need the same table.
  std::unordered_multimap<const int32_t*, Table> tables_;
  uint64_t tables_compared_ = 0;
  // Tables whose changes are known stay on the device, by TableHistory::id().
  struct ResidentTable {
    DeviceMemory memory;  // [groups][stride]
    uint64_t version = 0;
    uint64_t last_step = 0;
  };
  std::unordered_map<uint64_t, ResidentTable> resident_;
  size_t resident_bytes_ = 0;
  uint64_t steps_ = 0;
  bool refreshed_ = false;  // tables, in this step
  std::vector<TablePatch> patches_;
  Scratch patch_memory_;
  std::vector<LayerCounters*> layers_;                                             // of all living layers
  std::map<std::pair<HeadBias, int64_t>, std::weak_ptr<BiasTable>> known_tables_;  // by bias and limit
  std::weak_ptr<const DeviceMemory> known_rope_;
  std::array<double, 2> known_rope_key_ = {};
  // What kernels were prepared for.
  struct Prepared {
    DType dtype;
    int head_dim, group, heads;
  };
  std::vector<Prepared> prepared_;
  BlockClass classes_[2];           // [more than 16 rows]
  std::unique_ptr<Cublas> cublas_;  // null: own kernels multiply
};

template <typename T>
T* CudaBackend::upload(std::span<const T> values) {
  const Staging::Slice slice = staging_.take(values.size_bytes());
  if (!values.empty()) {
    std::memcpy(slice.host, values.data(), values.size_bytes());
    send(slice, values.size_bytes());
  }
  return static_cast<T*>(slice.device);
}

}  // namespace bam::cuda
