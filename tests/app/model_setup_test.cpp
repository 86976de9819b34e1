#include "app/model_setup.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/error.h"
#include "tests/support/temp_dir.h"

namespace bam {
namespace {

TEST(ModelSetup, SamplingDefaultsComeFromARegularFileOnly) {
  const testing::TempDir dir;
  EXPECT_EQ(load_sampling_defaults(dir.path()).temperature, SamplingDefaults{}.temperature);
  testing::write_file(dir / "generation_config.json", R"({"temperature": 0.25})");
  EXPECT_EQ(load_sampling_defaults(dir.path()).temperature, 0.25);
  std::filesystem::remove(dir / "generation_config.json");
  // Nobody ever writes to it: reading it would wait for ever.
  ASSERT_EQ(::mkfifo((dir / "generation_config.json").c_str(), 0600), 0);
  try {
    load_sampling_defaults(dir.path());
    FAIL() << "a pipe was read";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("generation_config.json: is a device, pipe or socket"), std::string::npos)
        << error.what();
  }
}

template <typename Function>
std::string refusal(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ModelSetup, APyTorchCheckpointIsSentToTheConverter) {
  const testing::TempDir dir;
  testing::write_file(dir / "model.pt", "PK");
  EXPECT_NE(refusal([&] { find_checkpoint(dir.path().string()); }).find("tools/convert.py"), std::string::npos);
  EXPECT_NE(refusal([&] { find_checkpoint((dir / "model.pt").string()); }).find("tools/convert.py"), std::string::npos);
  testing::write_file(dir / "config.json", "{}");
  EXPECT_EQ(find_checkpoint(dir.path().string()), dir.path()) << "converted in place";
  EXPECT_NE(refusal([&] { find_checkpoint("no/such/folder"); }).find("does not exist"), std::string::npos);
}

TEST(ModelSetup, AFolderAboveCheckpointsAndAMistypedNameAreUnderstood) {
  const testing::TempDir dir;
  EXPECT_NE(refusal([&] { find_checkpoint(dir.path().string()); }).find("there is no config.json"), std::string::npos);
  std::filesystem::create_directory(dir / "mine");
  testing::write_file(dir / "mine" / "config.json", "{}");
  EXPECT_NE(refusal([&] { find_checkpoint(dir.path().string()); }).find("did you mean " + (dir / "mine").string()),
            std::string::npos);
  for (const char* name : {"Demo", "demo/", "demmo"}) {
    EXPECT_NE(refusal([&] { find_checkpoint(name); }).find("did you mean demo"), std::string::npos) << name;
  }
  EXPECT_EQ(refusal([] { find_checkpoint("mine"); }).find("did you mean"), std::string::npos);
}

TEST(ModelSetup, AttentionIsInIntegersOverInt8PagesUnlessToldOtherwise) {
  const auto in_integers = [](DType pages, const std::string& math) {
    ModelSettings settings;
    settings.device = "cpu";
    settings.threads = 1;
    settings.attention_math = math;
    settings.engine.kv_dtype = pages;
    return make_backend(settings)->numerics().find("int8 attention") != std::string::npos;
  };
  EXPECT_TRUE(in_integers(DType::kI8, ModelSettings{}.attention_math));
  EXPECT_FALSE(in_integers(DType::kF16, ModelSettings{}.attention_math));
  EXPECT_FALSE(in_integers(DType::kI4, ModelSettings{}.attention_math));
  EXPECT_FALSE(in_integers(DType::kI8, "f32"));
  EXPECT_TRUE(in_integers(DType::kI4, "int8"));
  EXPECT_NE(refusal([&] { in_integers(DType::kF16, "int8"); }).find("needs --kv-dtype int8 or int4"),
            std::string::npos);
}

TEST(ModelSetup, KvMemoryBeyondTheMachineIsRefused) {
  EXPECT_EQ(refusal([] { check_kv_memory(uint64_t{8} << 30, uint64_t{8} << 30); }), "");
  EXPECT_NE(
      refusal([] { check_kv_memory(uint64_t{9} << 30, uint64_t{8} << 30); }).find("9.00 GiB is more than the 8.00 GiB"),
      std::string::npos);
}

}  // namespace
}  // namespace bam
