#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/client/html_page.h"
#include "app/client/target.h"

namespace bam::client {

inline constexpr const char* kPerplexitySchema = "bam.perplexity/1";

struct PerplexityOptions {
  TargetOptions target;
  std::string file;
  int64_t length = 10240;  // tokens scored per sequence; one more is sent
  int64_t window = 512;
  int64_t max_sequences = 0;  // 0: the whole text
  int concurrency = 1;
  std::string label;
};

// Mean and spread of the nats per token at positions [begin, end), over all sequences.
struct PositionWindow {
  int64_t begin = 0, end = 0;
  int64_t tokens = 0;
  double sum = 0, sum_squares = 0;
  void add(double nats) { ++tokens, sum += nats, sum_squares += nats * nats; }
  double mean() const { return sum / static_cast<double>(tokens); }
  double stddev() const;
  double standard_error() const;  // of the mean, tokens taken as independent
  double perplexity() const;
};

// The natural-log probabilities of ids[1..] in an answer to an echo or prompt_logprobs request; why not, if there are
// none. ids[0] has no predecessor: its entry must be null.
std::string read_prompt_logprobs(const nlohmann::json& reply, const TokenIds& ids, std::vector<double>* logprobs);

// Cuts the text into sequences of `length` + 1 tokens without special tokens, scores each with the server, and
// averages by position, as the BAM paper's evaluation does. Returns the result file's content.
nlohmann::json run_perplexity(const PerplexityOptions& options);
nlohmann::json load_perplexity_result(const std::string& path);  // throws UsageError

Table perplexity_table(const std::vector<nlohmann::json>& results);
Report make_perplexity_report(const std::vector<nlohmann::json>& results, const std::string& title);

}  // namespace bam::client
