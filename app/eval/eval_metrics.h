// Scores as lm-eval computes them, to the last digit: sums in the order of the documents, in double precision.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/eval/eval_task.h"

namespace bam::eval {

// What the model said about one document.
struct Answer {
  struct Scored {
    double logprob = 0;
    bool greedy = true;
  };
  std::vector<Scored> scored;  // multiple choice: by choice; log-likelihood and rolling: one
  std::string text;            // generation, as it came
};

struct MetricResult {
  std::string metric, filter;  // lm-eval's "acc,none"
  double value = 0;
  double standard_error = 0;           // lm-eval's where it has a formula; NaN: one document
  std::pair<double, double> interval;  // 95 %: Wilson's of a share, else from the standard error
};

// Generation: what is left of an answer behind the filter.
std::string apply_filter(const Filter& filter, std::string text);
// 1 or 0 as lm-eval's exact_match.
double exact_match(const std::string& answer, const std::string& reference, const TextRules& rules);

std::vector<MetricResult> score(const Task& task, const std::vector<Answer>& answers);

}  // namespace bam::eval
