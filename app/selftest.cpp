// `bam selftest`: every operation of a device against the CPU backend, through the same interface that models use.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/commands.h"
#include "base/error.h"
#include "engine/config.h"
#include "engine/sampler.h"
#include "kernels/backend.h"
#include "kernels/device.h"

namespace bam {

namespace {

// Shapes of the comparison: `small` takes seconds on any device, `full` fills a GPU.
struct Sizes {
  int64_t rows, hidden, intermediate, vocab;
  int heads, kv_heads, head_dim;
  int64_t context;
  int repeats;
};
constexpr Sizes kSmall{20, 96, 128, 160, 4, 2, 32, 700, 1};
constexpr Sizes kFull{512, 2048, 8192, 32768, 32, 32, 64, 8192, 20};

struct Outcome {
  std::string operation, shape;
  double error = 0, tolerance = 0;  // relative to the largest expected value
  double seconds = 0;
  double flops = 0, bytes = 0;                    // of one run
  bool ok() const { return error <= tolerance; }  // false for NaN
};

std::vector<float> random_values(size_t count, uint32_t seed, float deviation = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

double relative_error(std::span<const float> got, std::span<const float> expected) {
  double worst = 0, size = 1e-30;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(static_cast<double>(got[i]) - expected[i]);
    worst = std::isnan(worst) || worst > error ? worst : error;  // NaN stays
    size = std::max(size, std::fabs(static_cast<double>(expected[i])));
  }
  return worst / size;
}

// The scale of a vector in an fp8 page (docs/cuda.md): the least float16 that clips nothing, at most 146.125.
float fp8_scale(std::span<const float> x) {
  float largest = 0;
  for (const float value : x) largest = std::max(largest, std::fabs(value));
  const uint16_t bits = f32_to_f16(largest / kLargestFp8);
  const float scale = f16_to_f32(bits);
  return std::min(scale * kLargestFp8 < largest ? f16_to_f32(static_cast<uint16_t>(bits + 1)) : scale, 146.125f);
}

uint8_t fp8_code(float value, float scale) { return f32_to_fp8(scale > 0 ? value * (1.0f / scale) : 0.0f); }

// `x` as a cache of bf16 or fp8 holds it.
void round_as_stored(DType dtype, std::span<float> x) {
  const float scale = fp8_scale(x);
  for (float& value : x) {
    value = dtype == DType::kBF16 ? bf16_to_f32(f32_to_bf16(value)) : scale * fp8_to_f32(fp8_code(value, scale));
  }
}

// A device and the CPU, both fed with the numbers that the device's operands can hold.
class SelfTest {
 public:
  SelfTest(Backend& device, const Sizes& sizes, bool bfloat16)
      : device_(device), cpu_(make_cpu_backend({})), sizes_(sizes) {
    // Numbers pass the operands' format three times at most, and one product of them.
    tolerance_ = device.operand_bytes() == 4 ? 2e-5 : (bfloat16 ? 2e-2 : 4e-3);
  }

  std::vector<Outcome> run() {
    rows_and_norms();
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) linear_layers(dtype);
    feed_forward();
    attention_variants();
    if (device_.supports_drawing(sizes_.vocab)) token_draws();
    pages();
    if (device_.supports_kv(DType::kFp8)) fp8_codes();
    return std::move(outcomes_);
  }

 private:
  using Operation = std::function<void()>;

  // Runs `operation` on the device until it can be timed.
  double time(const Operation& operation) {
    const auto wait = [&] {
      float one;
      device_.read_floats(device_.float_rows(*probe_, 1, 1), {&one, 1});
    };
    operation();
    wait();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < sizes_.repeats; ++i) operation();
    wait();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    return elapsed.count() / sizes_.repeats;
  }

  void report(Outcome outcome) { outcomes_.push_back(std::move(outcome)); }

  // `values` [rows, cols] as float32 in the device's memory. Rows of a table are the only way in.
  std::unique_ptr<DeviceBuffer> upload(const std::vector<float>& values, int64_t rows, int64_t cols) {
    auto buffer = device_.allocate(values.size() * sizeof(float));
    std::vector<int32_t> all(static_cast<size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    device_.embed({reinterpret_cast<const std::byte*>(values.data()), DType::kF32, rows, cols}, all,
                  device_.float_rows(*buffer, rows, cols));
    float one;  // the table may go once this has arrived
    device_.read_floats(device_.float_rows(*buffer, 1, 1), {&one, 1});
    return buffer;
  }

  // Operands of unit size on the device, and the same numbers for the CPU.
  struct Operands {
    std::unique_ptr<DeviceBuffer> memory;
    OperandRows device;
    std::vector<float> values;

    ConstOperandRows on_cpu() const { return {values.data(), device.count, device.width}; }
  };
  Operands make_operands(int64_t rows, int64_t cols, uint32_t seed, bool many_sizes = false) {
    const auto x = upload(random_values(static_cast<size_t>(rows * cols), seed), rows, cols);
    std::vector<float> sizes(static_cast<size_t>(cols), 1.0f);
    for (size_t i = 0; many_sizes && i < sizes.size(); ++i) sizes[i] = std::ldexp(1.0f, -static_cast<int>(i % 21));
    const auto weight = device_.make_vector(sizes);
    Operands out{device_.allocate(static_cast<size_t>(rows * cols) * device_.operand_bytes()),
                 {},
                 std::vector<float>(static_cast<size_t>(rows * cols))};
    out.device = device_.operand_rows(*out.memory, rows, cols);
    device_.rms_norm(device_.float_rows(*x, rows, cols), *weight, 1e-5f, out.device);
    device_.read_operands(out.device, out.values);
    return out;
  }

  void rows_and_norms() {
    const int64_t rows = sizes_.rows, hidden = sizes_.hidden;
    const auto count = static_cast<size_t>(rows * hidden);
    const auto values = random_values(count, 1, 3);
    const auto x_memory = upload(values, rows, hidden);
    const FloatRows x = device_.float_rows(*x_memory, rows, hidden);
    probe_ = upload({0}, 1, 1);
    std::vector<float> got(count), expected = values;
    device_.read_floats(x, got);
    report({.operation = "embed", .shape = fmt::format("{}x{}", rows, hidden), .error = relative_error(got, values)});

    const SequenceRows sequence{nullptr, 0, 0, rows, 100'000};
    device_.add_sinusoidal({&sequence, 1}, 10000, x);
    cpu_->add_sinusoidal({&sequence, 1}, 10000, {expected.data(), rows, hidden});
    device_.read_floats(x, got);
    report({.operation = "sinusoidal",
            .shape = fmt::format("{}x{}", rows, hidden),
            .error = relative_error(got, expected),
            .tolerance = 1e-6});

    std::vector<int32_t> wanted(static_cast<size_t>(rows / 2 + 1));
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = static_cast<int32_t>((i * 7) % static_cast<size_t>(rows));
    const auto num_wanted = static_cast<int64_t>(wanted.size());
    const auto picked_memory = device_.allocate(wanted.size() * static_cast<size_t>(hidden) * sizeof(float));
    const FloatRows picked = device_.float_rows(*picked_memory, num_wanted, hidden);
    std::vector<float> picked_values(wanted.size() * static_cast<size_t>(hidden)), picked_expected = picked_values;
    device_.gather_rows(x, wanted, picked);
    device_.read_floats(picked, picked_values);
    cpu_->gather_rows({got.data(), rows, hidden}, wanted, {picked_expected.data(), num_wanted, hidden});
    report({.operation = "gather",
            .shape = fmt::format("{}x{}", wanted.size(), hidden),
            .error = relative_error(picked_values, picked_expected)});

    const auto weight_values = random_values(static_cast<size_t>(hidden), 2);
    const auto weight = device_.make_vector(weight_values), cpu_weight = cpu_->make_vector(weight_values);
    const auto out_memory = device_.allocate(count * device_.operand_bytes());
    const OperandRows out = device_.operand_rows(*out_memory, rows, hidden);
    const double seconds = time([&] { device_.rms_norm(x, *weight, 1e-5f, out); });
    cpu_->rms_norm({got.data(), rows, hidden}, *cpu_weight, 1e-5f, {expected.data(), rows, hidden});
    device_.read_operands(out, got);
    report({.operation = "rms_norm",
            .shape = fmt::format("{}x{}", rows, hidden),
            .error = relative_error(got, expected),
            .tolerance = tolerance_,
            .seconds = seconds,
            .bytes = static_cast<double>(count * (sizeof(float) + device_.operand_bytes()))});
  }

  void linear_layers(DType dtype) {
    const int64_t k = sizes_.hidden, n = sizes_.intermediate;
    const auto weights = random_values(static_cast<size_t>(n * k), 5, 1 / std::sqrt(static_cast<float>(k)));
    const HostMatrix matrix{reinterpret_cast<const std::byte*>(weights.data()), DType::kF32, n, k};
    const auto device_linear = device_.make_linear({&matrix, 1}, dtype),
               cpu_linear = cpu_->make_linear({&matrix, 1}, dtype);
    for (const int64_t rows : {int64_t{1}, sizes_.rows}) {
      const Operands x = make_operands(rows, k, 4);
      const auto before = random_values(static_cast<size_t>(rows * n), 6);
      const auto out = device_.allocate(before.size() * sizeof(float));
      const auto residual_memory = upload(before, rows, n);
      const FloatRows residual = device_.float_rows(*residual_memory, rows, n);
      device_.linear_add(*device_linear, x.device, residual);
      std::vector<float> got(before.size()), expected = before;
      device_.read_floats(residual, got);
      cpu_->linear_add(*cpu_linear, x.on_cpu(), {expected.data(), rows, n});
      const double error = relative_error(got, expected);
      const double seconds =
          time([&] { device_.linear_logits(*device_linear, x.device, device_.float_rows(*out, rows, n)); });
      report({.operation = fmt::format("linear {}", dtype_name(dtype)),
              .shape = fmt::format("{}x{}x{}", rows, k, n),
              .error = error,
              .tolerance = dtype == DType::kI8 ? 2e-2 : tolerance_,
              .seconds = seconds,
              .flops = 2.0 * static_cast<double>(rows * k * n),
              .bytes = static_cast<double>(device_linear->size_bytes())});
    }
  }

  void feed_forward() {
    const int64_t rows = sizes_.rows, width = sizes_.intermediate;
    const Operands x = make_operands(rows, 2 * width, 7);
    const auto out_memory = device_.allocate(static_cast<size_t>(rows * width) * device_.operand_bytes());
    const OperandRows out = device_.operand_rows(*out_memory, rows, width);
    const double seconds = time([&] { device_.swiglu(x.device, out); });
    std::vector<float> got(static_cast<size_t>(rows * width)), expected(got.size());
    device_.read_operands(out, got);
    cpu_->swiglu(x.on_cpu(), {expected.data(), rows, width});
    report({.operation = "swiglu",
            .shape = fmt::format("{}x{}", rows, width),
            .error = relative_error(got, expected),
            .tolerance = tolerance_,
            .seconds = seconds,
            .bytes = static_cast<double>(3 * got.size() * device_.operand_bytes())});
  }

  AttentionSpec make_spec(PositionEncoding encoding, bool ssmax) const {
    AttentionSpec spec;
    spec.num_heads = sizes_.heads;
    spec.num_kv_heads = sizes_.kv_heads;
    spec.head_dim = sizes_.head_dim;
    spec.ssmax = ssmax;
    if (encoding == PositionEncoding::kRope || encoding == PositionEncoding::kRopeLocal) spec.rope_theta = 500000;
    if (encoding == PositionEncoding::kRopeLocal) spec.window = 100;
    for (int h = 0; h < sizes_.heads; ++h) {
      spec.seq_scale.push_back(0.4f);
      // Local, heavy tail, flat and retrieval heads in turn.
      const PriorParams priors[] = {{0.5, 0.9, 0}, {-0.5, 0.3, 0.2}, {0.1, 0, 0}, {0.2, -0.4, 0}};
      if (encoding == PositionEncoding::kBam) {
        spec.bias.push_back(power_bias(PriorForm::kScaleOutside, priors[h % 4], 1e-5, ssmax, spec.seq_scale_of(h)));
      }
      if (encoding == PositionEncoding::kAlibi) spec.bias.push_back(linear_bias(alibi_slope(h, sizes_.heads)));
    }
    return spec;
  }

  void attention_variants() {
    const auto bam = make_spec(PositionEncoding::kBam, true);
    for (const DType kv : kKvDtypes) {
      if (device_.supports_kv(kv)) attention("bam", bam, kv, true);
    }
    attention("bam dense", bam, DType::kF16, false);
    attention("alibi", make_spec(PositionEncoding::kAlibi, false), DType::kF16, true);
    attention("nope", make_spec(PositionEncoding::kNope, true), DType::kF16, true);
    attention("rope", make_spec(PositionEncoding::kRope, false), DType::kF16, true);
    attention("rope_local", make_spec(PositionEncoding::kRopeLocal, true), DType::kF16, true);
  }

  struct Cache {
    Cache(Backend& backend, const AttentionSpec& spec, DType dtype, int64_t tokens) {
      view.layout = make_kv_layout(dtype, spec.head_dim, kTileKeys);
      stride = (tokens + kTileKeys - 1) / kTileKeys;
      view.num_pages = stride * spec.num_kv_heads;
      memory = backend.allocate(static_cast<size_t>(view.num_pages) * view.layout.page_bytes());
      view.base = static_cast<std::byte*>(memory->data());
      table.resize(static_cast<size_t>(view.num_pages));
      std::iota(table.rbegin(), table.rend(), 0);
    }
    SequenceRows rows(int64_t start, int64_t count) const { return {table.data(), stride, 0, count, start}; }
    KvCacheView view;
    int64_t stride;
    std::vector<int32_t> table;
    std::unique_ptr<DeviceBuffer> memory;
  };

  // Fills a cache with `context` keys, then compares a chunk of queries and one query at its end. A format that the CPU
  // has not is float32 there, of numbers rounded in the same way.
  void attention(const char* name, const AttentionSpec& spec, DType kv, bool certified) {
    const int64_t chunk = sizes_.rows, context = sizes_.context;
    const int64_t width = spec.qkv_width(), out_width = spec.q_width();
    const auto layer = device_.make_attention(spec), cpu_layer = cpu_->make_attention(spec);
    AttentionLayer *layers[] = {layer.get()}, *cpu_layers[] = {cpu_layer.get()};
    device_.reserve_positions(layers, context);
    cpu_->reserve_positions(cpu_layers, context);
    const bool cpu_has_it = cpu_->supports_kv(kv);
    Cache cache(device_, spec, kv, context), cpu_cache(*cpu_, spec, cpu_has_it ? kv : DType::kF32, context);
    Operands qkv;
    int64_t start = 0;
    for (; start + chunk <= context; start += chunk) {
      qkv = make_operands(chunk, width, 20 + static_cast<uint32_t>(start));
      const SequenceRows rows = cache.rows(start, chunk), cpu_rows = cpu_cache.rows(start, chunk);
      device_.write_kv(*layer, cache.view, {&rows, 1}, qkv.device);
      for (int64_t at = 0; !cpu_has_it && at < chunk * width; at += spec.head_dim) {
        if (at % width < out_width) continue;  // queries stay
        round_as_stored(kv, std::span(qkv.values).subspan(static_cast<size_t>(at), static_cast<size_t>(spec.head_dim)));
      }
      cpu_->write_kv(*cpu_layer, cpu_cache.view, {&cpu_rows, 1}, {qkv.values.data(), chunk, width});
    }
    start -= chunk;
    const auto out = device_.allocate(static_cast<size_t>(chunk * out_width) * device_.operand_bytes());
    std::vector<AttentionCounters> counters(static_cast<size_t>(spec.num_heads));
    const AttentionOptions options{.certified = certified};
    for (const int64_t rows : {chunk, int64_t{1}}) {
      // One query: the last row, found through query_rows.
      std::vector<int32_t> query_rows(static_cast<size_t>(rows));
      std::iota(query_rows.begin(), query_rows.end(), static_cast<int32_t>(chunk - rows));
      const SequenceRows queries = cache.rows(start + chunk - rows, rows),
                         cpu_queries = cpu_cache.rows(start + chunk - rows, rows);
      std::vector<float> got(static_cast<size_t>(rows * out_width)), expected(got.size());
      const double seconds = time([&] {
        device_.attention(*layer, cache.view, {&queries, 1}, query_rows, qkv.device, options,
                          device_.operand_rows(*out, rows, out_width), counters);
      });
      device_.read_operands(device_.operand_rows(*out, rows, out_width), got);
      std::vector<AttentionCounters> cpu_counters(counters.size());
      cpu_->attention(*cpu_layer, cpu_cache.view, {&cpu_queries, 1}, query_rows, qkv.on_cpu(), options,
                      {expected.data(), rows, out_width}, cpu_counters);
      uint64_t visited = 0;
      for (const AttentionCounters& head : counters) visited += head.visited;
      const double pairs = static_cast<double>(visited) / (sizes_.repeats + 1) * kTileKeys;
      report({.operation = fmt::format("attention {} {}", name, dtype_name(kv)),
              .shape = fmt::format("{} x {}", rows, start + chunk),
              .error = relative_error(got, expected),
              .tolerance = tolerance_,
              .seconds = seconds,
              .flops = 4 * pairs * spec.head_dim,
              .bytes = rows == 1 ? pairs * 2 * spec.head_dim * static_cast<double>(dtype_bits(kv)) / 8 : 0});
      std::fill(counters.begin(), counters.end(), AttentionCounters{});
    }
  }

  // Tokens drawn on the device must be those that the host samples.
  void token_draws() {
    const auto rows = static_cast<int32_t>(std::min<int64_t>(sizes_.rows, 64));
    const auto vocab = static_cast<int32_t>(sizes_.vocab);
    const auto values = random_values(static_cast<size_t>(rows) * static_cast<size_t>(vocab), 77, 3);
    const auto logits = upload(values, rows, vocab);
    Sampler sampler(vocab, {});
    DrawBatch batch;
    std::vector<SamplingParams> params(static_cast<size_t>(rows));  // outlives the states
    std::vector<int32_t> expected, got(static_cast<size_t>(rows));
    for (int32_t r = 0; r < rows; ++r) {
      SamplingParams& p = params[static_cast<size_t>(r)];
      p.temperature = 0.25f * static_cast<float>(r % 7);
      p.top_k = r % 3 == 0 ? 40 : 0;
      p.top_p = r % 2 == 0 ? 0.9f : 1.0f;
      p.min_p = r % 5 == 0 ? 0.05f : 0.0f;
      p.repetition_penalty = r % 4 == 0 ? 1.2f : 1.0f;
      const std::vector<int32_t> prompt = {1, 2, 3, vocab - 1};
      SamplerState state(p, static_cast<uint64_t>(r), 0, vocab, prompt, nullptr);
      const size_t begin = static_cast<size_t>(r) * static_cast<size_t>(vocab);
      expected.push_back(sampler.sample(std::span(values).subspan(begin, static_cast<size_t>(vocab)), state).token);
      sampler.plan_draw(state, batch);
      batch.rows.back().row = r;
    }
    const double seconds =
        time([&] { device_.draw_tokens(device_.float_rows(*logits, rows, vocab), batch, got, {}, {}); });
    int wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) wrong += got[i] == expected[i] ? 0 : 1;
    report({.operation = "draw tokens",
            .shape = fmt::format("{}x{}", rows, vocab),
            .error = static_cast<double>(wrong),
            .seconds = seconds,
            .bytes = static_cast<double>(values.size() * sizeof(float))});
  }

  // Copies and moves to the host and back must keep every byte.
  void pages() {
    const AttentionSpec spec = make_spec(PositionEncoding::kNope, false);
    Cache cache(device_, spec, DType::kF16, 2 * kTileKeys);
    std::vector<std::byte> bytes(cache.view.layout.page_bytes()), back(bytes.size());
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 % 251);
    device_.write_page(cache.view, 0, bytes);
    device_.copy_page(cache.view, 0, 1);
    device_.read_page(cache.view, 1, back);
    report({.operation = "pages", .shape = fmt::format("{} bytes", bytes.size()), .error = bytes == back ? 0.0 : 1.0});
  }

  // What the device stores in fp8, byte by byte: newer devices have an instruction for it, others compute it.
  void fp8_codes() {
    const AttentionSpec spec = make_spec(PositionEncoding::kNope, false);
    const int64_t dim = spec.head_dim, width = spec.qkv_width();
    const auto layer = device_.make_attention(spec);
    Cache cache(device_, spec, DType::kFp8, kTileKeys);
    const KvLayout& layout = cache.view.layout;
    const Operands qkv = make_operands(kTileKeys, width, 91, true);
    const SequenceRows rows = cache.rows(0, kTileKeys);
    device_.write_kv(*layer, cache.view, {&rows, 1}, qkv.device);
    std::vector<std::byte> page(layout.page_bytes());
    int wrong = 0;
    for (int vector = 0; vector < 2 * spec.num_kv_heads; ++vector) {
      const bool is_key = vector < spec.num_kv_heads;
      device_.read_page(cache.view, cache.table[static_cast<size_t>(vector % spec.num_kv_heads)], page);
      for (int64_t slot = 0; slot < kTileKeys; ++slot) {
        const auto x =
            std::span(qkv.values)
                .subspan(static_cast<size_t>(slot * width + (spec.num_heads + vector) * dim), static_cast<size_t>(dim));
        const float scale = fp8_scale(x);
        const size_t scales = is_key ? layout.k_scale_offset : layout.v_scale_offset;
        uint16_t stored_scale;
        std::memcpy(&stored_scale, page.data() + scales + static_cast<size_t>(slot) * 2, sizeof stored_scale);
        wrong += stored_scale == f32_to_f16(scale) ? 0 : 1;
        for (int64_t d = 0; d < dim; ++d) {
          const int64_t at =
              is_key ? (slot / kPanelKeys * dim + d) * kPanelKeys + slot % kPanelKeys : slot * layout.padded_dim + d;
          const size_t offset = (is_key ? layout.k_offset : layout.v_offset) + static_cast<size_t>(at);
          wrong += static_cast<uint8_t>(page[offset]) == fp8_code(x[static_cast<size_t>(d)], scale) ? 0 : 1;
        }
      }
    }
    report({.operation = "fp8 codes",
            .shape = fmt::format("{} numbers", 2 * spec.num_kv_heads * kTileKeys * dim),
            .error = static_cast<double>(wrong)});
  }

  Backend& device_;
  std::unique_ptr<Backend> cpu_;
  Sizes sizes_;
  double tolerance_ = 0;
  std::unique_ptr<DeviceBuffer> probe_;  // something to wait for
  std::vector<Outcome> outcomes_;
};

std::string rate_columns(const Outcome& outcome) {
  if (outcome.seconds <= 0) return "";
  std::string text = fmt::format("{:>10.1f} us", outcome.seconds * 1e6);
  if (outcome.bytes > 0)
    text += fmt::format("  {:>8.1f} GB/s", outcome.bytes / outcome.seconds * 1e-9);
  else
    text += fmt::format("  {:>13}", "");
  if (outcome.flops > 0) text += fmt::format("  {:>8.2f} TFLOP/s", outcome.flops / outcome.seconds * 1e-12);
  return text;
}

}  // namespace

int run_selftest(int argc, char** argv) {
  CLI::App app(
      "Compares every operation of a device with the CPU and prints errors and speeds.\n"
      "The first thing to run on a new GPU; exit code 1 if a result is wrong.",
      "bam selftest");
  std::string device = "auto", dtype = "auto", size = "full", gemm = "own";
  app.add_option("--device", device, "auto, cpu or cuda")->capture_default_str();
  app.add_option("--dtype", dtype, "operands on a GPU: auto (f16), f16, bf16, f32")
      ->check(CLI::IsMember({"auto", "f16", "bf16", "f32"}))
      ->capture_default_str();
  app.add_option("--cuda-gemm", gemm, "matrix products on a GPU: own, cublas or cublas-tf32")
      ->check(CLI::IsMember({"own", "cublas", "cublas-tf32"}))
      ->capture_default_str();
  app.add_option("--size", size, "shapes: small or full")
      ->check(CLI::IsMember({"small", "full"}))
      ->capture_default_str();
  return run_command(app, argc, argv, [&] {
    const auto backend = make_backend(device, {.operands = dtype, .gemm = gemm});
    std::printf("%s\n\n%-24s %-16s %10s %10s\n", backend->description().c_str(), "operation", "shape", "error",
                "allowed");
    int failures = 0;
    for (const Outcome& outcome : SelfTest(*backend, size == "small" ? kSmall : kFull, dtype == "bf16").run()) {
      failures += outcome.ok() ? 0 : 1;
      std::printf("%-24s %-16s %10.2e %10.2e  %-4s %s\n", outcome.operation.c_str(), outcome.shape.c_str(),
                  outcome.error, outcome.tolerance, outcome.ok() ? "ok" : "BAD", rate_columns(outcome).c_str());
    }
    std::printf("\n%s\n", failures == 0 ? "all operations agree with the CPU"
                                        : fmt::format("{} of the results are wrong", failures).c_str());
    return failures == 0 ? 0 : 1;
  });
}

}  // namespace bam
