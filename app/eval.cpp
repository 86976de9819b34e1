#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "app/client/perplexity.h"
#include "app/client/report_options.h"
#include "app/client/terminal.h"
#include "app/command.h"
#include "app/commands.h"
#include "app/eval/eval_run.h"
#include "app/units.h"
#include "base/error.h"

namespace bam {
namespace {

using namespace client;

constexpr const char* kEvalFooter = R"(Examples:
  bam eval task arc_easy.yaml --docs arc_easy_test.jsonl --out arc.json --csv arc.csv
  bam eval task mmlu_*.yaml --docs mmlu --csv mmlu.csv
  bam eval task longbench_v2.yaml --docs data.json --max-length 128k
  bam eval perplexity book.txt --length 10k --window 512 --out demo.json
  bam eval perplexity book.txt --length 64k --sequences 4 --url http://other:8000 --label other
  bam eval report demo.json other.json --report perplexity.html --svg pictures

The server must tell prompt probabilities: echo with logprobs, or prompt_logprobs.)";

struct EvalFlags {
  eval::EvalOptions task;
  std::string docs, max_length, csv;
  int num_fewshot = -1;
  int64_t limit = 0;
  PerplexityOptions run;
  ReportOptions report;
  std::string length = "10k", window = "512", out;
  std::vector<std::string> files;
};

int run_perplexity_command(EvalFlags& flags) {
  flags.run.length = parse_count(flags.length, "--length");
  flags.run.window = parse_count(flags.window, "--window");
  if (flags.run.length < 1) throw UsageError("--length must be at least 1");
  if (flags.run.window < 1) throw UsageError("--window must be at least 1");
  const nlohmann::json result = run_perplexity(flags.run);
  if (!flags.out.empty()) write_text_file(flags.out, result.dump(1) + "\n");
  fmt::print("{}", align_table(perplexity_table({result})));
  if (flags.report.any()) make_perplexity_report({result}, flags.report.title).write(flags.report);
  return 0;
}

int run_task_command(EvalFlags& flags) {
  if (!flags.docs.empty() && flags.files.size() > 1 && !std::filesystem::is_directory(flags.docs)) {
    throw UsageError("--docs: {} is for one task; several take a folder with a TASK.jsonl for each", flags.docs);
  }
  for (const std::string& file : flags.files) {
    eval::TaskSource& source = flags.task.tasks.emplace_back();
    source.file = file;
    source.docs = flags.docs;
    source.limit = flags.limit;
    if (flags.num_fewshot >= 0) source.num_fewshot = flags.num_fewshot;
  }
  if (!flags.max_length.empty()) {
    flags.task.max_length = parse_count(flags.max_length, "--max-length");
    if (flags.task.max_length < 4) throw UsageError("--max-length must be at least 4");
  }
  const Json result = eval::run_tasks(flags.task);
  if (!flags.out.empty()) write_text_file(flags.out, result.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  if (!flags.csv.empty()) write_text_file(flags.csv, eval::eval_csv(result));
  fmt::print("{}", align_table(eval::eval_table(result)));
  return 0;
}

int report_perplexity(const EvalFlags& flags) {
  std::vector<nlohmann::json> results;
  std::vector<std::string> labels;
  for (const std::string& file : flags.files) {
    results.push_back(load_perplexity_result(file));
    labels.push_back(results.back().value("label", "?"));
  }
  labels = distinct_labels(labels, flags.files);
  for (size_t i = 0; i < results.size(); ++i) results[i]["label"] = labels[i];
  fmt::print("{}", align_table(perplexity_table(results)));
  make_perplexity_report(results, flags.report.title).write(flags.report);
  return 0;
}

}  // namespace

int run_eval(int argc, char** argv) {
  CLI::App app("Evaluation of a served model.", "bam eval");
  EvalFlags flags;
  app.footer(kEvalFooter);
  app.require_subcommand(1);
  CLI::App* task = app.add_subcommand("task", "Tasks in lm-eval's format, scored as it scores them");
  task->add_option("FILES", flags.files, "Task files (YAML)")->required();
  flags.task.target.timeout_s = 3600;
  add_target_options(*task, &flags.task.target);
  task->add_option("--docs", flags.docs,
                   "Documents (JSON, JSON lines) instead of those that the task names, or a folder of TASK.jsonl");
  task->add_option("--num-fewshot", flags.num_fewshot, "Examples before a question, instead of the task's")
      ->check(CLI::NonNegativeNumber);
  task->add_option("--limit", flags.limit, "Only the first documents of each task")->check(CLI::PositiveNumber);
  task->add_option("--max-length", flags.max_length, "Tokens of a request; more are cut off at its beginning");
  task->add_option("-c,--concurrency", flags.task.concurrency, "Requests in flight")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  task->add_option("-o,--out", flags.out, "Result file (JSON)");
  task->add_option("--csv", flags.csv, "The table as CSV");
  task->add_flag("--samples", flags.task.samples, "Keep every question and answer in the result file");
  task->add_option("--label", flags.task.label, "Name of this run (default: the model)");
  CLI::App* perplexity = app.add_subcommand("perplexity", "Perplexity of a text by position");
  perplexity->add_option("FILE", flags.run.file, "Text file (UTF-8)")->required();
  flags.run.target.timeout_s = 3600;
  add_target_options(*perplexity, &flags.run.target);
  perplexity->add_option("-l,--length", flags.length, "Tokens scored per sequence")->capture_default_str();
  perplexity->add_option("-w,--window", flags.window, "Positions averaged into one figure")->capture_default_str();
  perplexity->add_option("-n,--sequences", flags.run.max_sequences, "At most so many sequences (default: all)")
      ->check(CLI::PositiveNumber);
  perplexity->add_option("-c,--concurrency", flags.run.concurrency, "Requests in flight")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  perplexity->add_option("-o,--out", flags.out, "Result file (JSON)");
  perplexity->add_option("--label", flags.run.label, "Name of this run in reports (default: the model)");
  add_report_options(*perplexity, &flags.report);
  CLI::App* report = app.add_subcommand("report", "Draw one report from result files");
  report->add_option("FILES", flags.files, "Result files (JSON)")->required();
  add_report_options(*report, &flags.report);
  return run_command(app, argc, argv, [&] {
    if (task->parsed()) return run_task_command(flags);
    return report->parsed() ? report_perplexity(flags) : run_perplexity_command(flags);
  });
}

}  // namespace bam
