#include "kernels/backend.h"

#include <gtest/gtest.h>

#include "tests/support/backend_doors.h"

namespace bam {
namespace {

TEST(BackendDoors, OfTheCpuRefuseWhatDoesNotFit) {
  const auto backend = make_cpu_backend({.num_threads = 1});
  test::expect_misfits_are_refused(*backend);
}

}  // namespace
}  // namespace bam
