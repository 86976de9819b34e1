#include "bench/support/onednn.h"

#ifdef BAM_BENCH_ONEDNN
#include <dnnl.h>
#endif

#include "base/check.h"

namespace bam::bench {

#ifdef BAM_BENCH_ONEDNN
bool have_onednn() { return true; }

void onednn_sgemm(int64_t m, int64_t n, int64_t k, const float* x, const float* w, float* y) {
  BAM_CHECK(dnnl_sgemm('N', 'N', m, n, k, 1.0f, x, k, w, n, 0.0f, y, n) == dnnl_success);
}

void onednn_igemm(int64_t m, int64_t n, int64_t k, const uint8_t* x, const int8_t* w, int32_t* y) {
  const int32_t zero = 0;
  BAM_CHECK(dnnl_gemm_u8s8s32('N', 'N', 'F', m, n, k, 1.0f, x, k, 0, w, n, 0, 0.0f, y, n, &zero) == dnnl_success);
}
#else
bool have_onednn() { return false; }
void onednn_sgemm(int64_t, int64_t, int64_t, const float*, const float*, float*) { BAM_CHECK(false); }
void onednn_igemm(int64_t, int64_t, int64_t, const uint8_t*, const int8_t*, int32_t*) { BAM_CHECK(false); }
#endif

}  // namespace bam::bench
