#include <cstdio>

#include <fmt/format.h>

#include "app/client/perplexity.h"
#include "app/client/report_options.h"
#include "app/client/terminal.h"
#include "app/command.h"
#include "app/commands.h"
#include "app/units.h"
#include "base/error.h"

namespace bam {
namespace {

using namespace client;

constexpr const char* kFooter = R"(Examples:
  bam eval perplexity book.txt --length 10k --window 512 --out demo.json
  bam eval perplexity book.txt --length 64k --sequences 4 --url http://other:8000 --label other
  bam eval report demo.json other.json --report perplexity.html --svg pictures

The server must tell prompt probabilities: echo with logprobs, or prompt_logprobs.)";

struct Flags {
  PerplexityOptions run;
  ReportOptions report;
  std::string length = "10k", window = "512", out;
  std::vector<std::string> files;
};

int run_perplexity_command(Flags& flags) {
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

int report_files(const Flags& flags) {
  std::vector<nlohmann::json> results;
  for (const std::string& file : flags.files) results.push_back(load_perplexity_result(file));
  fmt::print("{}", align_table(perplexity_table(results)));
  make_perplexity_report(results, flags.report.title).write(flags.report);
  return 0;
}

}  // namespace

int run_eval(int argc, char** argv) {
  CLI::App app("Evaluation of a served model.", "bam eval");
  Flags flags;
  app.footer(kFooter);
  app.require_subcommand(1);
  CLI::App* perplexity = app.add_subcommand("perplexity", "Perplexity of a text by position");
  perplexity->add_option("file", flags.run.file, "Text file (UTF-8)")->required();
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
  report->add_option("files", flags.files, "Result files (JSON)")->required();
  add_report_options(*report, &flags.report);
  return run_command(app, argc, argv,
                     [&] { return report->parsed() ? report_files(flags) : run_perplexity_command(flags); });
}

}  // namespace bam
