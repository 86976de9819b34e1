// Prefill and decode of one checkpoint, kernels only (no engine, no HTTP), beside the machine's own limits.
//   build/bench_model --model DIR --prefill 512,4096 --decode 0,4096 --streams 1,16,64
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench/support/machine.h"
#include "bench/support/profiling_backend.h"
#include "bench/support/runner.h"

namespace bam::bench {
namespace {

struct Settings {
  RunnerOptions runner;
  std::string weight_dtype = "f32", kv_dtype = "f16", attention = "certified", head_dtype, out;
  std::vector<int64_t> prefill = {512, 4096}, decode = {0, 4096}, streams = {1};
  int repeats = 5;
  bool decode_there = false, compare_math = false, profile = false;
};
constexpr int64_t kWarmSteps = 8, kDecodeSteps = 32;  // as bench/peers/llama_speed.cpp

// Linear-layer FLOP of one row and bytes of weights that a decode step reads.
struct Work {
  double flop_per_row, weight_bytes;
};
Work linear_work(const BamModel& model) {
  const ModelConfig& c = model.config();
  const double head = static_cast<double>(c.vocab_size * c.hidden_size);
  const double layers = static_cast<double>(c.num_parameters_without_embedding()) - (c.tie_word_embeddings ? 0 : head);
  return {2 * layers, static_cast<double>(model.weight_bytes())};
}

// The most that the arithmetic of the linear layers can do here, and its name.
std::pair<double, const char*> linear_peak(const Settings& s, const MachinePeak& peak) {
  const bool integers = s.runner.weight_dtype == DType::kI8 || s.runner.weight_dtype == DType::kI4;
  if (integers && peak.int8_gops > 0) return {peak.int8_gops, "VNNI"};
  const bool pairs = s.runner.math == "fast" && s.runner.weight_dtype != DType::kF32;
  if (pairs && !integers && peak.bf16_gflops > 0) return {peak.bf16_gflops, "BF16"};
  return {peak.fma_gflops, "FMA"};
}

double visited_share(const BamModel& model, const std::vector<AttentionCounters>& before) {
  double visited = 0, all = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const double v = static_cast<double>(model.counters()[i].visited - before[i].visited);
    visited += v;
    all += v + static_cast<double>(model.counters()[i].skipped - before[i].skipped);
  }
  return all > 0 ? visited / all : 0;
}

// One token for every sequence, from `depth` on. Later calls write over the same positions.
double seconds_per_step(Runner& runner, int64_t depth, int64_t streams) {
  const auto tokens = random_tokens(streams, runner.model().config().vocab_size, 7);
  std::vector<int64_t> positions(static_cast<size_t>(streams), depth);
  double start = 0;
  for (int64_t i = 0; i < kWarmSteps + kDecodeSteps; ++i) {
    if (i == kWarmSteps) start = now_seconds();
    runner.decode(tokens, positions);
    for (auto& position : positions) ++position;
  }
  return (now_seconds() - start) / static_cast<double>(kDecodeSteps);
}

void report_decode(Runner& runner, const MachinePeak& peak, int64_t depth, int64_t streams, double step,
                   nlohmann::json& results) {
  const double rate = static_cast<double>(streams) / step;
  const double gbs = linear_work(runner.model()).weight_bytes / step / 1e9;
  std::printf("decode  %8ld  %4ld streams  %9.1f tok/s  %8.3f ms/step  weights %5.1f GB/s (%3.0f %% of DRAM read)\n",
              static_cast<long>(depth), static_cast<long>(streams), rate, step * 1e3, gbs, 100 * gbs / peak.read_gbs);
  std::fflush(stdout);
  results.push_back({{"what", "decode"},
                     {"depth", depth},
                     {"streams", streams},
                     {"step_s", step},
                     {"tokens_per_s", rate},
                     {"weight_gbs", gbs}});
}

void run_prefill(const Settings& s, const MachinePeak& peak, nlohmann::json& results) {
  for (const int64_t length : s.prefill) {
    Runner runner(s.runner, length + kWarmSteps + kDecodeSteps);
    const auto tokens = random_tokens(length, runner.model().config().vocab_size, 1);
    const int repeats = length > 40000 ? 1 : s.repeats;
    std::vector<double> times, steps;
    double share = 0;
    if (length <= 4096) runner.prefill(tokens);  // warm up
    for (int i = 0; i < repeats; ++i) {
      const auto before = runner.model().counters();
      const double start = now_seconds();
      runner.prefill(tokens);
      times.push_back(now_seconds() - start);
      share = visited_share(runner.model(), before);
      if (s.decode_there) steps.push_back(seconds_per_step(runner, length, 1));
    }
    const double seconds = median(times);
    const double rate = static_cast<double>(length) / seconds;
    const double gflops = rate * linear_work(runner.model()).flop_per_row / 1e9;
    const auto [most, name] = linear_peak(s, peak);
    std::printf(
        "prefill %8ld  %9.1f tok/s  %8.3f s  linear %6.1f GFLOP/s (%3.0f %% of %s peak)  tiles visited %5.1f %%\n",
        static_cast<long>(length), rate, seconds, gflops, 100 * gflops / most, name, 100 * share);
    std::fflush(stdout);
    results.push_back({{"what", "prefill"},
                       {"tokens", length},
                       {"seconds", seconds},
                       {"tokens_per_s", rate},
                       {"linear_gflops", gflops},
                       {"visited_share", share}});
    if (s.decode_there) report_decode(runner, peak, length, 1, median(steps), results);
  }
}

void run_decode(const Settings& s, const MachinePeak& peak, nlohmann::json& results) {
  for (const int64_t depth : s.decode) {
    for (const int64_t streams : s.streams) {
      Runner runner(s.runner, depth + kWarmSteps + kDecodeSteps, streams);
      const int64_t vocab = runner.model().config().vocab_size;
      for (int64_t i = 0; depth > 0 && i < streams; ++i) {
        runner.prefill(random_tokens(depth, vocab, static_cast<uint64_t>(i)), 0, i);
      }
      std::vector<double> times;
      for (int r = 0; r < s.repeats; ++r) times.push_back(seconds_per_step(runner, depth, streams));
      report_decode(runner, peak, depth, streams, median(times), results);
    }
  }
}

// Where the time of a step goes. `steps` steps of `rows` rows each took `seconds` in all.
void print_profile(const Settings& s, Runner& runner, const MachinePeak& peak, double seconds, int64_t steps) {
  const double most = linear_peak(s, peak).first;
  const auto per_step = [&](double s) { return 1e3 * s / static_cast<double>(steps); };
  std::printf("  %-28s %10s %8s %8s %14s %18s\n", "operation", "ms/step", "share", "calls", "weights GB/s", "GFLOP/s");
  double known = 0;
  for (const auto& [name, entry] : runner.profile()->entries()) {
    known += entry.seconds;
    std::printf("  %-28s %10.4f %6.1f %% %8.1f", name.c_str(), per_step(entry.seconds), 100 * entry.seconds / seconds,
                static_cast<double>(entry.calls) / static_cast<double>(steps));
    if (entry.flop > 0) {
      const double gbs = 1e-9 * entry.weight_bytes / entry.seconds;
      const double gflops = 1e-9 * entry.flop / entry.seconds;
      std::printf(" %7.1f (%3.0f %%) %8.1f (%3.0f %%)", gbs, 100 * gbs / peak.read_gbs, gflops, 100 * gflops / most);
    }
    std::printf("\n");
  }
  std::printf("  %-28s %10.4f %6.1f %%\n  %-28s %10.4f\n", "between operations", per_step(seconds - known),
              100 * (seconds - known) / seconds, "step", per_step(seconds));
}

void run_profile(const Settings& s, const MachinePeak& peak) {
  RunnerOptions options = s.runner;
  options.profile = true;
  for (const int64_t length : s.prefill) {
    if (length <= 0) continue;
    Runner runner(options, length);
    const auto tokens = random_tokens(length, runner.model().config().vocab_size, 1);
    runner.prefill(tokens);  // warm up
    runner.profile()->reset();
    const double start = now_seconds();
    for (int i = 0; i < s.repeats; ++i) runner.prefill(tokens);
    const double seconds = now_seconds() - start;
    std::printf("prefill %ld, a step is the whole prompt\n", static_cast<long>(length));
    print_profile(s, runner, peak, seconds, s.repeats);
  }
  for (const int64_t depth : s.decode) {
    for (const int64_t streams : s.streams) {
      Runner runner(options, depth + kWarmSteps + kDecodeSteps, streams);
      for (int64_t i = 0; depth > 0 && i < streams; ++i) {
        runner.prefill(random_tokens(depth, runner.model().config().vocab_size, static_cast<uint64_t>(i)), 0, i);
      }
      double seconds = 0;
      seconds_per_step(runner, depth, streams);  // warm up
      runner.profile()->reset();
      for (int i = 0; i < s.repeats; ++i) {
        const double start = now_seconds();
        seconds_per_step(runner, depth, streams);
        seconds += now_seconds() - start;
      }
      std::printf("decode at %ld, %ld streams\n", static_cast<long>(depth), static_cast<long>(streams));
      print_profile(s, runner, peak, seconds, s.repeats * (kWarmSteps + kDecodeSteps));
    }
  }
}

// Both kinds of arithmetic in turn, so that whatever else the machine does meets both.
void compare_math(const Settings& s) {
  RunnerOptions fast = s.runner;
  fast.math = "fast";
  const auto report = [&](const char* what, int64_t number, const auto& exact_once, const auto& fast_once) {
    std::vector<double> ratios;
    for (int i = 0; i < s.repeats; ++i) {
      const double exact_seconds = exact_once();
      ratios.push_back(exact_seconds / fast_once());
    }
    std::printf("%-16s %6ld   exact / fast time, median of %d pairs: %.2f\n", what, static_cast<long>(number),
                s.repeats, median(ratios));
    std::fflush(stdout);
  };
  for (const int64_t length : s.prefill) {
    Runner a(s.runner, length), b(fast, length);
    const auto tokens = random_tokens(length, a.model().config().vocab_size, 1);
    const auto timed = [&](Runner& runner) {
      const double start = now_seconds();
      runner.prefill(tokens);
      return now_seconds() - start;
    };
    timed(a), timed(b);  // warm up
    report(
        "prefill", length, [&] { return timed(a); }, [&] { return timed(b); });
  }
  for (const int64_t streams : s.streams) {
    Runner a(s.runner, kWarmSteps + kDecodeSteps, streams), b(fast, kWarmSteps + kDecodeSteps, streams);
    report(
        "decode, streams", streams, [&] { return seconds_per_step(a, 0, streams); },
        [&] { return seconds_per_step(b, 0, streams); });
  }
}

int run(int argc, char** argv) {
  Settings s;
  CLI::App app("Prefill and decode speed of one checkpoint beside the machine's limits");
  app.add_option("--model", s.runner.model, "checkpoint folder")->required();
  app.add_option("--dtype", s.weight_dtype, "weights: f32, bf16, f16, int8, int4");
  app.add_option("--head-dtype", s.head_dtype, "of the output head alone (default: as a server would)");
  app.add_option("--kv-dtype", s.kv_dtype, "f32, f16, int8, int4");
  app.add_option("--attention", s.attention, "certified or dense")->check(CLI::IsMember({"certified", "dense"}));
  app.add_option("--isa", s.runner.isa, "auto, portable, avx2, avx512, avx512vnni, avx512bf16");
  app.add_option("--math", s.runner.math, "exact or fast")->check(CLI::IsMember({"exact", "fast"}));
  app.add_option("--attention-math", s.runner.attention_math, "f32, or int8 over int8 and int4 pages")
      ->check(CLI::IsMember({"f32", "int8"}));
  app.add_flag("--compare-math", s.compare_math, "exact and fast in turn: ratios that hold on a busy machine, too");
  app.add_flag("--profile", s.profile, "instead: where the time of a step goes, by operation");
  app.add_option("--threads", s.runner.threads, "0: all cores");
  app.add_option("--chunk", s.runner.chunk, "rows of one prefill step");
  app.add_option("--prefill", s.prefill, "prompt lengths")->delimiter(',');
  app.add_option("--decode", s.decode, "context depths")->delimiter(',');
  app.add_option("--streams", s.streams, "parallel sequences while decoding")->delimiter(',');
  app.add_flag("--decode-there", s.decode_there, "decode a few tokens after every prompt of --prefill, too");
  app.add_option("--repeats", s.repeats, "runs of which the median is taken");
  app.add_option("--out", s.out, "JSON file");
  CLI11_PARSE(app, argc, argv);
  s.runner.weight_dtype = parse_dtype(s.weight_dtype);
  if (!s.head_dtype.empty()) s.runner.head_dtype = parse_dtype(s.head_dtype);
  s.runner.kv_dtype = parse_dtype(s.kv_dtype);
  s.runner.certified = s.attention == "certified";
  if (s.compare_math) {
    compare_math(s);
    return 0;
  }
  const MachinePeak peak = measure_peak(make_cpu_backend({s.runner.threads, s.runner.isa})->num_threads());
  std::printf("%s, %d threads: FMA %.0f GFLOP/s, BF16 %.0f GFLOP/s, VNNI %.0f GOP/s, DRAM read %.1f GB/s\n",
              cpu_name().c_str(), peak.threads, peak.fma_gflops, peak.bf16_gflops, peak.int8_gops, peak.read_gbs);
  std::printf("%s  weights %s, %s math, KV %s in %s, %s\n", s.runner.model.c_str(), s.weight_dtype.c_str(),
              s.runner.math.c_str(), s.kv_dtype.c_str(), s.runner.attention_math.c_str(), s.attention.c_str());
  if (s.profile) {
    run_profile(s, peak);
    return 0;
  }
  nlohmann::json results = nlohmann::json::array();
  if (!s.prefill.empty() && s.prefill.front() > 0) run_prefill(s, peak, results);
  run_decode(s, peak, results);
  if (!s.out.empty()) {
    std::ofstream(s.out) << nlohmann::json{{"cpu", cpu_name()},
                                           {"threads", peak.threads},
                                           {"fma_gflops", peak.fma_gflops},
                                           {"int8_gops", peak.int8_gops},
                                           {"bf16_gflops", peak.bf16_gflops},
                                           {"read_gbs", peak.read_gbs},
                                           {"dtype", s.weight_dtype},
                                           {"kv_dtype", s.kv_dtype},
                                           {"attention", s.attention},
                                           {"results", results}}
                                .dump(1)
                         << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace bam::bench

int main(int argc, char** argv) { return bam::bench::run_program("bench_model", bam::bench::run, argc, argv); }
