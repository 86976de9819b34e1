#include "app/eval/eval_metrics.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

#include "app/client/stats.h"

namespace bam::eval {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double k95 = 1.959963984540054;

std::string change_case(std::string text, int (*change)(int)) {
  for (char& c : text) c = static_cast<char>(change(static_cast<unsigned char>(c)));
  return text;
}

MetricResult of_mean(const Metric& metric, const std::string& filter, const std::vector<double>& values) {
  MetricResult result{metric.name, filter, 0, kNaN, {kNaN, kNaN}};
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += value;
  result.value = sum / n;
  if (values.size() > 1) {
    double squares = 0;
    for (const double value : values) squares += (value - result.value) * (value - result.value);
    result.standard_error = std::sqrt(squares / (n - 1)) / std::sqrt(n);
  }
  const bool share = std::ranges::all_of(values, [](double v) { return v == 0 || v == 1; });
  result.interval =
      share ? client::wilson_interval(sum, n)
            : std::pair(result.value - k95 * result.standard_error, result.value + k95 * result.standard_error);
  return result;
}

// exp(-sum a / sum b), or the exponent in bits; the interval by linearising the ratio over documents.
MetricResult of_ratio(const std::string& name, const std::vector<double>& logprobs, const std::vector<double>& sizes) {
  double nats = 0, size = 0;
  for (const double value : logprobs) nats += value;
  for (const double value : sizes) size += value;
  const double rate = -nats / size;
  const auto n = static_cast<double>(logprobs.size());
  double squares = 0;
  for (size_t i = 0; i < logprobs.size(); ++i) {
    const double residual = -logprobs[i] - rate * sizes[i];
    squares += residual * residual;
  }
  const double error = logprobs.size() > 1 ? std::sqrt(squares * n / (n - 1)) / size : kNaN;
  const bool bits = name == "bits_per_byte";
  const auto shown = [&](double r) { return bits ? r / std::log(2.0) : std::exp(r); };
  return {name,
          "none",
          shown(rate),
          bits ? error / std::log(2.0) : shown(rate) * error,
          {shown(rate - k95 * error), shown(rate + k95 * error)}};
}

// re.split(r"\s+", text) counts an empty piece before a leading blank and behind a trailing one.
double count_words(const std::string& text) {
  double words = 1;
  bool in_space = false;
  for (const char byte : text) {
    const auto c = static_cast<unsigned char>(byte);
    if (std::isspace(c) != 0 && !in_space) ++words;
    in_space = std::isspace(c) != 0;
  }
  return words;
}

double length_in_characters(const std::string& text) {
  return static_cast<double>(std::ranges::count_if(text, [](unsigned char c) { return (c & 0xc0) != 0x80; }));
}

std::vector<MetricResult> score_choices(const Task& task, const std::vector<Answer>& answers) {
  std::vector<MetricResult> results;
  for (const Metric& metric : task.metrics) {
    std::vector<double> hits;
    for (size_t i = 0; i < answers.size(); ++i) {
      const Item& item = task.items[i];
      size_t best = 0;
      double highest = 0;
      for (size_t c = 0; c < item.choices.size(); ++c) {
        const std::string& choice = item.choices[c];
        const double by = metric.name == "acc_norm"    ? length_in_characters(choice)
                          : metric.name == "acc_bytes" ? static_cast<double>(choice.size())
                                                       : 1;
        const double value = answers[i].scored[c].logprob / by;
        if (c == 0 || value > highest) best = c, highest = value;
      }
      hits.push_back(best == item.gold ? 1 : 0);
    }
    results.push_back(of_mean(metric, "none", hits));
  }
  return results;
}

std::vector<MetricResult> score_texts(const Task& task, const std::vector<Answer>& answers) {
  std::vector<MetricResult> results;
  for (const Metric& metric : task.metrics) {
    std::vector<double> logprobs, sizes, hits;
    for (size_t i = 0; i < answers.size(); ++i) {
      const std::string& text = task.items[i].targets.front();
      logprobs.push_back(answers[i].scored.front().logprob);
      hits.push_back(answers[i].scored.front().greedy ? 1 : 0);
      sizes.push_back(metric.name == "word_perplexity" ? count_words(text)
                      : metric.name == "perplexity"    ? 1
                                                       : static_cast<double>(text.size()));
    }
    results.push_back(metric.name == "acc" ? of_mean(metric, "none", hits) : of_ratio(metric.name, logprobs, sizes));
  }
  return results;
}

// RULER's: how many of the references stand in the answer.
double string_match(const std::string& answer, const std::vector<std::string>& references, bool all) {
  const std::string text = change_case(answer, std::tolower);
  double found = 0;
  for (const std::string& reference : references) found += text.find(change_case(reference, std::tolower)) != text.npos;
  if (!all) return found > 0 ? 1 : 0;
  return found / static_cast<double>(references.size());
}

std::vector<MetricResult> score_generations(const Task& task, const std::vector<Answer>& answers) {
  std::vector<MetricResult> results;
  for (const Filter& filter : task.filters) {
    for (const Metric& metric : task.metrics) {
      std::vector<double> values;
      for (size_t i = 0; i < answers.size(); ++i) {
        const std::string text = apply_filter(filter, answers[i].text);
        const std::vector<std::string>& references = task.items[i].targets;
        if (metric.name != "exact_match") {
          values.push_back(string_match(text, references, metric.name == "string_match_all"));
          continue;
        }
        double best = 0;
        for (const std::string& reference : references)
          best = std::max(best, exact_match(text, reference, metric.rules));
        values.push_back(best);
      }
      results.push_back(of_mean(metric, filter.name, values));
    }
  }
  return results;
}

}  // namespace

std::string apply_filter(const Filter& filter, std::string text) {
  for (const std::string& step : filter.steps) {
    if (step == "lowercase") text = change_case(std::move(text), std::tolower);
    if (step == "uppercase") text = change_case(std::move(text), std::toupper);
    if (step == "remove_whitespace") text.erase(0, std::min(text.find_first_not_of(" \t\n\r\v\f"), text.size()));
  }
  return text;
}

double exact_match(const std::string& answer, const std::string& reference, const TextRules& rules) {
  const auto prepare = [&](std::string text) {
    if (rules.ignore_case) text = change_case(std::move(text), std::tolower);
    if (rules.ignore_punctuation) std::erase_if(text, [](unsigned char c) { return c < 0x80 && std::ispunct(c) != 0; });
    if (rules.ignore_numbers) std::erase_if(text, [](unsigned char c) { return c >= '0' && c <= '9'; });
    return text;
  };
  return prepare(answer) == prepare(reference) ? 1 : 0;
}

std::vector<MetricResult> score(const Task& task, const std::vector<Answer>& answers) {
  switch (task.type) {
    case OutputType::kMultipleChoice: return score_choices(task, answers);
    case OutputType::kLoglikelihood:
    case OutputType::kRolling: return score_texts(task, answers);
    case OutputType::kGenerate: return score_generations(task, answers);
  }
  return {};
}

}  // namespace bam::eval
