#include "app/eval/eval_metrics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace bam::eval {
namespace {

TEST(EvalMetrics, LengthsNormaliseByCharacters) {
  Task task;
  task.type = OutputType::kMultipleChoice;
  task.metrics = {{"acc", {}}, {"acc_norm", {}}, {"acc_bytes", {}}};
  task.items = {{"q", {"no", "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"}, 1, {}}, {"q", {"a", "b"}, 0, {}}};
  // -3 / 2 < -5.5 / 4 characters, but -3 / 2 > … in bytes -5.5 / 8.
  const std::vector<Answer> answers = {{{{-3, true}, {-5.5, false}}, ""}, {{{-1, true}, {-1, true}}, ""}};
  const auto results = score(task, answers);
  EXPECT_EQ(results[0].value, 0.5);  // the second by the first of two equals
  EXPECT_EQ(results[1].value, 1.0);
  EXPECT_EQ(results[2].value, 1.0);
  EXPECT_DOUBLE_EQ(results[0].standard_error, 0.5);
  EXPECT_LT(results[0].interval.first, 0.5);
}

TEST(EvalMetrics, PerplexityIsOverAllDocumentsTogether) {
  Task task;
  task.type = OutputType::kRolling;
  task.metrics = {{"word_perplexity", {}}, {"byte_perplexity", {}}, {"bits_per_byte", {}}};
  task.items = {{"", {}, 0, {"one two"}}, {"", {}, 0, {" three\n\n"}}};
  const std::vector<Answer> answers = {{{{-4, true}}, ""}, {{{-8, true}}, ""}};
  const auto results = score(task, answers);
  EXPECT_DOUBLE_EQ(results[0].value, std::exp(12.0 / 5));  // "", three, "" are three words to a regular expression
  EXPECT_DOUBLE_EQ(results[1].value, std::exp(12.0 / 15));
  EXPECT_DOUBLE_EQ(results[2].value, 12.0 / 15 / std::log(2.0));
  EXPECT_LT(results[2].interval.first, results[2].value);
}

TEST(EvalMetrics, FiltersAndMatches) {
  EXPECT_EQ(apply_filter({"x", {"lowercase", "remove_whitespace"}}, "  A b"), "a b");
  EXPECT_EQ(apply_filter({"none", {"take_first"}}, " A"), " A");
  EXPECT_EQ(exact_match("Paris", "paris", {}), 0);
  EXPECT_EQ(exact_match("Paris.", "paris", {.ignore_case = true, .ignore_punctuation = true}), 1);
}

}  // namespace
}  // namespace bam::eval
