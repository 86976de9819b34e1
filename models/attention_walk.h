// Where one query row looked: its softmax over all keys that it sees, of every head or of one, from the pages as they are
// served. The row is never held as a whole: what comes out is its mass by bins of neighbouring keys, its largest weights
// and the weights of chosen spans, so that half a million keys cost no more memory than a picture of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace bam {

struct AttentionSpec;
struct KvLayout;
struct ModelConfig;

// What somebody wants to see of the last row of a prompt.
struct AttentionLook {
  static constexpr int32_t kMaxBins = 4096, kMaxPeaks = 64, kMaxSpans = 16;
  static constexpr int64_t kMaxNumbers = 1 << 20;  // bins of all heads together

  int64_t position = -1;      // of the row, if the caller named it
  int layer = -1, head = -1;  // -1: all of them
  int64_t from = 0, to = -1;  // keys [from, to); -1: up to the query itself
  int32_t bins = 256;         // at most so many; a short range has one for every key
  int32_t peaks = 4;
  std::vector<std::pair<int64_t, int64_t>> spans;  // [begin, end)
};

// What is wrong with a look at the last row of so many tokens; empty: nothing.
std::string check_look(const AttentionLook& look, const ModelConfig& config, int64_t num_tokens);

struct HeadAttention {
  struct Peak {
    int64_t key = 0;
    float weight = 0, prior = 0;
    bool operator==(const Peak&) const = default;
  };

  int layer = 0, head = 0;
  std::vector<float> sum, max;  // [bins] of the weights
  std::vector<float> prior;     // [bins] sums of the weights that the prior alone would give
  float outside = 0;            // weight of keys that are not in [from, to)
  std::vector<Peak> peaks;      // in [from, to), largest first
  std::vector<float> spans;     // [spans]
  int64_t first_key = 0;        // nothing before it was read: the head provably gives it no weight

  bool operator==(const HeadAttention&) const = default;
};

struct AttentionReport {
  int64_t position = 0, from = 0, to = 0, bin_keys = 1;
  std::vector<HeadAttention> heads;

  bool operator==(const AttentionReport&) const = default;
};

class AttentionWalk {
 public:
  struct Group {
    int layer = 0, kv_head = 0;
  };

  // specs: [layers] of the whole model; queries: [layers][heads * head_dim] of the row at `position`, rotated where the
  // layer does so. The look has been checked.
  AttentionWalk(std::vector<AttentionSpec> specs, const AttentionLook& look, int64_t position,
                std::vector<float> queries);
  ~AttentionWalk();

  // Those whose keys are wanted; by layer.
  const std::vector<Group>& groups() const { return groups_; }
  // A page of group number `group` that holds keys from first_key on; those behind the query do not count. Different
  // groups may be added by different threads at once.
  void add(size_t group, int64_t first_key, const KvLayout& layout, const std::byte* page);
  // When all pages were added. Nothing: the model produced NaN.
  std::optional<AttentionReport> report() const;

 private:
  // Sum of exp(logit), kept as s * exp(m).
  struct Mass {
    double m, s;
    Mass();
    void add(double logit);
    void add(const Mass& other);
    double share_of(const Mass& total) const;
  };
  struct Candidate {
    double logit, prior;
    int64_t key;
  };
  struct Head;

  void add_key(Head& head, int64_t key, double logit, double prior) const;

  const AttentionLook look_;
  const std::vector<AttentionSpec> specs_;
  const std::vector<float> queries_;
  const int64_t position_;
  int64_t bin_keys_ = 1;
  size_t num_bins_ = 1;
  std::vector<Group> groups_;
  std::vector<size_t> first_head_;  // [groups] in heads_
  std::vector<Head> heads_;
};

}  // namespace bam
