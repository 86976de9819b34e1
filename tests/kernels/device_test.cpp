#include "kernels/device.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/plugin.h"

namespace bam {
namespace {

namespace fs = std::filesystem;

// BAM_PLUGIN_DIR points to an empty folder.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* before = std::getenv("BAM_PLUGIN_DIR")) before_ = before;
    folder_ = fs::temp_directory_path() / ("bam-device-test-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    setenv("BAM_PLUGIN_DIR", folder_.c_str(), 1);
  }
  void TearDown() override {
    fs::remove_all(folder_);
    before_.empty() ? unsetenv("BAM_PLUGIN_DIR") : setenv("BAM_PLUGIN_DIR", before_.c_str(), 1);
  }
  static std::string reason(const std::string& device) {
    try {
      make_backend(device, {.num_threads = 1});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  fs::path folder_;
  std::string before_;
};

TEST_F(DeviceTest, PluginsAreLookedForInOneFolderOrInTheUsualPlaces) {
  EXPECT_EQ(plugin_candidates("x.so"), std::vector<std::string>{(folder_ / "x.so").string()});
  unsetenv("BAM_PLUGIN_DIR");
  const auto usual = plugin_candidates("x.so");
  ASSERT_EQ(usual.size(), 3u);
  EXPECT_EQ(fs::path(usual[0]).parent_path(), fs::read_symlink("/proc/self/exe").parent_path());
  EXPECT_NE(usual[1].find("lib/bam/x.so"), std::string::npos);
  EXPECT_EQ(usual[2], "x.so");  // the loader's own search
}

TEST_F(DeviceTest, WhatIsMissingIsNamed) {
  EXPECT_NE(reason("cuda").find("--device cuda: no CUDA plugin"), std::string::npos) << reason("cuda");
  EXPECT_NE(reason("cuda").find(folder_.string()), std::string::npos);
  std::ofstream(folder_ / "libbam_cuda.so") << "text";
  EXPECT_NE(reason("cuda").find("does not load"), std::string::npos) << reason("cuda");
  EXPECT_THROW(make_backend("tpu", {.num_threads = 1}), UsageError);
}

TEST_F(DeviceTest, AutoAndCpuNeedNoPlugin) {
  for (const char* device : {"auto", "cpu"}) {
    const auto backend = make_backend(device, {.num_threads = 1});
    EXPECT_EQ(backend->description(), make_cpu_backend({.num_threads = 1})->description());
  }
}

}  // namespace
}  // namespace bam
