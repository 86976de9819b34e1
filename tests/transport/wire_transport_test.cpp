// Ranks in processes of their own, over the real plugins.
#include "transport/wire_transport.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>
#include <thread>

#include "tests/support/temp_dir.h"
#include "transport/group.h"

namespace bam {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLong{60000};

std::vector<std::byte> pattern(size_t bytes, unsigned seed) {
  std::vector<std::byte> result(bytes);
  for (size_t i = 0; i < bytes; ++i) result[i] = static_cast<std::byte>(seed * 31 + i * 7 + (i >> 8));
  return result;
}

GroupOptions options_of(const testing::TempDir& folder, int rank, int size,
                        milliseconds deadline = milliseconds(20000)) {
  GroupOptions options;
  options.rank = rank;
  options.size = size;
  options.rendezvous = "file:" + folder.path().string();
  options.address = "127.0.0.1";
  options.deadline = deadline;
  return options;
}

// Runs `body` in a process of its own; its exit code is what body returns.
pid_t spawn(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    int code = 99;
    try {
      code = body();
    } catch (const PeerLost& lost) {
      code = 10 + lost.rank();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "child: %s\n", e.what());
    }
    _exit(code);
  }
  return pid;
}

int exit_code(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Echoes what rank 0 says until the group is lost, then joins the next one.
int echo(const GroupOptions& options, int groups) {
  const auto source = make_group_source(options);
  for (int i = 0; i < groups; ++i) {
    uint64_t epoch = 0;
    const auto transport = source->form(kLong, epoch);
    if (!transport) return 98;
    std::vector<std::byte> message;
    try {
      while (true) {
        if (transport->receive(0, Channel::kPlan, message, milliseconds(50))) {
          transport->send(0, Channel::kDone, message);
        }
      }
    } catch (const PeerLost& lost) {
      if (lost.rank() == 0) return 10;
    }
  }
  return 0;
}

class GlooTransport : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      make_group_source(options_of(folder_, 0, 2));
    } catch (const Error& e) {
      GTEST_SKIP() << "no Gloo here: " << e.what();
    }
  }
  void ask(Transport& transport, int rank, size_t bytes) {
    const auto sent = pattern(bytes, static_cast<unsigned>(rank));
    transport.send(rank, Channel::kPlan, sent);
    std::vector<std::byte> message;
    ASSERT_TRUE(transport.receive(rank, Channel::kDone, message, kLong));
    EXPECT_TRUE(message == sent);
  }
  // Signals a rank and gives how it was noticed by rank 0.
  int lost_after(Transport& transport) {
    std::vector<std::byte> message;
    try {
      while (true) transport.receive(1, Channel::kDone, message, kLong);
    } catch (const PeerLost& lost) {
      return lost.rank();
    }
  }
  testing::TempDir folder_;
};

TEST_F(GlooTransport, MessagesOfAllSizesArriveWhole) {
  const pid_t one = spawn([&] { return echo(options_of(folder_, 1, 3), 1); });
  const pid_t two = spawn([&] { return echo(options_of(folder_, 2, 3), 1); });
  {
    const auto source = make_group_source(options_of(folder_, 0, 3));
    uint64_t epoch = 0;
    const auto transport = source->form(kLong, epoch);
    ASSERT_TRUE(transport);
    EXPECT_GT(epoch, 0u);
    for (const size_t bytes : {0, 1, 495, 496, 497, 512, 4096, 1 << 20, (1 << 20) + 497, 5'000'000}) {
      for (const int rank : {1, 2}) ask(*transport, rank, bytes);
    }
    // Many at once, both ways.
    for (int i = 0; i < 200; ++i) transport->send(1 + i % 2, Channel::kPlan, pattern(3000, static_cast<unsigned>(i)));
    std::vector<std::byte> message;
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(transport->receive(1 + i % 2, Channel::kDone, message, kLong));
      EXPECT_TRUE(message == pattern(3000, static_cast<unsigned>(i)));
    }
  }
  EXPECT_EQ(exit_code(one), 10);  // rank 0 left
  EXPECT_EQ(exit_code(two), 10);
}

TEST_F(GlooTransport, AKilledRankIsKnownByNameAndTheGroupFormsAgain) {
  const pid_t one = spawn([&] { return echo(options_of(folder_, 1, 3), 3); });
  pid_t two = spawn([&] { return echo(options_of(folder_, 2, 3), 3); });
  const auto source = make_group_source(options_of(folder_, 0, 3));
  uint64_t last = 0;
  for (int round = 0; round < 3; ++round) {
    uint64_t epoch = 0;
    const auto transport = source->form(kLong, epoch);
    ASSERT_TRUE(transport);
    EXPECT_GT(epoch, last);
    last = epoch;
    for (const int rank : {1, 2}) ask(*transport, rank, 100'000);
    if (round == 2) break;
    kill(two, SIGKILL);
    EXPECT_EQ(lost_after(*transport), 2);
    EXPECT_THROW(transport->send(1, Channel::kPlan, {}), PeerLost);
    EXPECT_EQ(exit_code(two), -SIGKILL);
    two = spawn([&] { return echo(options_of(folder_, 2, 3), 3); });
  }
  kill(two, SIGKILL);
  exit_code(two);
  kill(one, SIGKILL);
  exit_code(one);
}

TEST_F(GlooTransport, AStoppedRankIsLostAndASlowOneIsNot) {
  const milliseconds deadline(2000);
  const pid_t one = spawn([&] {
    const auto source = make_group_source(options_of(folder_, 1, 2, deadline));
    uint64_t epoch = 0;
    const auto transport = source->form(kLong, epoch);
    std::vector<std::byte> message;
    while (!transport->receive(0, Channel::kPlan, message, kLong)) {
    }
    std::this_thread::sleep_for(2 * deadline);  // computes for long
    transport->send(0, Channel::kDone, message);
    while (!transport->receive(0, Channel::kPlan, message, kLong)) {
    }
    return 0;
  });
  const auto source = make_group_source(options_of(folder_, 0, 2, deadline));
  uint64_t epoch = 0;
  const auto transport = source->form(kLong, epoch);
  ASSERT_TRUE(transport);
  ask(*transport, 1, 1000);
  kill(one, SIGSTOP);
  EXPECT_EQ(lost_after(*transport), 1);
  kill(one, SIGKILL);
  exit_code(one);
}

// The other rank may die between two words of this one.
TEST_F(GlooTransport, WritingToWhoIsGoneIsNoSignal) {
  signal(SIGPIPE, SIG_DFL);
  const pid_t one = spawn([&] { return echo(options_of(folder_, 1, 2), 1); });
  {
    const auto source = make_group_source(options_of(folder_, 0, 2));
    uint64_t epoch = 0;
    ASSERT_TRUE(source->form(kLong, epoch));
    EXPECT_EQ(raise(SIGPIPE), 0) << "else this is the end";
  }
  EXPECT_EQ(exit_code(one), 10);
}

// Whoever computes must not wait for a receiver.
TEST_F(GlooTransport, SendingDoesNotWaitForTheReceiver) {
  const pid_t one = spawn([&] { return echo(options_of(folder_, 1, 2, kLong), 1); });
  const auto source = make_group_source(options_of(folder_, 0, 2, kLong));
  uint64_t epoch = 0;
  const auto transport = source->form(kLong, epoch);
  ASSERT_TRUE(transport);
  ask(*transport, 1, 1000);
  kill(one, SIGSTOP);  // from here on it takes nothing, and nobody gives it up for a minute
  constexpr int kMessages = 64;
  std::vector<std::byte> message;
  for (unsigned i = 0; i < kMessages; ++i) {
    message = pattern(1'000'000, i);
    transport->send_swap(1, Channel::kPlan, message);
  }
  EXPECT_FALSE(transport->receive(1, Channel::kDone, message, milliseconds(0)));
  kill(one, SIGCONT);
  for (unsigned i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(transport->receive(1, Channel::kDone, message, kLong));
    EXPECT_TRUE(message == pattern(1'000'000, i)) << i;
  }
  kill(one, SIGKILL);
  exit_code(one);
}

TEST_F(GlooTransport, WhatWasSaidBeforeLeavingIsHeard) {
  const pid_t one = spawn([&] {
    const auto source = make_group_source(options_of(folder_, 1, 2));
    uint64_t epoch = 0;
    const auto transport = source->form(kLong, epoch);
    std::vector<std::byte> message;
    for (unsigned i = 0; i < 8; ++i) {
      if (!transport->receive(0, Channel::kPlan, message, kLong) || message != pattern(3'000'000, i)) return 97;
    }
    try {
      transport->receive(0, Channel::kPlan, message, kLong);
    } catch (const PeerLost& lost) {
      return lost.rank() == 0 && !lost.comes_back() ? 0 : 96;
    }
    return 95;
  });
  {
    const auto source = make_group_source(options_of(folder_, 0, 2));
    uint64_t epoch = 0;
    const auto transport = source->form(kLong, epoch);
    ASSERT_TRUE(transport);
    for (unsigned i = 0; i < 8; ++i) transport->send(1, Channel::kPlan, pattern(3'000'000, i));
  }
  EXPECT_EQ(exit_code(one), 0);
}

TEST_F(GlooTransport, AnAbortReachesEverybodyWithItsReason) {
  const auto wait_for_loss = [&](int rank) {
    return spawn([&, rank] {
      const auto source = make_group_source(options_of(folder_, rank, 3));
      uint64_t epoch = 0;
      const auto transport = source->form(kLong, epoch);
      std::vector<std::byte> message;
      try {
        while (true) transport->receive(rank == 1 ? 2 : 1, Channel::kActivations, message, kLong);
      } catch (const PeerLost& lost) {
        if (!lost.comes_back()) return 96;
        return std::string(lost.what()).find("the disk is full") != std::string::npos ? 20 + lost.rank() : 97;
      }
    });
  };
  const pid_t one = wait_for_loss(1), two = wait_for_loss(2);
  const auto source = make_group_source(options_of(folder_, 0, 3));
  uint64_t epoch = 0;
  const auto transport = source->form(kLong, epoch);
  ASSERT_TRUE(transport);
  transport->abort("the disk is full");
  EXPECT_EQ(exit_code(one), 20);
  EXPECT_EQ(exit_code(two), 20);
}

TEST_F(GlooTransport, NobodyComesAndATakenRankIsRefused) {
  const auto source = make_group_source(options_of(folder_, 0, 2));
  uint64_t epoch = 0;
  EXPECT_FALSE(source->form(milliseconds(50), epoch));
  const auto first = make_group_source(options_of(folder_, 1, 2)),
             second = make_group_source(options_of(folder_, 1, 2));
  std::thread waits([&] {
    uint64_t number = 0;
    EXPECT_THROW(first->form(kLong, number), Error);
  });
  while (!open_store("file:" + folder_.path().string())->get("ticket-1")) std::this_thread::yield();
  EXPECT_FALSE(second->form(milliseconds(200), epoch));
  waits.join();
}

// Gives and takes nothing until it is closed.
class SilentWire final : public Wire {
 public:
  explicit SilentWire(int size) : size_(size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  std::string description() const override { return "silence"; }
  void send(int, std::span<const std::byte>) override { hang(); }
  void receive(int, std::span<std::byte>) override { hang(); }
  void close() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

 private:
  void hang() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closed_; });
    throw Error("closed");
  }
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
};

TEST(WireTransport, TooFewThreadsAreAnErrorThatLeavesNone) {
  const pid_t child = spawn([] {
    if (geteuid() == 0 && setuid(65534) != 0) return 97;  // root has no such limit
    const rlimit few{8, 8};
    if (setrlimit(RLIMIT_NPROC, &few) != 0) return 96;
    try {
      make_wire_transport(std::make_unique<SilentWire>(16), kLong);
    } catch (const Error& e) {
      return std::string(e.what()).find("thread") != std::string::npos ? 0 : 95;
    }
    return 94;
  });
  EXPECT_EQ(exit_code(child), 0);
}

TEST(Group, BadOptionsAreNamed) {
  const testing::TempDir folder;
  EXPECT_THROW(make_group_source({.transport = "pigeon", .size = 2}), UsageError);
  auto options = options_of(folder, 0, 2);
  options.rendezvous = "nowhere";
  EXPECT_THROW(make_group_source(options), Error);
  EXPECT_THROW(make_group_source(options_of(folder, 2, 2)), UsageError);
}

}  // namespace
}  // namespace bam
