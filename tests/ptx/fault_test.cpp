// Faults put into the PTX of our own kernels, one at a time: every one of them must be caught, by a fault of the
// interpreter or by a result that is wrong. BAM_PTX names the folder of PTX files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/cuda_emu/attention_test_support.h"
#include "tests/ptx/device.h"
#include "tests/ptx/ptx_test_support.h"

namespace {

using bam::DType;
using bam::cuda_test::Case;
using ptx_test::mentions;

std::filesystem::path folder() {
  const char* path = std::getenv("BAM_PTX");
  return path == nullptr ? "" : path;
}

std::string text_of(const std::string& file) {
  std::stringstream text;
  text << std::ifstream(folder() / file).rdbuf();
  return text.str();
}

// What happens: a message of the interpreter, or results.
struct Outcome {
  std::string fault;
  std::vector<float> values;
  bool operator==(const Outcome&) const = default;
};

// Runs `work` on the PTX, with `text` in the place of the file that its kernels come from.
Outcome outcome(const std::function<std::vector<float>()>& work, const std::string& text = "") {
  ptx::Device device(folder());
  cuda_emu::Config config = cuda_emu::config();
  config.compute_capability = device.architecture();
  const cuda_emu::ScopedConfig scope(config);
  if (!text.empty()) device.replace(std::make_unique<ptx::Module>(text, "broken.ptx"));
  device.install();
  Outcome result;
  result.fault = ptx_test::fault_of([&] { result.values = work(); });
  return result;
}

std::vector<float> multiply() {
  constexpr int64_t kRows = 70, kDepth = 160, kColumns = 40;
  const auto backend = bam::cuda_test::make_cuda();
  const auto x = bam::cuda_test::random_floats(kRows * kDepth, 1),
             w = bam::cuda_test::random_floats(kColumns * kDepth, 2);
  const bam::HostMatrix matrix = bam::cuda_test::host_matrix(w, kColumns, kDepth);
  const auto weights = backend->make_linear({&matrix, 1}, DType::kF16);
  const auto operands = bam::cuda_test::to_device(*backend, x, DType::kF16);
  const auto out = backend->allocate(kRows * kColumns * sizeof(float));
  backend->linear_logits(*weights, backend->operand_rows(*operands, kRows, kDepth),
                         backend->float_rows(*out, kRows, kColumns));
  return bam::cuda_test::floats(*backend, *out, kRows * kColumns);
}

std::vector<float> attend(const Case& test, int64_t first_query = 0, std::vector<int64_t> reach = {}) {
  const auto backend = bam::cuda_test::make_cuda(test.operand);
  bam::AttentionSpec spec = bam::cuda_test::make_spec(test);
  spec.reach = std::move(reach);
  return bam::cuda_test::run(*backend, test, spec, bam::cuda_test::make_qkv(test, 3), test.chunk, {}, nullptr,
                             first_query);
}
std::vector<float> attend_short() {
  return attend({.head_dim = 32, .heads = 2, .kv_heads = 1, .tokens = 192, .chunk = 40});
}
std::vector<float> attend_short_codes() {
  return attend({.kv = DType::kI8, .head_dim = 32, .heads = 2, .kv_heads = 1, .tokens = 192, .chunk = 40});
}
// Blocks of eight rows, which have a kernel of their own.
std::vector<float> attend_few_codes() {
  return attend({.kv = DType::kI8, .head_dim = 32, .heads = 2, .kv_heads = 1, .tokens = 192, .chunk = 4}, 184);
}
// Far enough for seeds, masks and segments of several tiles; segments one after the other in a block, or shared by blocks.
// Heads that share a block end at different keys: the last tile of the anchor and of a segment is seen in part by one head
// while the other goes on to the next.
std::vector<float> attend_far(DType kv, int multiprocessors) {
  cuda_emu::Config config = cuda_emu::config();
  config.multiprocessors = multiprocessors;
  const cuda_emu::ScopedConfig scope(config);
  return attend(
      {.kv = kv, .head_dim = 32, .heads = 4, .kv_heads = 2, .tokens = 1200, .chunk = 32, .prior = {{0.1, 0.0, 0}}},
      1168, {50, -1, 130, -1});
}

// The text with the n-th match inside kernels whose name contains `kernel` replaced; "" if there are not so many.
std::string broken(const std::string& text, const std::string& kernel, const std::string& pattern,
                   const std::string& replacement, int n = 0) {
  const std::regex regex(pattern);
  for (size_t at = text.find(".entry "); at != std::string::npos;) {
    const size_t next = std::min(text.find(".entry ", at + 1), text.size());
    const std::string_view name(text.data() + at, text.find('(', at) - at);
    if (name.find(kernel) != std::string_view::npos) {
      const auto begin = text.begin() + static_cast<std::ptrdiff_t>(at),
                 end = text.begin() + static_cast<std::ptrdiff_t>(next);
      std::sregex_iterator match(begin, end, regex);
      for (int i = 0; i < n && match != std::sregex_iterator(); ++i) ++match;
      if (match == std::sregex_iterator()) return "";
      return std::string(text.begin(), (*match)[0].first) + match->format(replacement) +
             std::string((*match)[0].second, text.end());
    }
    at = next == text.size() ? std::string::npos : next;
  }
  return "";
}

// The kernels that the two pieces of work run.
const std::string kGemm = "gemm_mma_kernelINS1_3F16ENS1_5ShapeILi64ELi32E";
const std::string kHalf = "attention_mma_kernelINS0_3mma6ConfigI6__halfLNS3_5CodesE0ELi2E";
const std::string kCodes = "attention_mma_kernelINS0_3mma6ConfigI6__halfLNS3_5CodesE1ELi2ELi16E";
const std::string kFewCodes = "attention_mma_kernelINS0_3mma6ConfigI6__halfLNS3_5CodesE1ELi2ELi8E";

class SeededFault : public ::testing::Test {
 protected:
  void SetUp() override {
    if (folder().empty()) GTEST_SKIP() << "BAM_PTX names no folder";
  }
  // Every match is replaced, one at a time; each must change the outcome. At least `least` of them must be there.
  static void expect_all_caught(const std::function<std::vector<float>()>& work, const std::string& file,
                                const std::string& kernel, const std::string& pattern, const std::string& replacement,
                                int least) {
    const Outcome healthy = outcome(work);
    ASSERT_EQ(healthy.fault, "");
    const std::string text = text_of(file);
    int n = 0;
    for (;; ++n) {
      const std::string changed = broken(text, kernel, pattern, replacement, n);
      if (changed.empty()) break;
      EXPECT_FALSE(outcome(work, changed) == healthy) << pattern << " number " << n << " of " << kernel;
    }
    EXPECT_GE(n, least) << pattern << " is not in " << kernel;
  }
};

// Many devices compute it at 1/64 of float32's speed. The tables of B(d) are made in it, once per position.
TEST_F(SeededFault, NoKernelOfAStepUsesDoublePrecision) {
  int kernels = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder())) {
    if (file.path().extension() != ".ptx") continue;
    const std::string text = text_of(file.path().filename());
    for (size_t at = text.find(".entry "); at != std::string::npos;) {
      const size_t open = text.find("\n{", at), end = text.find("\n}", open);
      ASSERT_NE(end, std::string::npos);
      const std::string name = text.substr(at + 7, text.find('(', at) - at - 7), body = text.substr(open, end - open);
      const bool wide = body.find(".f64") != std::string::npos;
      if (name.find("bias_table_kernel") != std::string::npos) {
        EXPECT_TRUE(wide) << "this test would not see it";
      } else {
        EXPECT_FALSE(wide) << name;
        EXPECT_EQ(body.find("call.uni"), std::string::npos) << name << " calls a function that nobody has looked at";
        ++kernels;
      }
      at = text.find(".entry ", end);
    }
  }
  EXPECT_GT(kernels, 50);
}

TEST_F(SeededFault, NoneInWhatWeShip) {
  EXPECT_EQ(outcome(multiply).fault, "");
  EXPECT_EQ(outcome(attend_short).fault, "");
  EXPECT_EQ(outcome(attend_few_codes).fault, "");
  EXPECT_EQ(outcome([] { return attend_far(DType::kI8, 1); }).fault, "");
}

TEST_F(SeededFault, WrongLaneMap) {
  // Registers of a fragment in the wrong order, and matrices that are not transposed on their way.
  expect_all_caught(multiply, "gemm_mma.ptx", kGemm, R"((mma\.sync[^{]*\{[^}]*\}, \{[^}]*\}, )\{(%r\d+),\s*(%r\d+)\})",
                    "$1{$3, $2}", 8);
  expect_all_caught(attend_short, "attention_mma.ptx", kHalf, R"(x4\.trans\.shared)", "x4.shared", 4);
  expect_all_caught(attend_short_codes, "attention_mma.ptx", kCodes, R"(x4\.trans\.shared)", "x4.shared", 4);
  expect_all_caught(attend_few_codes, "attention_mma.ptx", kFewCodes, R"(x4\.trans\.shared)", "x4.shared", 4);
}

TEST_F(SeededFault, MissingBarrier) {
  const std::string barrier = R"(bar\.sync\s+0;)";
  expect_all_caught(multiply, "gemm_mma.ptx", kGemm, barrier, "", 1);
  for (const DType kv : {DType::kF16, DType::kI8}) {
    const auto work = [&] {
      std::vector<float> values = attend_far(kv, 1);
      const std::vector<float> split = attend_far(kv, 108);
      values.insert(values.end(), split.begin(), split.end());
      return values;
    };
    expect_all_caught(work, "attention_mma.ptx", kv == DType::kF16 ? kHalf : kCodes, barrier, "", 6);
  }
}

TEST_F(SeededFault, MissingCommit) {
  expect_all_caught(multiply, "gemm_mma.ptx", kGemm, R"(cp\.async\.commit_group;)", "", 3);
  expect_all_caught(attend_short, "attention_mma.ptx", kHalf, R"(cp\.async\.commit_group;)", "", 2);
  expect_all_caught(attend_few_codes, "attention_mma.ptx", kFewCodes, R"(cp\.async\.commit_group;)", "", 2);
}

TEST_F(SeededFault, MissingWait) {
  expect_all_caught(multiply, "gemm_mma.ptx", kGemm, R"(cp\.async\.wait_group\s+\d+;)", "", 1);
  expect_all_caught(multiply, "gemm_mma.ptx", kGemm, R"(cp\.async\.wait_group\s+2;)", "cp.async.wait_group 3;", 1);
}

TEST_F(SeededFault, LostUpdate) {
  const std::string text =
      broken(text_of("attention_mma.ptx"), kHalf, R"(atom\.global\.add\.u64\s+(%rd\d+), (\[%rd\d+\]), (%rd\d+);)",
             "ld.global.u64 $1, $2; add.u64 $1, $1, $3; st.global.u64 $2, $1;");
  ASSERT_NE(text, "");
  EXPECT_TRUE(mentions(outcome(attend_short, text).fault, "a race"));
}

TEST_F(SeededFault, AddressOffByOne) {
  // The next element, in shared and in global memory.
  const auto fault = [](const std::string& pattern, const std::string& replacement) {
    const std::string text = broken(text_of("elementwise.ptx"), "rms_norm_kernelIf", pattern, replacement);
    EXPECT_NE(text, "") << pattern;
    return outcome(
               [] {
                 const auto backend = bam::cuda_test::make_cuda(DType::kF32);
                 const auto x =
                     bam::cuda_test::to_device(*backend, bam::cuda_test::random_floats(3 * 160, 1), DType::kF32);
                 const auto weight = backend->make_vector(std::vector<float>(160, 1.0f));
                 const auto out = backend->allocate(3 * 160 * sizeof(float));
                 backend->rms_norm(backend->float_rows(*x, 3, 160), *weight, 1e-5f,
                                   backend->operand_rows(*out, 3, 160));
                 return bam::cuda_test::floats(*backend, *out, 3 * 160);
               },
               text)
        .fault;
  };
  EXPECT_TRUE(mentions(fault(R"(st\.global\.f32\s+\[(%rd\d+)\])", "st.global.f32 [$1+4]"), "out of the bounds"));
  EXPECT_TRUE(mentions(fault(R"(st\.shared\.f32\s+\[(%r\d+)\])", "st.shared.f32 [$1+4]"), "out of the bounds"));
}

TEST_F(SeededFault, TooMuchSharedMemory) {
  const std::string text =
      broken(text_of("attention_mma.ptx"), kHalf, R"((\.shared \.align 8 \.b8 \S*run)\[\d+\])", "$1[160000]");
  ASSERT_NE(text, "");
  EXPECT_TRUE(mentions(outcome(attend_short, text).fault, "shared memory in a block"));
}

}  // namespace
