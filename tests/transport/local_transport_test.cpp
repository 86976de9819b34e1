#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "transport/transport.h"

namespace bam {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLong{60000};

std::vector<std::byte> bytes(const std::string& text) {
  std::vector<std::byte> result(text.size());
  std::memcpy(result.data(), text.data(), text.size());
  return result;
}

std::string text_of(const std::vector<std::byte>& message) {
  return {reinterpret_cast<const char*>(message.data()), message.size()};
}

TEST(LocalTransport, ChannelsAreInOrderAndDoNotWaitForEachOther) {
  auto group = make_local_group(3);
  for (int i = 0; i < 100; ++i) group[0]->send(1, Channel::kPlan, bytes("plan " + std::to_string(i)));
  group[2]->send(1, Channel::kPlan, bytes("from two"));
  group[0]->send(1, Channel::kActivations, {});
  std::vector<std::byte> message;
  ASSERT_TRUE(group[1]->receive(0, Channel::kActivations, message, kLong));
  EXPECT_TRUE(message.empty());
  ASSERT_TRUE(group[1]->receive(2, Channel::kPlan, message, kLong));
  EXPECT_EQ(text_of(message), "from two");
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(group[1]->receive(0, Channel::kPlan, message, kLong));
    EXPECT_EQ(text_of(message), "plan " + std::to_string(i));
  }
  EXPECT_FALSE(group[1]->receive(0, Channel::kPlan, message, milliseconds(0)));
}

TEST(LocalTransport, WhoLeavesIsLostAfterWhatItSaid) {
  auto group = make_local_group(3);
  group[2]->send(0, Channel::kDone, bytes("last words"));
  group[2].reset();
  std::vector<std::byte> message;
  ASSERT_TRUE(group[0]->receive(2, Channel::kDone, message, kLong));
  EXPECT_EQ(text_of(message), "last words");
  for (const int from : {1, 2}) {
    try {
      group[0]->receive(from, Channel::kDone, message, kLong);
      FAIL() << "a lost group still receives";
    } catch (const PeerLost& lost) {
      EXPECT_EQ(lost.rank(), 2);
    }
  }
  EXPECT_THROW(group[1]->send(0, Channel::kDone, message), PeerLost);
}

TEST(LocalTransport, AbortEndsCallsThatWait) {
  auto group = make_local_group(2);
  std::thread waits([&] {
    std::vector<std::byte> message;
    EXPECT_THROW(group[1]->receive(0, Channel::kPlan, message, kLong), PeerLost);
  });
  group[0]->abort("enough");
  waits.join();
}

TEST(LocalSources, FormGroupsUnderRisingEpochs) {
  auto sources = make_local_sources(3);
  uint64_t last = 0;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> threads;
    std::vector<uint64_t> epochs(3);
    std::vector<std::unique_ptr<Transport>> group(3);  // nobody leaves before everybody has heard
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        auto& transport = group[static_cast<size_t>(rank)];
        transport = sources[static_cast<size_t>(rank)]->form(kLong, epochs[static_cast<size_t>(rank)]);
        ASSERT_TRUE(transport);
        EXPECT_EQ(transport->rank(), rank);
        const int next = (rank + 1) % 3, before = (rank + 2) % 3;
        std::vector<std::byte> message;
        transport->send(next, Channel::kDone, bytes("hello"));
        EXPECT_TRUE(transport->receive(before, Channel::kDone, message, kLong));
      });
    }
    for (auto& t : threads) t.join();
    EXPECT_EQ(epochs[0], epochs[1]);
    EXPECT_EQ(epochs[0], epochs[2]);
    EXPECT_GT(epochs[0], last);
    last = epochs[0];
  }
}

TEST(LocalSources, WhoWaitsInVainGetsNothing) {
  auto sources = make_local_sources(2);
  uint64_t epoch = 0;
  EXPECT_FALSE(sources[0]->form(milliseconds(1), epoch));
}

}  // namespace
}  // namespace bam
