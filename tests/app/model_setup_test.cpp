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

}  // namespace
}  // namespace bam
