// The same products by oneDNN, where it is installed (libdnnl-dev): a peer that is known to be near the limit.
#pragma once

#include <cstdint>

namespace bam::bench {

bool have_onednn();
// y [m, n] = x [m, k] * w [k, n], float32, on all threads OpenMP uses.
void onednn_sgemm(int64_t m, int64_t n, int64_t k, const float* x, const float* w, float* y);
// The same for unsigned and signed bytes with exact 32-bit sums.
void onednn_igemm(int64_t m, int64_t n, int64_t k, const uint8_t* x, const int8_t* w, int32_t* y);

}  // namespace bam::bench
