// kernels/cuda/budget.tsv beside what the sources ask for: scripts/cuda_report.sh can read registers and static bytes from
// machine code, but dynamic shared memory is decided at the launch.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cuda/attention_mma_types.h"
#include "tests/cuda_emu/emu/config.h"
#include "tests/support/paths.h"

namespace bam::cuda {
namespace {

struct Line {
  int capability;
  std::string kernel, what;
  size_t registers, fixed, dynamic;
};

std::vector<Line> budget() {
  std::vector<Line> lines;
  std::ifstream file(testing::source_dir() / "kernels/cuda/budget.tsv");
  for (std::string text; std::getline(file, text);) {
    if (!text.starts_with("sm_")) continue;
    std::stringstream columns(text.substr(3));
    std::vector<std::string> words;
    for (std::string word; std::getline(columns, word, '\t');) words.push_back(word);
    EXPECT_EQ(words.size(), 11u) << text;
    lines.push_back({std::stoi(words.at(0)), words.at(1), words.at(2), std::stoul(words.at(8)), std::stoul(words.at(9)),
                     std::stoul(words.at(10))});
  }
  return lines;
}

template <typename T, mma::Codes kCodes, int kDims, int kRows = 16>
int check_lines(const std::string& config) {
  using C = mma::Config<T, kCodes, kDims, kRows>;
  int found = 0;
  for (const Line& line : budget()) {
    if (line.kernel != "attention_mma_kernel<mma::" + config + " >") continue;
    const bool row = line.what == "one row";
    EXPECT_EQ(line.dynamic,
              mma::SharedLayout<C>::bytes(row ? 32 : mma::kMaxThreads, bias_stage_floats(1, row ? 1 : kMaxBlockRows)))
        << config << ", " << line.what;
    ++found;
  }
  return found;
}

TEST(Budget, DynamicSharedBytesAreThoseOfTheLaunch) {
  using mma::Codes;
  int found = 0;
  found += check_lines<__half, Codes::kNone, 3>("Config<__half, 0, 3, 16>");
  found += check_lines<__half, Codes::kNone, 4>("Config<__half, 0, 4, 16>");
  found += check_lines<__half, Codes::kNone, 8>("Config<__half, 0, 8, 16>");
  found += check_lines<__nv_bfloat16, Codes::kNone, 3>("Config<__nv_bfloat16, 0, 3, 16>");
  found += check_lines<__nv_bfloat16, Codes::kNone, 4>("Config<__nv_bfloat16, 0, 4, 16>");
  found += check_lines<__nv_bfloat16, Codes::kNone, 8>("Config<__nv_bfloat16, 0, 8, 16>");
  found += check_lines<__half, Codes::kInt8, 4>("Config<__half, 1, 4, 16>");
  found += check_lines<__half, Codes::kInt8, 4, 8>("Config<__half, 1, 4, 8>");
  found += check_lines<__half, Codes::kFp8, 4>("Config<__half, 2, 4, 16>");
  const auto lines = budget();
  EXPECT_EQ(found, std::ranges::count_if(lines, [](auto& line) { return line.kernel.starts_with("attention_mma"); }));
  EXPECT_GT(found, 0);
}

// What a block of four warps needs is there on the smallest device of each kind.
TEST(Budget, EveryKernelFitsADeviceOfItsArchitecture) {
  for (const Line& line : budget()) {
    cuda_emu::Config config = cuda_emu::config();
    config.compute_capability = line.capability;
    EXPECT_LE(line.fixed + line.dynamic, config.shared_per_block_optin()) << line.kernel;
    EXPECT_LE(line.registers * mma::kMaxThreads, 65536u) << line.kernel;
  }
}

}  // namespace
}  // namespace bam::cuda
