#include "server/events/kv_publisher.h"

#include <gtest/gtest.h>

#ifdef BAM_HAVE_ZMQ
#include <unistd.h>
#include <zmq.h>

#include <filesystem>
#endif

#include "base/error.h"
#include "base/json.h"

namespace bam {
namespace {

TEST(KvPublisher, EventsAreEncodedAsVllmDoes) {
  std::vector<KvEvent> events;
  events.push_back({KvEvent::Kind::kStored, 0xfedcba9876543210, std::nullopt, {1, 2, 3}});
  events.push_back({KvEvent::Kind::kStored, 7, 0xfedcba9876543210, {4, 5, 6}});
  events.push_back({KvEvent::Kind::kRemoved, 7, std::nullopt, {}});
  events.push_back({});
  const Json decoded = Json::from_msgpack(encode_kv_events(1.5, events, 3));
  EXPECT_EQ(decoded.dump(), R"([1.5,[["BlockStored",[18364758544493064720],null,[1,2,3],3,null,"CPU"],)"
                            R"(["BlockStored",[7],18364758544493064720,[4,5,6],3,null,"CPU"],)"
                            R"(["BlockRemoved",[7],"CPU"],["AllBlocksCleared"]]])");
}

TEST(KvPublisher, AnEndpointThatCannotBeHadIsNamed) { EXPECT_THROW(KvPublisher({.endpoint = "nonsense"}, 64), Error); }

#ifdef BAM_HAVE_ZMQ

std::vector<std::string> receive(void* socket) {
  std::vector<std::string> parts;
  int more = 1;
  size_t size = sizeof more;
  while (more != 0) {
    char buffer[4096];
    const int bytes = zmq_recv(socket, buffer, sizeof buffer, 0);
    if (bytes < 0) return {};
    parts.emplace_back(buffer, static_cast<size_t>(bytes));
    zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size);
  }
  return parts;
}

TEST(KvPublisher, SubscribersHearBatchesInOrderAndMayAskAgain) {
  const std::string place = (std::filesystem::temp_directory_path() / ("bam-kv-" + std::to_string(getpid()))).string();
  KvPublisher publisher({.endpoint = "ipc://" + place, .replay = "ipc://" + place + "-replay", .topic = "kv"}, 2);
  void* context = zmq_ctx_new();
  const int patience_ms = 60'000;
  void* subscriber = zmq_socket(context, ZMQ_SUB);
  zmq_setsockopt(subscriber, ZMQ_SUBSCRIBE, "kv", 2);
  ASSERT_EQ(zmq_connect(subscriber, ("ipc://" + place).c_str()), 0);
  // A subscription takes a moment: the first batch that arrives is some batch.
  const int brief_ms = 20;
  zmq_setsockopt(subscriber, ZMQ_RCVTIMEO, &brief_ms, sizeof brief_ms);
  std::vector<std::string> parts;
  uint64_t sent = 0;
  while (parts.empty()) {
    publisher.publish({{KvEvent::Kind::kRemoved, sent++, std::nullopt, {}}});
    parts = receive(subscriber);
  }
  zmq_setsockopt(subscriber, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms);
  const auto number = [](const std::string& bytes) {
    uint64_t value = 0;
    for (const char c : bytes) value = value << 8 | static_cast<uint8_t>(c);
    return value;
  };
  const auto hash = [](const std::string& payload) { return Json::from_msgpack(payload)[1][0][1][0].get<uint64_t>(); };
  for (int i = 0; i < 20; ++i) publisher.publish({{KvEvent::Kind::kRemoved, sent++, std::nullopt, {}}});
  for (uint64_t expected = number(parts[1]);; parts = receive(subscriber), ++expected) {
    ASSERT_EQ(parts.size(), 3u);
    EXPECT_EQ(parts[0], "kv");
    ASSERT_EQ(number(parts[1]), expected);
    EXPECT_EQ(hash(parts[2]), expected);
    if (expected + 1 == sent) break;
  }
  void* request = zmq_socket(context, ZMQ_REQ);
  zmq_setsockopt(request, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms);
  ASSERT_EQ(zmq_connect(request, ("ipc://" + place + "-replay").c_str()), 0);
  const std::string from("\0\0\0\0\0\0\0\1", 8);
  ASSERT_EQ(zmq_send(request, from.data(), from.size(), 0), 8);
  const std::vector<std::string> first = receive(request);  // REQ takes one reply; DEALER would take them all
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(number(first[0]), 1u);
  EXPECT_EQ(hash(first[1]), 1u);
  zmq_close(request);
  zmq_close(subscriber);
  zmq_ctx_term(context);
  std::filesystem::remove(place);
  std::filesystem::remove(place + "-replay");
}

#endif

}  // namespace
}  // namespace bam
