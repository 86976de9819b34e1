#include "transport/key_value_store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/error.h"
#include "tests/support/temp_dir.h"

namespace bam {
namespace {

// What every store must do; `store` and `other` are two openings of one place.
void check_contract(KeyValueStore& store, KeyValueStore& other) {
  EXPECT_FALSE(store.get("a"));
  const std::string value("any\0byte\n", 9);
  store.put("a", value);
  store.put("epoch-1-x/../y", "one");
  store.put("epoch-1-z", "");
  store.put("epoch-10", "stays");
  EXPECT_EQ(other.get("a"), value);
  EXPECT_EQ(other.get("epoch-1-x/../y"), "one");
  EXPECT_EQ(other.get("epoch-1-z"), "");
  store.put("a", "new");
  EXPECT_EQ(other.get("a"), "new");
  other.remove_all("epoch-1-");
  EXPECT_FALSE(store.get("epoch-1-x/../y"));
  EXPECT_FALSE(store.get("epoch-1-z"));
  EXPECT_EQ(store.get("epoch-10"), "stays");
}

TEST(KeyValueStore, AFolderKeepsValuesWhole) {
  const testing::TempDir folder;
  const std::string place = "file:" + (folder.path() / "made/for/it").string();
  check_contract(*open_store(place), *open_store(place));
}

TEST(KeyValueStore, ARedisServerKeepsValuesWhole) {
  const testing::TempDir folder;
  const std::string port = std::to_string(20000 + getpid() % 20000);
  std::vector<std::string> words{"redis-server",
                                 "--port",
                                 port,
                                 "--bind",
                                 "127.0.0.1",
                                 "--save",
                                 "",
                                 "--dir",
                                 folder.path().string(),
                                 "--logfile",
                                 (folder / "log").string()};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t pid = 0;
  if (posix_spawnp(&pid, "redis-server", nullptr, nullptr, arguments.data(), environ) != 0) {
    GTEST_SKIP() << "no redis-server here";
  }
  std::unique_ptr<KeyValueStore> store;
  std::string reason;
  for (int i = 0; !store && i < 600 && waitpid(pid, nullptr, WNOHANG) == 0; ++i) {
    try {
      store = open_store("redis:127.0.0.1:" + port + "/test");
    } catch (const Error& e) {
      reason = e.what();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
  if (store) check_contract(*store, *open_store("redis:127.0.0.1:" + port + "/test"));
  EXPECT_TRUE(store) << reason;
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST(KeyValueStore, WhatCannotBeUsedIsNamed) {
  EXPECT_THROW(open_store(""), UsageError);
  EXPECT_THROW(open_store("file:"), UsageError);
  EXPECT_THROW(open_store("file:/dev/null/x"), Error);
  EXPECT_THROW(open_store("redis:127.0.0.1:1"), Error);  // nobody listens there
}

}  // namespace
}  // namespace bam
