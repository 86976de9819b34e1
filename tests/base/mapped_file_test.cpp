#include "base/mapped_file.h"

#include <sys/stat.h>

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/temp_dir.h"

namespace bam {
namespace {

using testing::TempDir;
using testing::write_file;

std::string failure(const std::filesystem::path& path) {
  try {
    MappedFile file(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(MappedFile, ReadsBytesAndMoves) {
  TempDir dir;
  write_file(dir / "a", "hello");
  MappedFile a(dir / "a", MappedFile::Access::kWillNeed);
  EXPECT_EQ(a.text(), "hello");
  EXPECT_EQ(a.size(), 5u);
  EXPECT_EQ(a.path(), dir / "a");
  MappedFile b = std::move(a);
  EXPECT_EQ(b.text(), "hello");
  write_file(dir / "c", "other");
  b = MappedFile(dir / "c");
  EXPECT_EQ(b.text(), "other");
}

TEST(MappedFile, EmptyFile) {
  TempDir dir;
  write_file(dir / "empty", "");
  const MappedFile file(dir / "empty");
  EXPECT_EQ(file.size(), 0u);
  EXPECT_TRUE(file.bytes().empty());
}

TEST(MappedFile, RefusesWhatIsNoRegularFile) {
  TempDir dir;
  EXPECT_EQ(failure(dir / "missing"), (dir / "missing").string() + ": cannot open: No such file or directory");
  EXPECT_EQ(failure(dir.path()), dir.path().string() + ": is a directory, not a regular file");
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(failure(dir / "fifo"), (dir / "fifo").string() + ": is a device, pipe or socket, not a regular file");
  EXPECT_EQ(failure("/dev/null"), "/dev/null: is a device, pipe or socket, not a regular file");
}

}  // namespace
}  // namespace bam
