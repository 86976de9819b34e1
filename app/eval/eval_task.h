// A task in lm-eval's own format: a YAML file that says how documents become prompts, and documents as JSON. What a file asks
// for beyond that (Python functions, random few-shot examples, datasets of a hub) is refused by name, never passed over.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace bam::eval {

enum class OutputType : uint8_t { kMultipleChoice, kLoglikelihood, kRolling, kGenerate };

struct Filter {
  std::string name = "none";
  std::vector<std::string> steps;  // take_first, lowercase, uppercase, remove_whitespace
};

struct TextRules {  // of exact_match
  bool ignore_case = false, ignore_punctuation = false, ignore_numbers = false;
};

struct Metric {
  std::string name;
  TextRules rules;
};

// One document, ready to be asked.
struct Item {
  std::string context;               // description, examples, question
  std::vector<std::string> choices;  // multiple choice
  size_t gold = 0;                   // its right one
  std::vector<std::string> targets;  // otherwise: the text that is scored, or what may be answered
};

struct Task {
  std::string name;
  OutputType type = OutputType::kGenerate;
  std::string target_delimiter = " ";
  std::vector<Metric> metrics;
  std::vector<Filter> filters;  // kGenerate
  std::vector<std::string> until;
  int64_t max_gen_toks = 256;
  double temperature = 0;
  int num_fewshot = 0;
  std::string dataset;  // where the documents came from
  std::vector<Item> items;
};

struct TaskSource {
  std::string file;                // YAML
  std::string docs;                // JSON or JSON lines, or a folder of TASK.jsonl; empty: what the file names
  std::optional<int> num_fewshot;  // instead of the file's
  int64_t limit = 0;               // documents; 0: all
};

// Throws UsageError.
Task load_task(const TaskSource& source);

// The documents of a .json (a list, or an object whose one list they are) or of JSON lines.
std::vector<Json> read_documents(const std::string& path);

}  // namespace bam::eval
