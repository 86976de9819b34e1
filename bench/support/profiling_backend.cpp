#include "bench/support/profiling_backend.h"

#include "bench/support/runner.h"

namespace bam::bench {

double ProfilingBackend::now() { return now_seconds(); }

}  // namespace bam::bench
