#include "server/events/kv_publisher.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#ifdef BAM_HAVE_ZMQ
#include <zmq.h>
#endif

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace bam {

std::vector<uint8_t> encode_kv_events(double seconds, const std::vector<KvEvent>& events, int block_size) {
  constexpr const char* kMedium = "CPU";
  Json list = Json::array();
  for (const KvEvent& event : events) {
    switch (event.kind) {
      case KvEvent::Kind::kStored:
        list.push_back({"BlockStored", Json::array({event.hash}), event.parent ? Json(*event.parent) : Json(),
                        event.tokens, block_size, Json(), kMedium});
        break;
      case KvEvent::Kind::kRemoved: list.push_back({"BlockRemoved", Json::array({event.hash}), kMedium}); break;
      case KvEvent::Kind::kCleared: list.push_back(Json::array({"AllBlocksCleared"})); break;
    }
  }
  return Json::to_msgpack(Json::array({seconds, std::move(list)}));
}

#ifdef BAM_HAVE_ZMQ

namespace {

constexpr size_t kKeptBatches = 10'000;  // for replay, and at most waiting to be sent
constexpr std::chrono::milliseconds kPoll{20};
constexpr int kHighWaterMark = 100'000;

using Number = std::array<uint8_t, 8>;

Number big_endian(uint64_t value) {
  Number bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * (7 - i)));
  return bytes;
}

class Socket {
 public:
  Socket(void* context, int type) : socket_(zmq_socket(context, type)) {
    if (socket_ == nullptr) throw Error("--kv-events: {}", zmq_strerror(zmq_errno()));
    const int linger_ms = 200;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    zmq_setsockopt(socket_, ZMQ_SNDHWM, &kHighWaterMark, sizeof kHighWaterMark);
  }
  ~Socket() { zmq_close(socket_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // As vLLM does: what has a star is ours to bind.
  void open(const std::string& endpoint, bool always_bind) {
    const bool bind = always_bind || endpoint.find('*') != std::string::npos || endpoint.starts_with("ipc:");
    if ((bind ? zmq_bind : zmq_connect)(socket_, endpoint.c_str()) != 0) {
      throw Error("--kv-events: {} cannot be used: {}", endpoint, zmq_strerror(zmq_errno()));
    }
  }
  template <typename Bytes>
  void send(const Bytes& bytes, bool more) {
    zmq_send(socket_, bytes.data(), bytes.size(), (more ? ZMQ_SNDMORE : 0) | ZMQ_DONTWAIT);
  }
  // The parts of a message, none if there is none.
  std::vector<std::string> receive() {
    std::vector<std::string> parts;
    int more = 1;
    while (more != 0) {
      zmq_msg_t part;
      zmq_msg_init(&part);
      if (zmq_msg_recv(&part, socket_, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&part);
        return {};
      }
      parts.emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
      more = zmq_msg_more(&part);
      zmq_msg_close(&part);
    }
    return parts;
  }

 private:
  void* socket_;
};

struct Context {
  void* handle = zmq_ctx_new();
  ~Context() { zmq_ctx_term(handle); }
};

}  // namespace

struct KvPublisher::Impl {
  Impl(const KvEventsConfig& config, int size) : block_size(size), topic(config.topic) {
    publisher.open(config.endpoint, false);
    if (!config.replay.empty()) {
      replay = std::make_unique<Socket>(context.handle, ZMQ_ROUTER);
      replay->open(config.replay, true);
    }
    thread = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  void run(const std::stop_token& stop) {
    while (true) {
      std::vector<KvEvent> events;
      {
        std::unique_lock lock(mutex);
        arrived.wait_for(lock, stop, kPoll, [&] { return !queue.empty(); });
        if (queue.empty() && stop.stop_requested()) return;
        if (!queue.empty()) {
          events = std::move(queue.front());
          queue.pop_front();
        }
      }
      try {
        if (!events.empty()) send(events);
        if (replay) answer();
      } catch (const std::exception& e) {
        log::error("KV events: {}", e.what());
      }
    }
  }

  void send(const std::vector<KvEvent>& events) {
    const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    std::vector<uint8_t> payload = encode_kv_events(now, events, block_size);
    publisher.send(topic, true);
    publisher.send(big_endian(next), true);
    publisher.send(payload, false);
    if (replay) {
      kept.emplace_back(next, std::move(payload));
      if (kept.size() > kKeptBatches) kept.pop_front();
    }
    ++next;
  }

  void answer() {
    for (std::vector<std::string> parts; !(parts = replay->receive()).empty();) {
      if (parts.size() != 3 || parts[2].size() != sizeof(Number)) continue;
      uint64_t first = 0;
      for (const char c : parts[2]) first = first << 8 | static_cast<uint8_t>(c);
      const auto reply = [&](const Number& number, const auto& payload) {
        replay->send(parts[0], true);
        replay->send(std::string(), true);
        replay->send(number, true);
        replay->send(payload, false);
      };
      for (const auto& [number, payload] : kept) {
        if (number >= first) reply(big_endian(number), payload);
      }
      reply(big_endian(~uint64_t{0}), std::string());
    }
  }

  int block_size;
  std::string topic;
  Context context;
  Socket publisher{context.handle, ZMQ_PUB};
  std::unique_ptr<Socket> replay;
  uint64_t next = 0;
  std::deque<std::pair<uint64_t, std::vector<uint8_t>>> kept;
  std::mutex mutex;
  std::condition_variable_any arrived;
  std::deque<std::vector<KvEvent>> queue;
  std::jthread thread;  // last: it uses all of the above
};

void KvPublisher::publish(std::vector<KvEvent> events) {
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->queue.size() >= kKeptBatches) {
      // Better to forget too much than to promise what is gone.
      impl_->queue.clear();
      impl_->queue.push_back({KvEvent{}});
    }
    impl_->queue.push_back(std::move(events));
  }
  impl_->arrived.notify_one();
}

#else

struct KvPublisher::Impl {
  Impl(const KvEventsConfig&, int) {
    throw Error("--kv-events: this program was built without ZeroMQ; `make cluster` installs what it needs");
  }
};
void KvPublisher::publish(std::vector<KvEvent>) {}

#endif

KvPublisher::KvPublisher(const KvEventsConfig& config, int block_size)
    : impl_(std::make_unique<Impl>(config, block_size)) {}
KvPublisher::~KvPublisher() = default;

}  // namespace bam
