#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/bam.h"
#include "tests/reference/oracle.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/temp_dir.h"

// What tests of BamModel on any backend share: the list of variants, checkpoints of them, and a model with its KV
// cache.
namespace bam::reference {

struct Variant {
  std::string name;
  testing::CheckpointSpec spec;
  friend std::ostream& operator<<(std::ostream& stream, const Variant& variant) { return stream << variant.name; }
};

// Every row of the model family: encodings x SSMax x prior forms x scopes x theta_mu x grouped heads, with head sizes
// 32 ... 128 spread over them.
std::vector<Variant> all_variants();
// Priors at and beyond the edge of what training produces.
std::vector<Variant> extreme_variants();
// One of all_variants() by name.
Variant find_variant(const std::string& name);

// A checkpoint folder in a temporary directory, and its loaded form.
class TestCheckpoint {
 public:
  explicit TestCheckpoint(const testing::CheckpointSpec& spec);
  const ModelConfig& config() const { return config_; }
  const CheckpointWeights& weights() const { return weights_; }

 private:
  testing::TempDir dir_;
  ModelConfig config_;
  CheckpointWeights weights_;
};

// `weights` with every matrix of the layers and the output head rounded to kF16 or kBF16, as a model does that was
// asked for that weight type. The token embedding keeps its own type.
class RoundedWeights {
 public:
  RoundedWeights(const CheckpointWeights& weights, DType dtype);
  const CheckpointWeights& weights() const { return weights_; }

 private:
  WeightView rounded(const WeightView& view, DType dtype);
  CheckpointWeights weights_;
  std::vector<std::unique_ptr<std::vector<float>>> storage_;
};

// What storing a head vector in the KV cache does to it; nothing for kF32.
Oracle::KvRounding kv_rounding(DType kv_dtype);

std::vector<int32_t> random_tokens(int64_t n, int64_t vocab, uint32_t seed = 11);

// NaN if any element of a or b is.
struct Difference {
  double largest = 0;
  double root_mean_square = 0;
};
template <typename T>
Difference difference(const std::vector<T>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) throw std::invalid_argument("sizes differ");
  Difference result;
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - b[i]);
    result.largest = std::max(result.largest, d);
    sum += d * d;
  }
  result.root_mean_square = std::sqrt(sum / static_cast<double>(a.size()));
  if (std::isnan(sum)) result.largest = sum;
  return result;
}
inline double max_difference(const std::vector<float>& a, const std::vector<double>& b) {
  return difference(a, b).largest;
}

struct HarnessOptions {
  DType weight_dtype = DType::kF32;
  DType kv_dtype = DType::kF32;
  int page_size = 64;
  int num_threads = 2;
  int num_sequences = 1;
  int64_t max_tokens = 320;  // per sequence
  AttentionOptions attention;
  bool use_reach = true;
  bool resident_tables = true;       // devices may keep block tables and take over changes
  std::shared_ptr<Backend> backend;  // null: a CPU backend with num_threads
};

// A model and a cache for a few sequences whose pages are scattered and start out as NaN.
class ModelHarness {
 public:
  ModelHarness(const TestCheckpoint& checkpoint, const HarnessOptions& options = {});

  // Tokens of one sequence at positions start_pos, start_pos + 1, ...; all earlier positions must have been computed.
  struct Piece {
    int sequence = 0;
    std::vector<int32_t> tokens;
    int64_t start_pos = 0;
  };
  // One forward call over all pieces; logits [logit_rows, vocab]. Rows count over the pieces in order.
  std::vector<float> step(const std::vector<Piece>& pieces, const std::vector<int32_t>& logit_rows);
  // The same with the logits of every row.
  std::vector<float> step(const std::vector<Piece>& pieces);

  // A whole prompt in chunks: logits [n, vocab].
  std::vector<float> logits(const std::vector<int32_t>& tokens, int64_t chunk, int sequence = 0);

  // Forgets pages that no query at `position` or later can reach: their contents become NaN and their table entries
  // kNoPage. Returns how many there were.
  int64_t drop_unreachable_pages(int64_t position, int sequence = 0);

  BamModel& model() { return *model_; }

 private:
  void poison(int32_t page);
  int32_t& table_entry(int sequence, int64_t group, int64_t page);

  HarnessOptions options_;
  std::shared_ptr<Backend> backend_;
  std::unique_ptr<BamModel> model_;
  std::unique_ptr<DeviceBuffer> memory_;
  KvCacheView kv_;
  int64_t pages_per_group_;
  std::vector<int32_t> block_tables_;    // [sequences][groups][pages_per_group]
  std::vector<TableHistory> histories_;  // [sequences]
};

}  // namespace bam::reference
