#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_worker.h"

namespace bam::cpu {
namespace {

constexpr std::string_view kBf16Level = "avx512bf16";
struct IsaLevel {
  std::string_view name;
  int64_t target;
};
constexpr IsaLevel kLevels[] = {{"avx512bf16", HWY_AVX3_DL},
                                {"avx512vnni", HWY_AVX3_DL},
                                {"avx512", HWY_AVX3},
                                {"avx2", HWY_AVX2},
                                {"neon", HWY_NEON}};

// Restricts Highway's dispatch while the kernel tables are taken. Returns the level in use.
std::string choose_isa(const std::string& wanted) {
  const int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;  // of this machine and of this build
  if (wanted == "portable") {
    hwy::SetSupportedTargetsForTest(HWY_STATIC_TARGET);
    return "portable";
  }
  for (const IsaLevel& level : kLevels) {
    // Only --math fast knows the difference between the first two.
    const bool has =
        (supported & level.target) != 0 && (level.name != kBf16Level || pair_kernels(PairLevel::kNative).native);
    if (wanted == level.name && !has) throw UsageError("this CPU does not have {}", wanted);
    if (wanted == level.name || (wanted == "auto" && has)) {
      hwy::SetSupportedTargetsForTest(level.target | HWY_STATIC_TARGET);
      return std::string(level.name);
    }
  }
  if (wanted != "auto")
    throw UsageError("unknown instruction set '{}': auto, portable, avx2, avx512, avx512vnni, avx512bf16", wanted);
  return "portable";
}

float load_float(const std::byte* at) {
  float value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Row `row` of a matrix of four-bit weights.
void load_int4_row(const HostMatrix& matrix, int64_t row, Int4Row& out) {
  out.unpack(matrix.data + row * int4_code_bytes(matrix.cols),
             matrix.int4_factors + row * int4_factor_bytes(matrix.cols),
             load_float(matrix.int4_scales + row * int64_t{sizeof(float)}));
}

// Row `row` of a host matrix as float32.
void load_row(const HostMatrix& matrix, int64_t row, float* out) {
  if (matrix.dtype == DType::kI4) {
    Int4Row codes(matrix.cols);
    load_int4_row(matrix, row, codes);
    return codes.to_f32(out);
  }
  const size_t bytes = static_cast<size_t>(matrix.cols) * dtype_bits(matrix.dtype) / 8;
  const std::byte* at = matrix.data + static_cast<size_t>(row) * bytes;
  if (matrix.dtype == DType::kF32) {
    std::memcpy(out, at, bytes);
    return;
  }
  for (int64_t i = 0; i < matrix.cols; ++i) {
    uint16_t half;
    std::memcpy(&half, at + 2 * i, sizeof half);
    out[i] = matrix.dtype == DType::kBF16 ? bf16_to_f32(half) : f16_to_f32(half);
  }
}

// Rows of a GEMM done by one task.
constexpr int64_t kRowBlockMin = 96, kRowBlockMax = 192;

}  // namespace

CpuBackend::CpuBackend(const BackendOptions& options) : pool_(options.num_threads), planner_(pool_.num_threads()) {
  isa_name_ = choose_isa(options.isa);
  gemm_ = gemm_kernels();
  attention_ = attention_kernels();
  kv_store_ = kv_store_kernels();
  elementwise_ = elementwise_kernels();
  pairs_ = pair_kernels(isa_name_ == kBf16Level   ? PairLevel::kNative
                        : isa_name_ == "portable" ? PairLevel::kPortable
                                                  : PairLevel::kFma);
  if (options.math != "exact" && options.math != "fast")
    throw UsageError("unknown math '{}': exact, fast", options.math);
  fast_ = options.math == "fast";
  if (options.attention_math != "f32" && options.attention_math != "int8")
    throw UsageError("unknown attention math '{}': f32, int8", options.attention_math);
  integer_attention_ = options.attention_math == "int8";
  hwy::SetSupportedTargetsForTest(0);
}

CpuBackend::~CpuBackend() = default;

std::string CpuBackend::description() const {
  return fmt::format("cpu ({}, {} thread{}{})", isa_name_, pool_.num_threads(), pool_.num_threads() == 1 ? "" : "s",
                     !fast_          ? ""
                     : pairs_.native ? ", fast math"
                                     : ", fast math without its instruction");
}

// Every level with fused multiply-add and sixteen-lane sums in one order gives the same bits; portable code has
// neither.
std::string CpuBackend::numerics() const {
  std::string kind = isa_name_ == "portable" || isa_name_ == "neon" ? "cpu " + isa_name_ : "cpu fma";
  if (fast_) kind += pairs_.same_bits ? " bf16 pairs" : " bf16 pairs of this processor's own kind";
  if (integer_attention_) kind += " int8 attention";
  return kind;
}

// bfloat16 keeps eight bits. Rounding to codes moves every element by at most half a step of max|x| / 127, the vector by
// sqrt(head_dim) / 254 of its norm.
ArithmeticRounding CpuBackend::rounding(int head_dim) const {
  return {.activations = fast_ ? 0x1p-8 : 0,
          .queries = integer_attention_ ? std::sqrt(static_cast<double>(head_dim)) / 254 : 0};
}

std::unique_ptr<DeviceBuffer> CpuBackend::allocate(size_t bytes) {
  return std::make_unique<CpuBuffer>(arena_.allocate(bytes));
}

std::unique_ptr<LinearWeights> CpuBackend::make_linear(std::span<const HostMatrix> parts, DType weight_dtype) {
  auto linear = std::make_unique<CpuLinear>();
  linear->k = parts.front().cols;
  linear->dtype = weight_dtype;
  std::vector<std::pair<const HostMatrix*, int64_t>> first_rows;
  for (const HostMatrix& part : parts) {
    BAM_CHECK(part.cols == linear->k);
    first_rows.emplace_back(&part, linear->n);
    linear->n += part.rows;
  }
  linear->in_pairs = fast_ && (weight_dtype == DType::kBF16 || weight_dtype == DType::kF16);
  const bool int4 = weight_dtype == DType::kI4;
  linear->panels = arena_.allocate(linear->in_pairs ? packed_pair_bytes(linear->k, linear->n)
                                   : int4           ? packed_int4_code_bytes(linear->k, linear->n)
                                                    : packed_bytes(weight_dtype, linear->k, linear->n));
  if (int4) linear->factors = arena_.allocate(packed_int4_factor_bytes(linear->k, linear->n));
  const int64_t padded = (linear->n + kPanelCols - 1) / kPanelCols * kPanelCols;
  if (weight_dtype == DType::kI8 || int4) {
    linear->scale.resize(static_cast<size_t>(padded));
    linear->offset.resize(static_cast<size_t>(padded));
  }
  pool_.parallel_for(padded / kPanelCols, [&](int64_t panel, int) {
    std::vector<float> row(static_cast<size_t>(linear->k));
    Int4Row codes(int4 ? linear->k : 0);
    const int64_t end = std::min((panel + 1) * kPanelCols, linear->n);
    for (int64_t out = panel * kPanelCols; out < end; ++out) {
      auto it = std::upper_bound(first_rows.begin(), first_rows.end(), out,
                                 [](int64_t value, const auto& entry) { return value < entry.second; });
      const auto& [matrix, first] = *std::prev(it);
      if (int4) {
        if (matrix->dtype == DType::kI4) {
          load_int4_row(*matrix, out - first, codes);
        } else {
          load_row(*matrix, out - first, row.data());
          codes.quantize(row.data());
        }
        linear->scale[static_cast<size_t>(out)] = codes.scale;
        pack_row_int4(codes, out, linear->panels.as<uint8_t>(), linear->factors.as<uint8_t>(), linear->offset.data());
        continue;
      }
      load_row(*matrix, out - first, row.data());
      if (linear->in_pairs) {
        pack_row_pairs(row.data(), linear->k, out, linear->panels.as<uint32_t>());
      } else if (weight_dtype == DType::kI8) {
        pack_row_int8(row.data(), linear->k, out, linear->panels.as<int8_t>(), linear->scale.data(),
                      linear->offset.data());
      } else {
        pack_row(weight_dtype, row.data(), linear->k, out, linear->panels.data());
      }
    }
  });
  return linear;
}

std::unique_ptr<DeviceBuffer> CpuBackend::make_vector(std::span<const float> values) {
  auto buffer = std::make_unique<CpuBuffer>(arena_.allocate(values.size_bytes()));
  std::memcpy(buffer->data(), values.data(), values.size_bytes());
  return buffer;
}

void CpuBackend::do_embed(const HostMatrix& table, std::span<const int32_t> tokens, FloatRows x) {
  for (size_t r = 0; r < tokens.size(); ++r) {
    load_row(table, tokens[r], x.data + static_cast<int64_t>(r) * table.cols);
  }
}

void CpuBackend::do_add_sinusoidal(std::span<const SequenceRows> sequences, double theta, FloatRows x) {
  const int64_t hidden = x.width;
  for (const SequenceRows& seq : sequences) {
    pool_.parallel_for(seq.num_rows, [&](int64_t r, int) {
      float* row = x.data + (seq.row_begin + r) * hidden;
      const auto position = static_cast<double>(seq.start_pos + r);
      for (int64_t d = 0; d < hidden; ++d) {
        const double angle =
            position * std::exp(-std::log(theta) * static_cast<double>(d) / static_cast<double>(hidden));
        row[d] += static_cast<float>(d % 2 == 0 ? std::sin(angle) : std::cos(angle));
      }
    });
  }
}

// fn(row) for every row of `width` numbers, a few thousand numbers at a time: less is not worth handing out.
template <typename Fn>
void CpuBackend::for_rows(int64_t rows, int64_t width, const Fn& fn) {
  constexpr int64_t kNumbers = 4096;
  const int64_t at_once = std::max<int64_t>(kNumbers / width, 1);
  const int64_t blocks = rows * width < 4 * kNumbers ? 1 : (rows + at_once - 1) / at_once;
  const int64_t per_block = blocks == 1 ? rows : at_once;
  pool_.parallel_for(blocks, [&](int64_t block, int) {
    for (int64_t r = block * per_block; r < std::min(rows, (block + 1) * per_block); ++r) fn(r);
  });
}

void CpuBackend::do_rms_norm(ConstFloatRows x, const DeviceBuffer& weight, float eps, OperandRows out) {
  const float* w = static_cast<const CpuBuffer&>(weight).memory.as<float>();
  float* to = static_cast<float*>(out.data);
  for_rows(x.count, x.width,
           [&](int64_t r) { elementwise_.rms_norm(x.data + r * x.width, w, eps, x.width, to + r * x.width); });
}

void CpuBackend::do_swiglu(ConstOperandRows in, OperandRows out) {
  const float* gate_up = static_cast<const float*>(in.data);
  float* to = static_cast<float*>(out.data);
  for_rows(in.count, in.width, [&](int64_t r) {
    const float* gate = gate_up + r * in.width;
    elementwise_.swiglu(gate, gate + out.width, out.width, to + r * out.width);
  });
}

void CpuBackend::do_linear(const LinearWeights& weights, ConstOperandRows in, OperandRows out) {
  gemm(static_cast<const CpuLinear&>(weights), static_cast<const float*>(in.data), in.count,
       static_cast<float*>(out.data), false);
}

void CpuBackend::do_linear_add(const LinearWeights& weights, ConstOperandRows in, FloatRows residual) {
  gemm(static_cast<const CpuLinear&>(weights), static_cast<const float*>(in.data), in.count, residual.data, true);
}

void CpuBackend::do_linear_logits(const LinearWeights& weights, ConstOperandRows in, FloatRows logits) {
  gemm(static_cast<const CpuLinear&>(weights), static_cast<const float*>(in.data), in.count, logits.data, false);
}

void CpuBackend::gemm(const CpuLinear& weights, const float* in, int64_t rows, float* out, bool accumulate) {
  if (rows == 0) return;
  ensure_workers(16);
  ensure_unpack(weights);
  const int64_t panels = (weights.n + kPanelCols - 1) / kPanelCols;
  // Few rows stream weights in long runs; many rows leave small tasks so that threads finish together.
  const int64_t per_task = rows <= 4 ? std::max<int64_t>(4, panels / (8 * pool_.num_threads()) / 4 * 4) : 2;
  const int64_t panel_groups = (panels + per_task - 1) / per_task;
  // As many rows as possible share a panel's way through the caches, but every thread gets several tasks.
  const int64_t wanted_blocks = (4 * pool_.num_threads() + panel_groups - 1) / panel_groups;
  const int64_t block_rows = std::clamp((rows + wanted_blocks - 1) / wanted_blocks, kRowBlockMin, kRowBlockMax);
  const int64_t row_blocks = (rows + block_rows - 1) / block_rows;
  const int64_t depth = weights.dtype == DType::kI4 ? int4_padded_depth(weights.k) : weights.k;
  const int64_t row_bytes =
      weights.in_pairs ? num_pairs(weights.k) * int64_t{sizeof(uint32_t)} : gemm_.quantised_row_bytes(depth);
  const uint8_t* rounded = round_rows(weights, in, rows, row_bytes);
  pool_.parallel_for_ahead(row_blocks * panel_groups, [&](int64_t task, int64_t next_task, int worker) {
    const int64_t next_panel = next_task < 0 ? -1 : next_task % panel_groups * per_task;
    const int64_t row0 = task / panel_groups * block_rows;
    const int64_t count = std::min(block_rows, rows - row0);
    const int64_t first = task % panel_groups * per_task, last = std::min(first + per_task, panels);
    if (weights.in_pairs) {
      pairs_.gemm({.x = reinterpret_cast<const uint32_t*>(rounded + row0 * row_bytes),
                   .ldx = num_pairs(weights.k),
                   .rows = count,
                   .pairs = num_pairs(weights.k),
                   .n = weights.n,
                   .panels = weights.panels.as<uint32_t>(),
                   .first_panel = first,
                   .last_panel = last,
                   .next_panel = next_panel,
                   .y = out + row0 * weights.n,
                   .ldy = weights.n,
                   .accumulate = accumulate});
    } else if (rounded != nullptr) {
      Int8GemmArgs args{.x = rounded + row0 * row_bytes,
                        .ldx = row_bytes,
                        .x_scale = rounded_scale_.data() + row0,
                        .rows = count,
                        .k = depth,
                        .n = weights.n,
                        .w_scale = weights.scale.data(),
                        .w_offset = weights.offset.data(),
                        .first_panel = first,
                        .last_panel = last,
                        .next_panel = next_panel,
                        .y = out + row0 * weights.n,
                        .ldy = weights.n,
                        .accumulate = accumulate};
      if (weights.dtype == DType::kI4) {
        gemm_.gemm_int4({.sums = args,
                         .codes = weights.panels.as<uint8_t>(),
                         .factors = weights.factors.as<uint8_t>(),
                         .decoded = workers_[static_cast<size_t>(worker)]->unpack.as<int8_t>()});
      } else {
        args.panels = weights.panels.as<int8_t>();
        gemm_.gemm_int8(args);
      }
    } else {
      gemm_.gemm({.x = in + row0 * weights.k,
                  .ldx = weights.k,
                  .rows = count,
                  .k = weights.k,
                  .n = weights.n,
                  .panels = weights.panels.data(),
                  .dtype = weights.dtype,
                  .first_panel = first,
                  .last_panel = last,
                  .next_panel = next_panel,
                  .y = out + row0 * weights.n,
                  .ldy = weights.n,
                  .accumulate = accumulate,
                  .unpack = workers_[static_cast<size_t>(worker)]->unpack.as<float>()});
    }
  });
}

void CpuBackend::ensure_unpack(const CpuLinear& weights) {
  if (weights.dtype != DType::kI4) return;
  const auto bytes = static_cast<size_t>(2 * kPanelCols * int4_padded_depth(weights.k));
  for (auto& worker : workers_) {
    if (worker->unpack.size() < bytes) worker->unpack = arena_.allocate(bytes);
  }
}

const uint8_t* CpuBackend::round_rows(const CpuLinear& weights, const float* in, int64_t rows, int64_t row_bytes) {
  if (!weights.in_pairs && weights.dtype != DType::kI8 && weights.dtype != DType::kI4) return nullptr;
  const auto bytes = static_cast<size_t>(rows * row_bytes);
  if (bytes > rounded_.size()) rounded_ = arena_.allocate(std::max(bytes, 2 * rounded_.size()));
  rounded_scale_.resize(std::max(rounded_scale_.size(), static_cast<size_t>(rows)));
  for_rows(rows, weights.k, [&](int64_t r) {
    const float* row = in + r * weights.k;
    uint8_t* to = rounded_.as<uint8_t>() + r * row_bytes;
    if (weights.in_pairs) {
      pairs_.convert_row(row, weights.k, reinterpret_cast<uint32_t*>(to));
    } else {
      rounded_scale_[static_cast<size_t>(r)] = gemm_.quantize_row(row, weights.k, to);
      const int64_t written = gemm_.quantised_row_bytes(weights.k);
      std::memset(to + written, gemm_.zero_byte, static_cast<size_t>(row_bytes - written));
    }
  });
  return rounded_.as<uint8_t>();
}

void CpuBackend::do_gather_rows(ConstFloatRows in, std::span<const int32_t> rows, FloatRows out) {
  for (size_t r = 0; r < rows.size(); ++r) {
    std::memcpy(out.data + static_cast<int64_t>(r) * out.width, in.data + int64_t{rows[r]} * in.width,
                static_cast<size_t>(in.width) * sizeof(float));
  }
}

void CpuBackend::do_read_floats(ConstFloatRows device, std::span<float> host) {
  if (device.data != host.data()) std::memcpy(host.data(), device.data, host.size_bytes());
}

void CpuBackend::do_copy_page(const KvCacheView& kv, int32_t from, int32_t to) {
  std::memcpy(kv.page(to).data(), kv.page(from).data(), kv.layout.page_bytes());
}

void CpuBackend::do_read_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<std::byte> out) {
  for (const int32_t page : pages) {
    std::memcpy(out.data(), kv.page(page).data(), kv.layout.page_bytes());
    out = out.subspan(kv.layout.page_bytes());
  }
}

void CpuBackend::do_write_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<const std::byte> in) {
  for (const int32_t page : pages) {
    std::memcpy(kv.page(page).data(), in.data(), kv.layout.page_bytes());
    in = in.subspan(kv.layout.page_bytes());
  }
}

}  // namespace bam::cpu

namespace bam {

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options) {
  return std::make_unique<cpu::CpuBackend>(options);
}

}  // namespace bam
