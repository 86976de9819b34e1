// A backend that passes everything on to another one and adds up the time of every operation. For backends that are done
// when a call returns.
#pragma once

#include <fmt/format.h>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "kernels/backend.h"

namespace bam::bench {

class ProfilingBackend final : public Backend {
 public:
  struct Entry {
    double seconds = 0, weight_bytes = 0, flop = 0;
    int64_t calls = 0;
  };

  explicit ProfilingBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  const std::map<std::string, Entry>& entries() const { return entries_; }
  void reset() { entries_.clear(); }

  std::string description() const override { return inner_->description(); }
  std::string numerics() const override { return inner_->numerics(); }
  ArithmeticRounding rounding(int head_dim) const override { return inner_->rounding(head_dim); }
  int num_threads() const override { return inner_->num_threads(); }
  ThreadPool* threads() override { return inner_->threads(); }
  size_t operand_bytes() const override { return inner_->operand_bytes(); }
  bool in_host_memory() const override { return inner_->in_host_memory(); }
  size_t free_memory_bytes() const override { return inner_->free_memory_bytes(); }
  bool supports_kv(DType dtype) const override { return inner_->supports_kv(dtype); }
  bool supports_int4_weights() const override { return inner_->supports_int4_weights(); }
  std::unique_ptr<DeviceBuffer> allocate(size_t bytes) override { return inner_->allocate(bytes); }
  std::unique_ptr<LinearWeights> make_linear(std::span<const HostMatrix> parts, DType weight_dtype) override {
    return inner_->make_linear(parts, weight_dtype);
  }
  std::unique_ptr<DeviceBuffer> make_vector(std::span<const float> values) override {
    return inner_->make_vector(values);
  }
  std::unique_ptr<AttentionLayer> make_attention(const AttentionSpec& spec) override {
    return inner_->make_attention(spec);
  }
  void reserve_positions(std::span<AttentionLayer* const> layers, int64_t num_positions) override {
    inner_->reserve_positions(layers, num_positions);
  }
  void prepare_attention(std::span<AttentionLayer* const> layers, const KvLayout& layout) override {
    inner_->prepare_attention(layers, layout);
  }
  void begin_step(const StepInput& step) override { inner_->begin_step(step); }
  void abandon_step() noexcept override { inner_->abandon_step(); }

 protected:
  void do_embed(const HostMatrix& table, std::span<const int32_t> tokens, FloatRows x) override {
    timed("embedding", [&] { inner_->embed(table, tokens, x); });
  }
  void do_load_rows(std::span<const float> host, FloatRows x) override { inner_->load_rows(host, x); }
  void do_add_sinusoidal(std::span<const SequenceRows> sequences, double theta, FloatRows x) override {
    timed("sinusoidal", [&] { inner_->add_sinusoidal(sequences, theta, x); });
  }
  void do_rms_norm(ConstFloatRows x, const DeviceBuffer& weight, float eps, OperandRows out) override {
    timed("rms_norm", [&] { inner_->rms_norm(x, weight, eps, out); });
  }
  void do_linear(const LinearWeights& weights, ConstOperandRows in, OperandRows out) override {
    timed_linear("linear", weights, in.count, [&] { inner_->linear(weights, in, out); });
  }
  void do_linear_add(const LinearWeights& weights, ConstOperandRows in, FloatRows residual) override {
    timed_linear("linear_add", weights, in.count, [&] { inner_->linear_add(weights, in, residual); });
  }
  void do_linear_logits(const LinearWeights& weights, ConstOperandRows in, FloatRows logits) override {
    timed_linear("logits", weights, in.count, [&] { inner_->linear_logits(weights, in, logits); });
  }
  void do_swiglu(ConstOperandRows in, OperandRows out) override {
    timed("swiglu", [&] { inner_->swiglu(in, out); });
  }
  void do_write_kv(const AttentionLayer& layer, const KvCacheView& kv, std::span<const SequenceRows> sequences,
                   OperandRows qkv) override {
    timed("write_kv", [&] { inner_->write_kv(layer, kv, sequences, qkv); });
  }
  void do_attention(const AttentionLayer& layer, const KvCacheView& kv, std::span<const SequenceRows> queries,
                    std::span<const int32_t> query_rows, ConstOperandRows qkv, const AttentionOptions& options,
                    OperandRows out, std::span<AttentionCounters> per_head) override {
    timed("attention", [&] { inner_->attention(layer, kv, queries, query_rows, qkv, options, out, per_head); });
  }
  void do_write_and_attend(const AttentionLayer& layer, const KvCacheView& kv, std::span<const SequenceRows> sequences,
                           OperandRows qkv, const AttentionOptions& options, OperandRows out,
                           std::span<AttentionCounters> per_head) override {
    timed("write_and_attend", [&] { inner_->write_and_attend(layer, kv, sequences, qkv, options, out, per_head); });
  }
  void do_gather_rows(ConstFloatRows in, std::span<const int32_t> rows, FloatRows out) override {
    timed("gather_rows", [&] { inner_->gather_rows(in, rows, out); });
  }
  void do_read_floats(ConstFloatRows device, std::span<float> host) override { inner_->read_floats(device, host); }
  void do_read_operands(ConstOperandRows device, std::span<float> host) override {
    inner_->read_operands(device, host);
  }
  void do_copy_page(const KvCacheView& kv, int32_t from, int32_t to) override { inner_->copy_page(kv, from, to); }
  void do_read_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<std::byte> out) override {
    inner_->read_pages(kv, pages, out);
  }
  void do_write_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<const std::byte> in) override {
    inner_->write_pages(kv, pages, in);
  }

 private:
  template <typename Call>
  Entry& timed(const std::string& name, const Call& call) {
    const double start = now();
    call();
    Entry& entry = entries_[name];
    entry.seconds += now() - start;
    ++entry.calls;
    return entry;
  }
  template <typename Call>
  void timed_linear(const char* name, const LinearWeights& weights, int64_t rows, const Call& call) {
    Entry& entry = timed(fmt::format("{} {} x {}", name, weights.in_features(), weights.out_features()), call);
    entry.weight_bytes += static_cast<double>(weights.size_bytes());
    entry.flop += 2.0 * static_cast<double>(rows * weights.in_features() * weights.out_features());
  }
  static double now();

  std::unique_ptr<Backend> inner_;
  std::map<std::string, Entry> entries_;
};

}  // namespace bam::bench
