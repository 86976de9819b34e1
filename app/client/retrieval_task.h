#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "app/client/passkey_prompt.h"
#include "app/client/prompt_builder.h"
#include "app/client/rng.h"

namespace bam::client {

// What the needles and the haystack are made of. The niah_* rows are the tasks of the RULER benchmark
// (needle type, haystack, number of keys, values and queries), in our own wording:
//
//   task             haystack  values  keys  values/key  queried keys
//   passkey          filler    digits  1     1           1             the BAM paper's wording
//   niah_single_1    filler    number  1     1           1
//   niah_single_2    text      number  1     1           1
//   niah_single_3    text      uuid    1     1           1
//   niah_multikey_1  text      number  4     1           1             three needles with other keys distract
//   niah_multikey_2  needles   number  1     1           1             every sentence of the haystack is a needle
//   niah_multikey_3  needles   uuid    1     1           1             … with UUIDs as keys and values
//   niah_multivalue  text      number  1     4           1             all four values are asked for
//   niah_multiquery  text      number  4     1           4             all four keys are asked for
enum class HaystackKind { kFiller, kText, kNeedles };

struct TaskInfo {
  std::string_view name;
  HaystackKind haystack;
  bool uuid_values;
  bool uuid_keys;
  int num_keys;
  int num_values;   // per key
  int num_queries;  // keys asked for
};

const std::vector<TaskInfo>& all_tasks();
const TaskInfo* find_task(std::string_view name);  // "niah_multikey" means _1; nullptr: unknown

struct TaskConfig;
// Throws UsageError for an unknown task, or one whose haystack does not go with the filler text given or missing.
const TaskInfo& check_task(const TaskConfig& config);

struct TaskConfig {
  std::string task = "passkey";
  int digits = 5;                 // of a pass key; magic numbers have 7 as in RULER
  std::string filler_text;        // natural text for the haystack; empty: the repeated filler
  double distractors_per_1k = 0;  // sentences with other numbers per 1000 tokens
  uint64_t seed = 0;
};

// A cell's prompt before the filler is laid out: small, so that a whole run can be prepared (and tokenised) ahead.
struct PreparedPrompt {
  int64_t length = 0;
  PromptParts parts;
  std::vector<std::string> answers;
  std::vector<size_t> answer_inserts;  // parts.inserts that hold answers[i]
  int64_t max_tokens = 0;
};

struct TaskPrompt {
  TokenIds ids;
  std::vector<std::string> answers;
  std::vector<int64_t> needle_at;  // token index of each needle that holds an answer
  int64_t max_tokens = 0;
};

// Builds the prompt of a cell. The same (config, tokenizer, length, depth, repeat) gives the same prompt, whatever
// was built before. Not thread-safe: it caches encoded sentences.
class TaskBuilder {
 public:
  // Throws what check_task throws.
  TaskBuilder(TaskConfig config, EncodeFn encode);

  // Does all the encoding, the haystack's included. Throws Error when `length` is too short for the task.
  PreparedPrompt prepare(int64_t length, double depth, int repeat);
  // Pure arithmetic on ids. `prepared` comes from this builder.
  TaskPrompt assemble(const PreparedPrompt& prepared) const;
  TaskPrompt build(int64_t length, double depth, int repeat) { return assemble(prepare(length, depth, repeat)); }
  // Fraction of the answers found in the output: passkey by its first digits, the others by substring as in RULER.
  double score(const std::vector<std::string>& answers, std::string_view output) const;
  const TaskInfo& info() const { return *info_; }

 private:
  void prepare_passkey(double depth, int repeat, PreparedPrompt* prepared) const;
  void prepare_niah(double depth, Rng& rng, PreparedPrompt* prepared) const;
  void add_distractors(int64_t length, Rng& rng, const std::vector<std::string>& answers, PromptParts* parts) const;
  // Encodes haystack units worth at least `tokens` tokens (fewer if the text is shorter: it is then repeated).
  void extend_units(int64_t tokens);
  std::string random_key(Rng& rng) const;
  std::string random_value(Rng& rng) const;

  TaskConfig config_;
  const TaskInfo* info_;
  PieceEncoder encoder_;
  std::vector<std::string> sentences_;
  std::vector<TokenIds> units_;
  int64_t unit_tokens_ = 0;
  size_t next_sentence_ = 0;
};

}  // namespace bam::client
