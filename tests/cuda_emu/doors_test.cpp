// Rows that do not fit are refused on the way to the device, too, and behind the seam by kernels' host functions.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/kernels.h"
#include "tests/cuda_emu/backend_test_support.h"
#include "tests/support/backend_doors.h"

namespace bam {
namespace {

TEST(BackendDoors, OfTheDeviceRefuseWhatDoesNotFit) {
  const auto backend = cuda_test::make_cuda();
  test::expect_misfits_are_refused(*backend);
}

TEST(KernelDoors, RefuseRowsOfOtherShapes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::vector<float> a(64), b(64);
  const cuda::Queue queue(nullptr);
  const auto floats = [&](int64_t count, int64_t width) { return FloatRows{a.data(), count, width}; };
  const auto operands = [&](int64_t count, int64_t width) { return OperandRows{b.data(), count, width}; };
  EXPECT_DEATH(cuda::rms_norm_rows(floats(4, 16), a.data(), 1e-5f, DType::kF32, operands(4, 15), queue), "width");
  EXPECT_DEATH(cuda::rms_norm_rows(floats(3, 16), a.data(), 1e-5f, DType::kF32, operands(4, 16), queue), "count");
  EXPECT_DEATH(cuda::swiglu_rows(DType::kF32, operands(2, 16), operands(2, 16), queue), "width");
  EXPECT_DEATH(cuda::operands_to_float(DType::kF32, operands(2, 16), floats(1, 16), queue), "count");
  const int32_t row = 0;
  EXPECT_DEATH(cuda::gather_float_rows(floats(2, 16), &row, floats(1, 15), queue), "width");
  std::vector<int8_t> codes(64);
  EXPECT_DEATH(cuda::quantize_rows(DType::kF32, operands(2, 16), {codes.data(), 2, 15}, a.data(), queue), "width");
  EXPECT_DEATH(cuda::draw_rows(nullptr, {}, floats(2, 16), floats(1, 15), nullptr, queue), "width");
}

}  // namespace
}  // namespace bam
