#include "models/weight_memory.h"

#include "kernels/int4.h"

namespace bam {

DType output_dtype(const ModelOptions& options) {
  return options.head_dtype.value_or(options.weight_dtype == DType::kI4 ? DType::kI8 : options.weight_dtype);
}

uint64_t matrix_bytes(const ModelConfig& config, const ModelOptions& options) {
  const auto held = [](DType dtype, int64_t rows, int64_t cols) {
    const int64_t row = dtype == DType::kI4 ? int4_code_bytes(cols) + int4_factor_bytes(cols)
                                            : cols * static_cast<int64_t>(dtype_bits(dtype)) / 8;
    const bool quantised = dtype == DType::kI4 || dtype == DType::kI8;
    return rows * (row + (quantised ? int64_t{sizeof(float) + sizeof(int32_t)} : 0));  // scale and offset
  };
  const int64_t hidden = config.hidden_size, wide = config.intermediate_size;
  const int64_t layer = held(options.weight_dtype, config.q_size() + 2 * config.kv_size(), hidden) +
                        held(options.weight_dtype, hidden, config.q_size()) +
                        held(options.weight_dtype, 2 * wide, hidden) + held(options.weight_dtype, hidden, wide);
  const StageRange& stage = options.stage;
  const int64_t layers = stage.num_layers < 0 ? config.num_layers - stage.first_layer : stage.num_layers;
  const bool last = stage.first_layer + layers == config.num_layers;
  return static_cast<uint64_t>(layers * layer + (last ? held(output_dtype(options), config.vocab_size, hidden) : 0));
}

}  // namespace bam
