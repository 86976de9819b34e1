#include <cstdlib>
#include <limits>
#include <string>

#include "base/error.h"
#include "models/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const bam::ModelConfig c =
        bam::parse_model_config(std::string(reinterpret_cast<const char*>(data), size), "config.json");
    // What the rest of the program takes for granted.
    const bool sizes = c.hidden_size > 0 && c.intermediate_size > 0 && c.num_layers > 0 && c.num_heads > 0 &&
                       c.num_kv_heads > 0 && c.head_dim > 0 && c.vocab_size > 0 && c.num_heads % c.num_kv_heads == 0;
    const bool numbers = c.rms_norm_eps > 0 && c.prior_eps > 0 && c.rope_theta > 0 && c.sinusoidal_theta > 0 &&
                         c.rope_theta < std::numeric_limits<double>::max();
    const bool window = c.position_encoding != bam::PositionEncoding::kRopeLocal || c.sliding_window > 0;
    if (!sizes || !numbers || !window || c.num_parameters_without_embedding() <= 0) std::abort();
  } catch (const bam::Error&) {
  }
  return 0;
}
