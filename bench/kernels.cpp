// Kernels of the 120M shape alone, beside the machine's limits: linear layers by number of rows, dense attention by
// context length, position encoding and arithmetic, sampling.
//   build/bench_kernels [--only gemm,attention,sampling] [--kv f16,int8] [--head-dim 48,64] [--keys 4096] [--out FILE]
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <thread>

#include "bench/support/machine.h"
#include "bench/support/onednn.h"
#include "bench/support/runner.h"
#include "engine/batch_sampler.h"
#include "kernels/backend.h"

namespace bam::bench {
namespace {

constexpr int64_t kHidden = 768, kIntermediate = 1536, kVocab = 32768;
constexpr int kHeads = 16, kHeadDim = 48;

// Seconds of one call, each sample long enough to be timed.
class CallTimer {
 public:
  explicit CallTimer(std::function<void()> call) : call_(std::move(call)) {
    call_();
    calls_ = 1;
    calls_ = std::max(1, static_cast<int>(0.03 / std::max(sample(), 1e-7)));
  }
  double sample() const {
    const double start = now_seconds();
    for (int i = 0; i < calls_; ++i) call_();
    return (now_seconds() - start) / calls_;
  }

 private:
  std::function<void()> call_;
  int calls_ = 1;
};

double seconds_per_call(const std::function<void()>& call) {
  constexpr int kSamples = 7;
  const CallTimer timer(call);
  std::vector<double> times;
  for (int s = 0; s < kSamples; ++s) times.push_back(timer.sample());
  return median(times);
}

std::vector<float> random_floats(size_t count, float scale, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(rng);
  return values;
}

struct Shape {
  int64_t out, in;
};
constexpr int kLayers = 12;
constexpr Shape kShapes[] = {{3 * kHeads * kHeadDim, kHidden},
                             {kHidden, kHeads* kHeadDim},
                             {2 * kIntermediate, kHidden},
                             {kHidden, kIntermediate}};

// Enough copies of one layer's matrices that no cache holds them all, as in a real step.
class LayerStack {
 public:
  LayerStack(Backend& backend, DType dtype) : backend_(backend) {
    const std::vector<float> values = random_floats(static_cast<size_t>(2 * kIntermediate * kHidden), 0.05f, 1);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const Shape& shape : kShapes) {
        const HostMatrix matrix{reinterpret_cast<const std::byte*>(values.data()), DType::kF32, shape.out, shape.in};
        weights_.push_back(backend.make_linear({&matrix, 1}, dtype));
        flop_per_row_ += 2.0 * static_cast<double>(shape.out * shape.in);
        bytes_ += static_cast<double>(weights_.back()->size_bytes());
      }
    }
  }
  double flop_per_row() const { return flop_per_row_; }
  double bytes() const { return bytes_; }
  void run(const void* in, int64_t rows, void* out) const {
    for (const auto& weights : weights_)
      backend_.linear(*weights, {in, rows, weights->in_features()}, {out, rows, weights->out_features()});
  }

 private:
  Backend& backend_;
  std::vector<std::unique_ptr<LinearWeights>> weights_;
  double flop_per_row_ = 0, bytes_ = 0;
};

// oneDNN on the same shapes, rows and precision; weights of one layer, so that its caches may help it.
class OnednnLayers {
 public:
  OnednnLayers(DType dtype, int64_t rows)
      : dtype_(dtype),
        rows_(rows),
        x_(static_cast<size_t>(rows * kIntermediate), 0.1f),
        w_(kMost, 0.1f),
        y_(static_cast<size_t>(rows * 2 * kIntermediate)),
        x8_(x_.size(), 3),
        w8_(kMost, 2) {}
  void run() {
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const Shape& shape : kShapes) {
        if (dtype_ == DType::kI8) {
          onednn_igemm(rows_, shape.out, shape.in, x8_.data(), w8_.data(), reinterpret_cast<int32_t*>(y_.data()));
        } else {
          onednn_sgemm(rows_, shape.out, shape.in, x_.data(), w_.data(), y_.data());
        }
      }
    }
  }

 private:
  static constexpr size_t kMost = 2 * kIntermediate * kHidden;
  DType dtype_;
  int64_t rows_;
  std::vector<float> x_, w_, y_;
  std::vector<uint8_t> x8_;
  std::vector<int8_t> w8_;
};

struct GemmResult {
  double seconds, share_of_peak, share_of_read, onednn_to_ours;  // medians
};

// Each sample stands between two measurements of the machine, and oneDNN's beside it.
GemmResult measure_gemm(MachineProbe& probe, const LayerStack& stack, DType dtype, bool fast, int64_t rows,
                        const void* in, void* out) {
  constexpr int kSamples = 9;
  const bool integer = (dtype == DType::kI8 || dtype == DType::kI4) && probe.int8_gops() > 0;
  const bool peer = have_onednn() && (dtype == DType::kF32 || dtype == DType::kI8);
  OnednnLayers onednn(dtype, rows);
  const bool pairs = fast && (dtype == DType::kBF16 || dtype == DType::kF16) && probe.bf16_gflops() > 0;
  const auto top = [&] { return integer ? probe.int8_gops() : pairs ? probe.bf16_gflops() : probe.fma_gflops(); };
  const auto timed = [](const std::function<void()>& call) {
    const double start = now_seconds();
    call();
    return now_seconds() - start;
  };
  const auto ours = [&] { stack.run(in, rows, out); };
  ours();
  if (peer) onednn.run();
  const int calls = std::max(1, static_cast<int>(0.03 / timed(ours)));
  const double gflop = 1e-9 * stack.flop_per_row() * static_cast<double>(rows);
  std::vector<double> seconds, of_peak, of_read, ratio;
  for (int s = 0; s < kSamples; ++s) {
    const double top_before = top(), read_before = probe.read_gbs();
    const double once = timed([&] {
                          for (int i = 0; i < calls; ++i) ours();
                        }) /
                        calls;
    const double top_after = top(), read_after = probe.read_gbs();
    seconds.push_back(once);
    of_peak.push_back(gflop / once / ((top_before + top_after) / 2));
    of_read.push_back(1e-9 * stack.bytes() / once / ((read_before + read_after) / 2));
    if (peer) {
      ratio.push_back(timed([&] { onednn.run(); }) / once);
      std::this_thread::sleep_for(std::chrono::milliseconds(60));  // its OpenMP threads spin for a while
    }
  }
  return {median(seconds), median(of_peak), median(of_read), peer ? median(ratio) : 0};
}

void bench_gemm(Backend& backend, const std::vector<std::string>& dtypes, bool fast, nlohmann::json& results) {
  fmt::print(
      "\nlinear layers of 12 layers, 768 x 2304, 768, 3072, 1536 (weights out of cache, medians of 9 samples)\n");
  fmt::print("{:<6} {:>5} {:>12} {:>16} {:>14} {:>17}\n", "dtype", "rows", "ms", "GFLOP/s", "GB/s", "oneDNN time/ours");
  const int64_t most = 512;
  const std::vector<float> values = random_floats(static_cast<size_t>(most * kIntermediate), 1.0f, 2);
  // Memory of the backend, as a model has it.
  const auto in = backend.make_vector(values);
  const auto out = backend.allocate(static_cast<size_t>(most * 2 * kIntermediate) * sizeof(float));
  MachineProbe probe(backend.num_threads());
  for (const std::string& name : dtypes) {
    const DType dtype = parse_dtype(name);
    const LayerStack stack(backend, dtype);
    for (const int64_t rows : {1, 8, 64, 512}) {
      const GemmResult r = measure_gemm(probe, stack, dtype, fast, rows, in->data(), out->data());
      const double gflops = 1e-9 * stack.flop_per_row() * static_cast<double>(rows) / r.seconds;
      const double gbs = 1e-9 * stack.bytes() / r.seconds;
      fmt::print("{:<6} {:>5} {:>12.3f} {:>9.1f} ({:>3.0f} %) {:>7.1f} ({:>3.0f} %)", dtype_name(dtype), rows,
                 1e3 * r.seconds, gflops, 100 * r.share_of_peak, gbs, 100 * r.share_of_read);
      if (r.onednn_to_ours > 0) fmt::print(" {:>17.2f}", r.onednn_to_ours);
      fmt::print("\n");
      std::fflush(stdout);
      results.push_back({{"what", "gemm"},
                         {"onednn_to_ours", r.onednn_to_ours},
                         {"dtype", dtype_name(dtype)},
                         {"rows", rows},
                         {"seconds", r.seconds},
                         {"gflops", gflops},
                         {"share_of_peak", r.share_of_peak},
                         {"gbs", gbs},
                         {"share_of_read", r.share_of_read}});
    }
  }
}

// One layer of 768 columns with `keys` keys in its cache, all of them written.
class AttentionBench {
 public:
  AttentionBench(Backend& backend, PositionEncoding encoding, bool ssmax, DType kv_dtype, int head_dim, int64_t keys)
      : backend_(backend) {
    const int heads = static_cast<int>(kHidden) / head_dim;
    AttentionSpec spec;
    spec.num_heads = spec.num_kv_heads = heads;
    spec.head_dim = head_dim;
    spec.ssmax = ssmax;
    if (ssmax) spec.seq_scale.assign(static_cast<size_t>(heads), 0.2f);
    if (encoding == PositionEncoding::kBam) {
      for (int h = 0; h < heads; ++h) {
        const double beta = -0.3 + 1.6 * h / heads;
        spec.bias.push_back(power_bias(PriorForm::kScaleOutside, {-0.5, beta, 0}, 1e-5, ssmax, spec.seq_scale_of(h)));
      }
    }
    spec.reach.assign(static_cast<size_t>(heads), -1);
    layer_ = backend.make_attention(spec);
    AttentionLayer* const layers[] = {layer_.get()};
    backend.reserve_positions(layers, keys + 1);
    kv_.layout = make_kv_layout(kv_dtype, head_dim, kTileKeys);
    stride_ = keys / kTileKeys + 1;
    kv_.num_pages = stride_ * heads;
    memory_ = backend.allocate(static_cast<size_t>(kv_.num_pages) * kv_.layout.page_bytes());
    kv_.base = static_cast<std::byte*>(memory_->data());
    table_.resize(static_cast<size_t>(kv_.num_pages));
    std::iota(table_.begin(), table_.end(), 0);
    qkv_ = random_floats(static_cast<size_t>(kChunk * 3 * kHidden), 1.0f, 3);
    out_.resize(static_cast<size_t>(kChunk * kHidden));
    counters_.resize(static_cast<size_t>(heads));
    for (int64_t at = 0; at < keys; at += kChunk) {
      const SequenceRows rows = sequence(at, std::min(kChunk, keys - at));
      backend.write_kv(*layer_, kv_, {&rows, 1}, {qkv_.data(), kChunk, 3 * kHidden});
    }
  }
  // The last `rows` rows of a context of `keys` tokens.
  void run(int64_t keys, int64_t rows) {
    const SequenceRows queries = sequence(keys - rows, rows);
    backend_.attention(*layer_, kv_, {&queries, 1}, {}, {qkv_.data(), rows, 3 * kHidden}, {.certified = false},
                       {out_.data(), rows, kHidden}, counters_);
  }
  static constexpr int64_t kChunk = 512;

 private:
  SequenceRows sequence(int64_t start, int64_t rows) const { return {table_.data(), stride_, 0, rows, start}; }

  Backend& backend_;
  std::unique_ptr<AttentionLayer> layer_;
  std::unique_ptr<DeviceBuffer> memory_;
  KvCacheView kv_;
  int64_t stride_ = 0;
  std::vector<int32_t> table_;
  std::vector<float> qkv_, out_;
  std::vector<AttentionCounters> counters_;
};

struct AttentionCase {
  DType kv;
  int head_dim;
  int64_t keys, rows;
};

// Bytes that dense attention reads for one query row: keys, values and their scales; not the statistics, not the
// prior's table.
double kv_bytes_read(const AttentionCase& c) {
  const KvLayout layout = make_kv_layout(c.kv, c.head_dim, kTileKeys);
  return static_cast<double>(layout.stats_offset) * static_cast<double>(c.keys / kTileKeys * (kHidden / c.head_dim));
}

// BAM with SSMax and NoPE, in float32 and, where pages hold integers, in integers, all in turn.
void bench_attention_case(Backend& floats, Backend& integers, const AttentionCase& c, int rounds,
                          nlohmann::json& results) {
  const bool quantised = c.kv == DType::kI8 || c.kv == DType::kI4;
  const double pairs =
      static_cast<double>(c.rows) * static_cast<double>(c.keys) - 0.5 * static_cast<double>(c.rows * (c.rows - 1));
  const double gflop = 4.0 * kHidden * pairs / 1e9;
  std::vector<double> bam_seconds[2], nope_seconds[2], speedup, of_peak[2], of_read[2];
  std::unique_ptr<AttentionBench> bam[2], nope[2];
  std::vector<CallTimer> timers;
  for (int k = 0; k < (quantised ? 2 : 1); ++k) {
    Backend& backend = k == 0 ? floats : integers;
    bam[k] = std::make_unique<AttentionBench>(backend, PositionEncoding::kBam, true, c.kv, c.head_dim, c.keys);
    nope[k] = std::make_unique<AttentionBench>(backend, PositionEncoding::kNope, false, c.kv, c.head_dim, c.keys);
    timers.emplace_back([&c, b = bam[k].get()] { b->run(c.keys, c.rows); });
    timers.emplace_back([&c, b = nope[k].get()] { b->run(c.keys, c.rows); });
  }
  MachineProbe probe(floats.num_threads());
  for (int i = 0; i < rounds; ++i) {
    for (int k = 0; k < (quantised ? 2 : 1); ++k) {
      const double read = c.rows == 1 ? probe.read_gbs() : 0, peak = c.rows == 1 ? 0 : probe.fma_gflops();
      bam_seconds[k].push_back(timers[static_cast<size_t>(2 * k)].sample());
      nope_seconds[k].push_back(timers[static_cast<size_t>(2 * k + 1)].sample());
      if (c.rows == 1) of_read[k].push_back(1e-9 * kv_bytes_read(c) / bam_seconds[k].back() / read);
      if (c.rows != 1) of_peak[k].push_back(gflop / bam_seconds[k].back() / peak);
    }
    if (quantised) speedup.push_back(bam_seconds[0].back() / bam_seconds[1].back());
  }
  for (int k = 0; k < (quantised ? 2 : 1); ++k) {
    std::vector<double> ratios;
    for (size_t i = 0; i < bam_seconds[k].size(); ++i) ratios.push_back(bam_seconds[k][i] / nope_seconds[k][i]);
    const double seconds = median(bam_seconds[k]), ratio = median(ratios);
    fmt::print("{:<5} {:<5} {:>4} {:>7} {:>5} {:>8.1f}", dtype_name(c.kv), k == 0 ? "f32" : "int8", c.head_dim, c.keys,
               c.rows, gflop / seconds);
    if (c.rows == 1) {
      fmt::print(" {:>8.1f} GB/s ({:>3.0f} %)", 1e-9 * kv_bytes_read(c) / seconds, 100 * median(of_read[k]));
    } else {
      fmt::print(" {:>20.0f} %", 100 * median(of_peak[k]));
    }
    fmt::print(" {:>10.3f}", ratio);
    if (k == 1) fmt::print(" {:>10.2f}", median(speedup));
    fmt::print("\n");
    std::fflush(stdout);
    results.push_back({{"what", "attention"},
                       {"kv_dtype", dtype_name(c.kv)},
                       {"math", k == 0 ? "f32" : "int8"},
                       {"head_dim", c.head_dim},
                       {"keys", c.keys},
                       {"rows", c.rows},
                       {"gflops", gflop / seconds},
                       {"bam_to_nope", ratio},
                       {"f32_to_int8", k == 1 ? median(speedup) : 0.0}});
  }
}

void bench_attention(Backend& floats, Backend& integers, const std::vector<std::string>& kv_dtypes,
                     const std::vector<int>& head_dims, const std::vector<int64_t>& key_counts,
                     const std::vector<int64_t>& row_counts, int rounds, nlohmann::json& results) {
  fmt::print(
      "\ndense attention of one layer of 768 columns, BAM + SSMax: 4 * 768 FLOP per query and key; medians of {}\n",
      rounds);
  fmt::print("{:<5} {:<5} {:>4} {:>7} {:>5} {:>8} {:>22} {:>10} {:>10}\n", "KV", "math", "dim", "keys", "rows",
             "GFLOP/s", "of FMA peak or read", "BAM / NoPE", "f32 / int8");
  for (const std::string& kv_name : kv_dtypes) {
    for (const int head_dim : head_dims) {
      for (const int64_t keys : key_counts) {
        for (const int64_t rows : row_counts)
          bench_attention_case(floats, integers, {parse_dtype(kv_name), head_dim, keys, rows}, rounds, results);
      }
    }
  }
}

void bench_sampling(nlohmann::json& results) {
  constexpr int kRows = 64;
  ThreadPool threads(0);
  fmt::print("\nsampling {} rows of {} logits, {} threads\n", kRows, kVocab, threads.num_threads());
  const std::vector<float> flat = random_floats(static_cast<size_t>(kRows * kVocab), 1.0f, 4);
  std::vector<float> trained = random_floats(static_cast<size_t>(kRows * kVocab), 3.0f, 4);
  // As a trained model's rows: a few tokens stand out.
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < 20; ++i) trained[static_cast<size_t>(r * kVocab + 997 * i)] = 20.0f - static_cast<float>(i);
  }
  struct Case {
    const char* name;
    const std::vector<float>& logits;
    SamplingParams params;
  };
  const Case cases[] = {
      {"greedy", trained, {.temperature = 0}},
      {"temperature 1", trained, {.temperature = 1}},
      {"top-k 40, top-p 0.95", trained, {.temperature = 0.8f, .top_p = 0.95f, .top_k = 40}},
      {"top-p 0.9, min-p 0.05", trained, {.temperature = 1, .top_p = 0.9f, .min_p = 0.05f}},
      {"top-p 0.9, flat rows", flat, {.temperature = 1, .top_p = 0.9f}},
      {"greedy, 5 logprobs", trained, {.temperature = 0, .num_logprobs = 5}},
  };
  BatchSampler sampler(kVocab, {2}, &threads);
  for (const Case& c : cases) {
    std::vector<SamplerState> states;
    std::vector<BatchSampler::Run> runs;
    std::vector<Sample> samples(kRows);
    std::vector<const float*> logits;
    for (int r = 0; r < kRows; ++r) logits.push_back(&c.logits[static_cast<size_t>(r * kVocab)]);
    states.reserve(kRows);
    for (int r = 0; r < kRows; ++r) {
      states.emplace_back(c.params, 7 + r, 0, kVocab, std::span<const int32_t>(), nullptr);
      runs.push_back({.logits = std::span(logits).subspan(static_cast<size_t>(r), 1),
                      .state = &states.back(),
                      .samples = std::span(samples).subspan(static_cast<size_t>(r), 1)});
    }
    const double seconds = seconds_per_call([&] { sampler.sample(runs); });
    fmt::print("{:<24} {:>8.3f} ms  {:>7.1f} us per row\n", c.name, 1e3 * seconds, 1e6 * seconds / kRows);
    results.push_back({{"what", "sampling"}, {"params", c.name}, {"seconds", seconds}, {"rows", kRows}});
  }
}

int run(int argc, char** argv) {
  CLI::App app("Kernels of the 120M shape beside the machine's limits");
  std::vector<std::string> only = {"gemm", "attention", "sampling"}, kv_dtypes = {"f32", "f16", "int8", "int4"},
                           dtypes = {"f32", "bf16", "f16", "int8", "int4"};
  std::vector<int> head_dims = {kHeadDim, 64, 128};
  std::vector<int64_t> key_counts = {4096, 32768}, row_counts = {AttentionBench::kChunk, 1};
  std::string out, isa = "auto", math = "exact";
  int threads = 0, rounds = 9;
  app.add_option("--only", only, "parts")->delimiter(',');
  app.add_option("--kv", kv_dtypes, "formats of keys and values for attention")->delimiter(',');
  app.add_option("--head-dim", head_dims, "of attention")->delimiter(',');
  app.add_option("--keys", key_counts, "context lengths of attention")->delimiter(',');
  app.add_option("--rows", row_counts, "query rows of attention, at most 512")->delimiter(',');
  app.add_option("--rounds", rounds, "of attention, all variants in turn");
  app.add_option("--isa", isa, "auto, portable, avx2, avx512, avx512vnni");
  app.add_option("--math", math, "exact or fast; fast: 16-bit weights beside the peak of bfloat16 products");
  app.add_option("--dtypes", dtypes, "weights of the linear layers")->delimiter(',');
  app.add_option("--threads", threads, "0: all cores");
  app.add_option("--out", out, "JSON file");
  CLI11_PARSE(app, argc, argv);
  const std::unique_ptr<Backend> backend = make_cpu_backend({.num_threads = threads, .isa = isa, .math = math});
  const MachinePeak peak = measure_peak(backend->num_threads());
  fmt::print("{}, {} threads: FMA {:.0f} GFLOP/s, bfloat16 {:.0f} GFLOP/s, VNNI {:.0f} GOP/s, DRAM read {:.1f} GB/s\n",
             cpu_name(), peak.threads, peak.fma_gflops, peak.bf16_gflops, peak.int8_gops, peak.read_gbs);
  nlohmann::json results = nlohmann::json::array();
  const auto wanted = [&](const char* part) { return std::ranges::find(only, part) != only.end(); };
  if (wanted("gemm")) bench_gemm(*backend, dtypes, math == "fast", results);
  if (wanted("attention")) {
    const auto integers = make_cpu_backend({.num_threads = threads, .isa = isa, .attention_math = "int8"});
    bench_attention(*backend, *integers, kv_dtypes, head_dims, key_counts, row_counts, rounds, results);
  }
  if (wanted("sampling")) bench_sampling(results);
  if (!out.empty()) {
    std::ofstream(out)
        << nlohmann::json{{"cpu", cpu_name()},           {"threads", peak.threads},   {"fma_gflops", peak.fma_gflops},
                          {"int8_gops", peak.int8_gops}, {"read_gbs", peak.read_gbs}, {"results", results}}
               .dump(1)
        << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace bam::bench

int main(int argc, char** argv) { return bam::bench::run_program("bench_kernels", bam::bench::run, argc, argv); }
