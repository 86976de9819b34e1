#include "server/store/object_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/temp_dir.h"

namespace bam {
namespace {

using testing::TempDir;

const std::string kKey(64, 'a');

ObjectStore::Deadline later() { return std::chrono::steady_clock::now() + std::chrono::minutes(5); }

std::vector<std::byte> bytes_of(size_t count, int value) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

std::string key_of(int number) { return fmt::format("{:064x}", number * 7919); }

uint64_t folder_bytes(const std::filesystem::path& folder) {
  uint64_t total = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) total += entry.file_size();
  }
  return total;
}

TEST(FolderStore, KeepsObjectsUntilTheyAreRemoved) {
  TempDir folder;
  const auto store = open_object_store("file:" + folder.path().string(), 1 << 30);
  std::vector<std::byte> out;
  EXPECT_FALSE(store->has(kKey, later()));
  EXPECT_FALSE(store->get(kKey, 100, out, later()));
  store->put(kKey, bytes_of(100, 1), later());
  store->put(kKey, bytes_of(90, 2), later());
  EXPECT_TRUE(store->has(kKey, later()));
  ASSERT_TRUE(open_object_store(folder.path().string(), 1 << 30)->get(kKey, 100, out, later()));
  EXPECT_EQ(out, bytes_of(90, 2));
  ASSERT_TRUE(store->get(kKey, 50, out, later()));
  EXPECT_EQ(out.size(), 51u) << "too large: one byte more says so";
  store->remove(kKey, later());
  store->remove(kKey, later());
  EXPECT_FALSE(store->has(kKey, later()));
  EXPECT_EQ(folder_bytes(folder), 0u) << "no temporary file is left";
}

TEST(FolderStore, StaysBelowItsLimitAndKeepsWhatIsUsed) {
  TempDir folder;
  constexpr uint64_t kLimit = 1 << 20;
  const auto store = open_object_store(folder.path().string(), kLimit);
  std::vector<std::byte> out;
  const auto used = [&] { return store->get(key_of(0), 1 << 20, out, later()); };
  for (int i = 0; i < 100; ++i) {
    store->put(key_of(i), bytes_of(50'000, i), later());
    EXPECT_LE(folder_bytes(folder), kLimit) << i;
    EXPECT_TRUE(used()) << i;
  }
  EXPECT_FALSE(store->has(key_of(1), later()));
  EXPECT_TRUE(store->has(key_of(99), later()));
}

TEST(FolderStore, CountsWhatOthersWroteThere) {
  TempDir folder;
  constexpr uint64_t kLimit = 1 << 20;
  const auto mine = open_object_store(folder.path().string(), kLimit),
             other = open_object_store(folder.path().string(), kLimit);
  for (int i = 0; i < 40; ++i) (i % 2 == 0 ? mine : other)->put(key_of(i), bytes_of(50'000, i), later());
  // Each notices after a sixteenth of the limit of its own.
  EXPECT_LE(folder_bytes(folder), kLimit + kLimit / 8);
}

TEST(FolderStore, ReadsRegularFilesOnly) {
  TempDir folder;
  const auto store = open_object_store(folder.path().string(), 1 << 30);
  std::filesystem::create_directories(folder / "aa");
  const auto path = folder.path() / "aa" / kKey.substr(2);
  std::vector<std::byte> out;
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(store->has(kKey, later()));
  EXPECT_FALSE(store->get(kKey, 100, out, later()));
  ASSERT_EQ(::unlink(path.c_str()), 0);
  ASSERT_EQ(::symlink("/etc/passwd", path.c_str()), 0);
  EXPECT_THROW(store->get(kKey, 100, out, later()), StoreError);
}

TEST(FolderStore, SaysWhatItCouldNotDo) {
  TempDir folder;
  const auto inside = folder / "store";
  std::filesystem::create_directory(inside);
  const auto store = open_object_store(inside.string(), 1 << 30);
  std::filesystem::remove(inside);
  EXPECT_THROW(store->put(kKey, bytes_of(10, 1), later()), StoreError);
  EXPECT_FALSE(store->has(kKey, later()));
}

TEST(OpenObjectStore, RefusesPlacesThatAreNone) {
  for (const char* place : {"/does/not/exist", "file:", "redis:", "redis:host:0", "redis:host:port", "redis:host/",
                            "s3:", "s3:/prefix", "s3:bu cket", "s3:bucket/../?x"}) {
    EXPECT_THROW(open_object_store(place, 1 << 30), UsageError) << place;
  }
}

}  // namespace
}  // namespace bam
