// The error of four-bit weights on real matrices: ours (kernels/int4.h) beside the rules of others, written anew here.
//   build/bench_quantization FILE.safetensors [...]
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "kernels/dtype.h"
#include "kernels/int4.h"
#include "models/safetensors.h"

namespace bam::bench {
namespace {

float as_f16(float value) { return f16_to_f32(f32_to_f16(value)); }

// Calls round(begin, count, out) for every group of a row.
template <typename Round>
void by_groups(std::span<const float> row, size_t group, std::span<float> out, const Round& round) {
  for (size_t at = 0; at < row.size(); at += group) {
    const size_t count = std::min(group, row.size() - at);
    round(row.subspan(at, count), out.subspan(at, count));
  }
}

// llama.cpp's Q4_0 (groups of 32) and OpenVINO's int4_sym: the number farthest from zero becomes -8.
void largest_is_minus_eight(std::span<const float> x, std::span<float> out) {
  const float extreme = *std::ranges::max_element(x, {}, [](float v) { return std::fabs(v); });
  const float scale = as_f16(extreme / -8);
  for (size_t i = 0; i < x.size(); ++i)
    out[i] = scale == 0 ? 0 : scale * std::clamp(std::floor(x[i] / scale + 0.5f), -8.0f, 7.0f);
}

// OpenVINO's int4_asym: fifteen steps from the smallest to the largest number, zero among them.
void smallest_to_largest(std::span<const float> x, std::span<float> out) {
  const float low = std::min(0.0f, *std::ranges::min_element(x)), high = std::max(0.0f, *std::ranges::max_element(x));
  const float scale = as_f16((high - low) / 15);
  const float zero = scale == 0 ? 0 : std::clamp(std::round(-low / scale), 0.0f, 15.0f);
  for (size_t i = 0; i < x.size(); ++i)
    out[i] = scale == 0 ? 0 : scale * (std::clamp(std::round(x[i] / scale) + zero, 0.0f, 15.0f) - zero);
}

struct Scheme {
  const char* name;
  std::function<double(double k)> bits;  // per weight of a row of k
  std::function<void(std::span<const float> row, std::span<float> out)> round;
};

const std::vector<Scheme>& schemes() {
  const auto grouped = [](size_t group, auto rule) {
    return [=](std::span<const float> row, std::span<float> out) { by_groups(row, group, out, rule); };
  };
  static const std::vector<Scheme> all = {
      {"ours: levels, group 16", [](double k) { return 4.25 + 32 / k; },
       [](std::span<const float> row, std::span<float> out) {
         Int4Row codes(static_cast<int64_t>(row.size()));
         codes.quantize(row.data());
         codes.to_f32(out.data());
       }},
      {"Q4_0, symmetric, group 32", [](double) { return 4.5; }, grouped(32, largest_is_minus_eight)},
      {"OpenVINO int4_sym, group 32", [](double) { return 4.5; }, grouped(32, largest_is_minus_eight)},
      {"OpenVINO int4_asym, group 32", [](double) { return 4.625; }, grouped(32, smallest_to_largest)},
      {"OpenVINO int4_sym, group 64", [](double) { return 4.25; }, grouped(64, largest_is_minus_eight)},
      {"OpenVINO int4_asym, group 64", [](double) { return 4.3125; }, grouped(64, smallest_to_largest)},
      {"OpenVINO int4_sym, group 128", [](double) { return 4.125; }, grouped(128, largest_is_minus_eight)},
      {"OpenVINO int4_asym, group 128", [](double) { return 4.15625; }, grouped(128, smallest_to_largest)},
  };
  return all;
}

std::vector<float> values_of(const SafetensorsFile& file, const TensorInfo& tensor) {
  const std::span<const std::byte> bytes = file.data(tensor);
  const size_t width = tensor_type_bytes(tensor.type);
  std::vector<float> values(bytes.size() / width);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half;
    if (width == 2) std::memcpy(&half, bytes.data() + 2 * i, sizeof half);
    if (width == 4) std::memcpy(&values[i], bytes.data() + 4 * i, sizeof(float));
    if (width == 2) values[i] = tensor.type == TensorType::kBF16 ? bf16_to_f32(half) : f16_to_f32(half);
  }
  return values;
}

bool is_linear_layer(const TensorInfo& tensor) {
  const bool floating =
      tensor.type == TensorType::kF32 || tensor.type == TensorType::kF16 || tensor.type == TensorType::kBF16;
  return floating && tensor.shape.size() == 2 && std::min(tensor.shape[0], tensor.shape[1]) >= 64 &&
         tensor.name.find("embeddings") == std::string::npos;
}

void compare(const std::string& path) {
  const SafetensorsFile file(path);
  const size_t count = schemes().size();
  std::vector<double> error(count), bits(count), highest(count);
  std::vector<int> behind(count);
  double size = 0, weights = 0;
  int matrices = 0;
  for (const TensorInfo& tensor : file.header().tensors) {
    if (!is_linear_layer(tensor)) continue;
    ++matrices;
    const std::vector<float> values = values_of(file, tensor);
    const auto k = static_cast<size_t>(tensor.shape[1]);
    std::vector<float> rounded(k);
    double squares = 0;
    std::vector<double> own(count);
    for (size_t at = 0; at < values.size(); at += k) {
      const std::span row(values.data() + at, k);
      for (const float v : row) squares += static_cast<double>(v) * v;
      for (size_t s = 0; s < count; ++s) {
        schemes()[s].round(row, rounded);
        for (size_t i = 0; i < k; ++i) own[s] += std::pow(static_cast<double>(row[i]) - rounded[i], 2);
      }
    }
    for (size_t s = 0; s < count; ++s) {
      error[s] += own[s];
      bits[s] += schemes()[s].bits(static_cast<double>(k)) * static_cast<double>(values.size());
      highest[s] = std::max(highest[s], std::sqrt(own[s] / squares));
      behind[s] += own[s] > own[0];
    }
    size += squares;
    weights += static_cast<double>(values.size());
  }
  fmt::print("\n{}: {} matrices, {:.1f}M weights\n", path, matrices, weights / 1e6);
  fmt::print("{:<32} {:>12} {:>16} {:>14} {:>26}\n", "rule", "bits/weight", "relative error", "worst matrix",
             "matrices where ours is less");
  for (size_t s = 0; s < count; ++s) {
    fmt::print("{:<32} {:>12.3f} {:>14.2f} % {:>12.2f} %", schemes()[s].name, bits[s] / weights,
               100 * std::sqrt(error[s] / size), 100 * highest[s]);
    if (s > 0) fmt::print(" {:>19} of {}", behind[s], matrices);
    fmt::print("\n");
  }
}

}  // namespace
}  // namespace bam::bench

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_quantization FILE.safetensors [...]\n");
    return 2;
  }
  try {
    for (int i = 1; i < argc; ++i) bam::bench::compare(argv[i]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_quantization: %s\n", error.what());
    return 1;
  }
}
