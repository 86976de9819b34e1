// A model with its own pages, driven without an engine: what the kernels alone can do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "models/bam.h"

namespace bam::bench {

class ProfilingBackend;

struct RunnerOptions {
  std::string model;
  DType weight_dtype = DType::kF32;
  std::optional<DType> head_dtype = {};
  DType kv_dtype = DType::kF16;
  bool certified = true;
  int threads = 0;
  int64_t chunk = 512;
  int64_t logit_rows = 1;  // rows per chunk whose logits may be wanted
  std::string isa = "auto";
  std::string math = "exact";
  std::string attention_math = "f32";
  bool profile = false;
};

class Runner {
 public:
  Runner(const RunnerOptions& options, int64_t max_tokens, int64_t sequences = 1);

  BamModel& model() { return *model_; }
  Backend& backend() { return *backend_; }
  ProfilingBackend* profile() { return profile_; }  // null unless asked for
  // Reads tokens of sequence `s` from position `start` on in chunks; returns the last row's logits.
  std::span<const float> prefill(const std::vector<int32_t>& tokens, int64_t start = 0, int64_t sequence = 0);
  // The same for a prompt from position 0 on, returning the logits of its last `wanted` rows [wanted, vocab].
  std::vector<float> prefill_logits(const std::vector<int32_t>& tokens, int64_t wanted);
  // One token for each sequence at its position; logits [sequences, vocab].
  std::span<const float> decode(const std::vector<int32_t>& tokens, const std::vector<int64_t>& positions);
  int32_t argmax(int64_t row = 0) const;

 private:
  std::span<float> logits(size_t rows) const;

  RunnerOptions options_;
  std::unique_ptr<Backend> backend_;
  ProfilingBackend* profile_ = nullptr;
  std::unique_ptr<BamModel> model_;
  std::unique_ptr<DeviceBuffer> memory_;
  KvCacheView kv_;
  int64_t stride_ = 0;
  std::vector<int32_t> tables_;  // [sequences][groups][stride]
  LazyMemory logits_;
};

DType parse_dtype(const std::string& name);
std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint64_t seed);
double median(std::vector<double> values);
double now_seconds();
// main() of a benchmark: an exception is one line on stderr and 1.
int run_program(const char* name, int (*body)(int argc, char** argv), int argc, char** argv);

}  // namespace bam::bench
