#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/client/completion_call.h"
#include "app/client/prompt_builder.h"
#include "app/client/rng.h"

namespace bam::client {

// "512" | "uniform:100:2000" | "normal:MEAN:STDDEV" | "lognormal:MEDIAN:SIGMA", the last two optionally followed by
// :MIN:MAX. Counts may be written 8k.
class LengthDistribution {
 public:
  static LengthDistribution parse(std::string_view text, std::string_view flag);  // throws UsageError
  int64_t sample(Rng& rng) const;
  const std::string& text() const { return text_; }

 private:
  enum class Kind { kFixed, kUniform, kNormal, kLogNormal };
  Kind kind_ = Kind::kFixed;
  double a_ = 1, b_ = 0, low_ = 1, high_ = 1e9;
  std::string text_ = "1";
};

// Gaps between arrivals as in `vllm bench serve`: gamma with shape = burstiness and mean 1 / rate. 1 is a Poisson
// process, below 1 is burstier, far above 1 approaches a steady beat.
double arrival_gap_s(Rng& rng, double requests_per_s, double burstiness);

struct WorkItem {
  TokenIds ids;             // not empty: sent as ids, the exact prompt length
  std::string text;         // else this text,
  nlohmann::json messages;  // or these messages (chat)
  int64_t output_tokens = 0;
};

// One conversation or prompt of a data set.
struct DatasetEntry {
  std::string prompt;
  nlohmann::json messages;    // for chat
  int64_t output_tokens = 0;  // 0: not said; then the length of `completion`, then --output-len
  std::string completion;
};
// A JSON array or JSONL of ShareGPT conversations ({"conversations":[{"from","value"}]}), chat messages
// ({"messages":[…]}) or plain prompts ({"prompt", optional "completion"/"output_len"/"max_tokens"}).
// Throws UsageError that names the line.
std::vector<DatasetEntry> load_dataset(const std::string& path);

struct WorkloadConfig {
  LengthDistribution input, output;
  double prefix_share = 0;  // of the input tokens are common to all requests of a group
  int num_prefixes = 1;
  uint64_t seed = 0;
  Endpoint endpoint = Endpoint::kCompletions;
  double tokens_per_word = 1;  // for prompts made of text
};

// Request i of the load: the same for the same seed, whatever the order of asking.
class Workload {
 public:
  // Random prompts: ids drawn from `pool` (ordinary tokens of the model), or words when the pool is empty.
  Workload(WorkloadConfig config, TokenIds pool);
  // Prompts of a data set in an order shuffled by the seed, repeated if there are too few. `encode` may be empty: then
  // answers without a given length get about one token per four characters.
  Workload(WorkloadConfig config, std::vector<DatasetEntry> entries, const EncodeFn& encode);

  WorkItem item(size_t index) const;

 private:
  WorkItem random_item(size_t index) const;
  WorkItem dataset_item(size_t index) const;

  WorkloadConfig config_;
  TokenIds pool_;
  std::vector<DatasetEntry> entries_;
  std::vector<size_t> order_;
};

// Ordinary tokens for random prompts: everything that a list of plain words encodes to.
TokenIds token_pool(const EncodeFn& encode);

}  // namespace bam::client
