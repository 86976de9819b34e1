#include <cstdio>
#include <limits>

#include <fmt/format.h>

#include "app/client/bench_report.h"
#include "app/client/bench_result.h"
#include "app/client/bench_run.h"
#include "app/client/report_options.h"
#include "app/client/terminal.h"
#include "app/command.h"
#include "app/commands.h"
#include "app/units.h"
#include "base/error.h"

namespace bam {
namespace {

using namespace client;

constexpr const char* kBenchFooter =
    R"(Load: --concurrency N keeps N requests in flight (closed loop); --request-rate
R sends R per second whatever the server does (open loop), with --concurrency
as an upper limit. Lengths: 512, uniform:100:2000, normal:MEAN:STDDEV,
lognormal:MEDIAN:SIGMA, the last two with optional :MIN:MAX. TTFT, TPOT, ITL
and E2E are those of vllm bench serve.

Examples:
  bam bench --concurrency 8 --num-requests 200 --input-len 512 --output-len 128 --out ours.json --report ours.html
  bam bench --request-rate 20 --burstiness 0.5 --input-len lognormal:800:0.8 --output-len uniform:16:256 --goodput ttft:500 tpot:50
  bam bench --concurrency 2 --input-len 64k --output-len 8 --probe 250
  bam bench --dataset sharegpt.json --endpoint chat --request-rate 4 --url http://other:8000
  bam bench --compare ours.json theirs.json
  bam bench report ours.json theirs.json --report both.html --svg pictures --markdown both.md

Exit code: 0; 1 if nothing could be measured or more than --max-failures failed; 2 for a bad flag.)";

struct BenchFlags {
  BenchOptions run;
  ReportOptions report;
  std::string input_len = "512", output_len = "128", endpoint = "completions", rate, extra_body, out;
  std::vector<std::string> goodput, compare, files;
  bool no_ignore_eos = false, no_keep_alive = false, detail = false;
  int64_t num_requests = 0, max_failures = -1;
};

void add_load_options(CLI::App& app, BenchFlags* flags) {
  BenchOptions& run = flags->run;
  app.add_option("-c,--concurrency", run.concurrency, "Requests in flight (default 8, or no limit with --request-rate)")
      ->check(CLI::Range(1, 100000));
  app.add_option("--request-rate", flags->rate, "Requests per second, or inf for all at once");
  app.add_option("--burstiness", run.burstiness, "1 = Poisson arrivals, < 1 burstier, > 1 steadier")
      ->check(CLI::Range(0.01, 1e6))
      ->capture_default_str();
  app.add_option("-n,--num-requests", flags->num_requests, "Requests to send (default 100; no limit with --duration)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32));
  app.add_option("--duration", run.duration_s, "Start no request after this many seconds")->check(CLI::PositiveNumber);
  app.add_option("--warmup", run.warmup, "Requests before the measurement")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("-i,--input-len", flags->input_len, "Prompt length in tokens")->capture_default_str();
  app.add_option("--output-len", flags->output_len, "Tokens to generate")->capture_default_str();
  app.add_option("--prefix-share", run.prefix_share, "Share of each prompt that is common to a group (0 to 1)")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--num-prefixes", run.num_prefixes, "Groups with a common prefix")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--dataset", run.dataset, "ShareGPT, messages or prompt records, JSON or JSONL");
  app.add_option("--seed", run.seed, "Names the prompts, lengths and arrivals")->capture_default_str();
  app.add_option("--goodput", flags->goodput, "Targets in ms: ttft:500 tpot:50 e2el:3000");
  app.add_option("--probe", run.probe_interval_ms, "Send a short request every so many ms beside the load")
      ->check(CLI::Range(1.0, 3.6e6));
  app.add_option("--probe-input-len", run.probe_input, "Tokens of a probe")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--probe-output-len", run.probe_output, "Tokens a probe asks for")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
}

void add_request_options(CLI::App& app, BenchFlags* flags) {
  app.add_option("--endpoint", flags->endpoint, "completions or chat")
      ->check(CLI::IsMember({"completions", "chat"}))
      ->capture_default_str();
  app.add_option("--temperature", flags->run.temperature, "Sampling temperature")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str();
  app.add_flag("--no-ignore-eos", flags->no_ignore_eos, "Let the model end early (default: exactly --output-len)");
  app.add_flag("--no-keep-alive", flags->no_keep_alive, "A new connection for every request");
  app.add_option("--extra-body", flags->extra_body, "JSON object merged into every request");
  app.add_option("-o,--out", flags->out, "Result file (JSON)");
  app.add_flag("--detail", flags->detail, "Keep every request in the result file");
  app.add_option("--label", flags->run.label, "Name of this run in tables and reports (default: the model)");
  app.add_option("--max-failures", flags->max_failures, "Exit with 1 if more requests failed")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--compare", flags->compare, "Only print a table of these result files");
}

std::vector<nlohmann::json> load_all(const std::vector<std::string>& files) {
  std::vector<nlohmann::json> results;
  for (const std::string& file : files) results.push_back(load_bench_result(file));
  return results;
}

int show_files(const BenchFlags& flags, const std::vector<std::string>& files) {
  const std::vector<nlohmann::json> results = load_all(files);
  fmt::print("{}", align_table(bench_table(results)));
  make_bench_report(results, flags.report.title).write(flags.report);
  return 0;
}

void print_problems(const nlohmann::json& result) {
  for (const auto& example : result["errors"]["examples"]) {
    fmt::print(stderr, "failed ({}): {}\n", example["kind"].get<std::string>(), example["message"].get<std::string>());
  }
  const auto& tokens = result["tokens"];
  const auto note = [&](const char* key, const char* text) {
    if (tokens[key].get<int64_t>() > 0)
      fmt::print(stderr, "note: {} request(s) {}\n", tokens[key].get<int64_t>(), text);
  };
  note("requests_without_usage", "without usage: output tokens are counted as stream events");
  note("prompt_count_differs", "where the server counted another prompt length than was sent");
  note("output_count_differs", "with another number of output tokens than asked for");
  if (result["client"]["busy_fraction"].get<double>() > 0.8) {
    fmt::print(stderr, "note: this client was busy {} of the time; spread the load over several\n",
               format_percent(result["client"]["busy_fraction"].get<double>()));
  }
}

int run_load_test(BenchFlags& flags) {
  BenchOptions& run = flags.run;
  run.input = LengthDistribution::parse(flags.input_len, "--input-len");
  run.output = LengthDistribution::parse(flags.output_len, "--output-len");
  run.endpoint = flags.endpoint == "chat" ? Endpoint::kChat : Endpoint::kCompletions;
  run.ignore_eos = !flags.no_ignore_eos;
  run.keep_alive = !flags.no_keep_alive;
  run.slo = parse_slo(flags.goodput);
  if (!flags.rate.empty()) {
    run.request_rate =
        flags.rate == "inf" ? std::numeric_limits<double>::infinity() : parse_number(flags.rate, "--request-rate");
    if (run.request_rate <= 0) throw UsageError("--request-rate: {} is not positive", flags.rate);
    if (flags.rate == "inf" && flags.num_requests == 0 && run.duration_s > 0) {
      throw UsageError("--request-rate inf needs --num-requests");
    }
  } else if (run.concurrency == 0) {
    run.concurrency = 8;
  }
  run.num_requests = flags.num_requests > 0 ? flags.num_requests : run.duration_s > 0 ? 0 : 100;
  if (!flags.extra_body.empty()) {
    run.extra_body = nlohmann::json::parse(flags.extra_body, nullptr, false);
    if (!run.extra_body.is_object()) throw UsageError("--extra-body is not a JSON object");
  }
  const nlohmann::json result = bench_to_json(run_load(run), flags.detail);
  if (!flags.out.empty()) {
    write_text_file(flags.out, result.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }
  fmt::print("{}", align_table(bench_table({result})));
  print_problems(result);
  if (flags.report.any()) make_bench_report({result}, flags.report.title).write(flags.report);
  const auto failed = result["failed"].get<int64_t>();
  const bool too_many = flags.max_failures >= 0 && failed > flags.max_failures;
  return result["completed"].get<int64_t>() == 0 || too_many ? 1 : 0;
}

}  // namespace

int run_bench(int argc, char** argv) {
  CLI::App app("Load test of any OpenAI-compatible server.", "bam bench");
  BenchFlags flags;
  flags.run.target.timeout_s = 600;
  add_target_options(app, &flags.run.target);
  add_load_options(app, &flags);
  add_request_options(app, &flags);
  add_report_options(app, &flags.report);
  app.footer(kBenchFooter);
  CLI::App* report = app.add_subcommand("report", "Draw one report from result files");
  report->add_option("FILES", flags.files, "Result files (JSON)")->required();
  add_report_options(*report, &flags.report);
  return run_command(app, argc, argv, [&] {
    if (report->parsed()) return show_files(flags, flags.files);
    if (!flags.compare.empty()) return show_files(flags, flags.compare);
    return run_load_test(flags);
  });
}

}  // namespace bam
