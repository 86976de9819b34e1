#include "app/client/passkey_report.h"
#include "app/client/passkey_run.h"

#include <cstdio>

#include <fmt/format.h>

#include "app/client/report_options.h"
#include "app/client/terminal.h"
#include "app/command.h"
#include "app/commands.h"
#include "app/units.h"
#include "base/error.h"

namespace bam {
namespace {

using namespace client;

constexpr const char* kPasskeyFooter =
    R"(Tasks: passkey, niah_single_1/2/3, niah_multikey_1/2/3, niah_multivalue,
niah_multiquery (RULER's definitions).
Lengths are tokens, k = 1024: 500k is the paper's 512,000.

Examples:
  bam passkey --lengths 512,1k,2k,4k,8k,16k,32k,64k --depths 20 --out demo.jsonl --report demo.html
  bam passkey --lengths 500k --depths 5 --require-accuracy 1
  bam passkey --task niah_multikey --filler-file book.txt --lengths 4k,16k --depths 10 --repeats 3
  bam passkey --url http://other:8080 --model llama --lengths 4k --depths 5 --out llama.jsonl
  bam passkey report demo.jsonl llama.jsonl --report both.html --svg pictures

Exit code: 0; 1 if a length is below --require-accuracy, something failed, or Ctrl-C ended the run; 2 for a bad flag.)";

struct PasskeyFlags {
  PasskeyOptions run;
  ReportOptions report;
  std::string lengths = "512,1k,2k,4k";
  std::string depths = "20";
  std::string filler_file;
  std::string endpoint = "completions";
  std::string extra_body;
  bool no_prefix_cache = false;
  bool no_memory = false;
  double require_accuracy = -1;
  std::vector<std::string> files;
};

void add_run_options(CLI::App& app, PasskeyFlags* flags) {
  PasskeyOptions& run = flags->run;
  run.target.timeout_s = 3600;
  add_target_options(app, &run.target);
  app.add_option("--task", run.task.task, "What to hide and ask for")->capture_default_str();
  app.add_option("-l,--lengths", flags->lengths, "Prompt lengths in tokens")->capture_default_str();
  app.add_option("-d,--depths", flags->depths, "How many evenly spaced depths, or a list (0,0.5,1)")
      ->capture_default_str();
  app.add_option("-r,--repeats", run.repeats, "Prompts per length and depth")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--digits", run.task.digits, "Digits of a pass key")->check(CLI::Range(1, 18))->capture_default_str();
  app.add_option("--filler-file", flags->filler_file, "Natural text as haystack, sentence by sentence");
  app.add_option("--distractors", run.task.distractors_per_1k, "Sentences with other numbers per 1000 tokens")
      ->check(CLI::Range(0.0, 20.0))
      ->capture_default_str();
  app.add_option("-c,--concurrency", run.concurrency, "Requests in flight")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--seed", run.task.seed, "Names the keys and their order")->capture_default_str();
  app.add_option("--max-tokens", run.max_tokens, "Output tokens (default: what the answer needs)")
      ->check(CLI::Range(1, 100000));
  app.add_option("--endpoint", flags->endpoint, "completions or chat")
      ->check(CLI::IsMember({"completions", "chat"}))
      ->capture_default_str();
  app.add_option("--extra-body", flags->extra_body, "JSON object merged into every request");
  app.add_flag("--no-prefix-cache", flags->no_prefix_cache, "Ask the server to compute every prompt from scratch");
  app.add_flag("--no-memory", flags->no_memory, "Do not sample the server's /metrics");
  app.add_option("-o,--out", run.out, "Result file (JSONL); a second run with the same file continues it");
  app.add_option("--label", run.label, "Name of this run in reports (default: the model)");
  app.add_option("--require-accuracy", flags->require_accuracy, "Exit with 1 if a length is below this (0 to 1)")
      ->check(CLI::Range(0.0, 1.0));
  add_report_options(app, &flags->report);
}

int report_runs(const PasskeyFlags& flags) {
  std::vector<PasskeyRun> runs;
  std::vector<std::string> labels;
  for (const std::string& file : flags.files) {
    runs.push_back(load_passkey_run(file));
    labels.push_back(runs.back().label);
  }
  labels = distinct_labels(labels, flags.files);
  for (size_t i = 0; i < runs.size(); ++i) runs[i].label = labels[i];
  for (const PasskeyRun& run : runs) {
    fmt::print("{}: accuracy {}\n{}\n", run.label, format_percent(overall_accuracy(run.records)),
               align_table(passkey_table(run)));
  }
  make_passkey_report(runs, flags.report.title).write(flags.report);
  return 0;
}

int run_cells(PasskeyFlags& flags) {
  PasskeyOptions& run = flags.run;
  run.lengths = parse_count_list(flags.lengths, "--lengths");
  for (const int64_t length : run.lengths) {
    if (length < 1) throw UsageError("--lengths: {} is not a prompt length", length);
  }
  run.depths = parse_depths(flags.depths);
  run.endpoint = flags.endpoint == "chat" ? Endpoint::kChat : Endpoint::kCompletions;
  run.prefix_cache = !flags.no_prefix_cache;
  run.poll_memory = !flags.no_memory;
  if (!flags.filler_file.empty()) run.task.filler_text = read_text_file(flags.filler_file);
  if (!flags.extra_body.empty()) {
    run.extra_body = nlohmann::json::parse(flags.extra_body, nullptr, false);
    if (!run.extra_body.is_object()) throw UsageError("--extra-body is not a JSON object");
  }
  bool interrupted = false;
  const PasskeyRun result = run_passkey_task(run, &interrupted);
  fmt::print("{}: accuracy {}\n{}", result.label, format_percent(overall_accuracy(result.records)),
             align_table(passkey_table(result)));
  if (flags.report.any()) make_passkey_report({result}, flags.report.title).write(flags.report);
  if (interrupted) {
    fmt::print(stderr, "bam passkey: interrupted{}\n",
               run.out.empty() ? "" : "; the same command continues " + run.out);
    return 1;
  }
  int code = 0;
  for (const LengthStats& stats : stats_by_length(result.records)) {
    if (stats.answered == 0) code = 1;
    if (flags.require_accuracy < 0 || stats.accuracy() >= flags.require_accuracy) continue;
    fmt::print(stderr, "bam passkey: {} tokens: accuracy {} is below the required {}\n", format_count(stats.length),
               format_percent(stats.accuracy()), format_percent(flags.require_accuracy));
    code = 1;
  }
  return code;
}

}  // namespace

int run_passkey(int argc, char** argv) {
  CLI::App app("Passkey and needle accuracy over lengths x depths, against any OpenAI-compatible server.",
               "bam passkey");
  PasskeyFlags flags;
  add_run_options(app, &flags);
  app.footer(kPasskeyFooter);
  CLI::App* report = app.add_subcommand("report", "Draw one report from result files");
  report->add_option("FILES", flags.files, "Result files (JSONL)")->required();
  add_report_options(*report, &flags.report);
  return run_command(app, argc, argv, [&] { return report->parsed() ? report_runs(flags) : run_cells(flags); });
}

}  // namespace bam
