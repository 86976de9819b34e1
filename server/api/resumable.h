// Streams that outlive their connection. The events of a generation are numbered and kept for a while, so that a reader
// who lost its connection can ask for the rest; the generation knows nothing of it.
//
//   GenerationJob ─▶ ResumableCall ─▶ ResumableStream ─▶ one reader at a time: the client that asked, or a later GET
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/api/call.h"
#include "server/api/metrics.h"
#include "server/api/server_config.h"

namespace bam {

struct ServerContext;

// The numbered events of one stream. Its owner writes on its own thread, each reader is served on that reader's. Half of
// the buffer is for events that no reader has been given yet: when they fill it, the writer is told to pause. The other
// half keeps those before, the newest of them.
class ResumableStream : public ReplyStream, public std::enable_shared_from_this<ResumableStream> {
 public:
  // `home` is the writer's thread, `head` what every reader's reply begins with.
  ResumableStream(HttpMetrics& metrics, size_t buffer_bytes, CallPtr home, Head head, Callbacks writer);
  ~ResumableStream() override;

  // The writer's side.
  void send(std::string events) override;
  bool is_full() const override { return full_.load(std::memory_order_relaxed); }
  void close() override;
  void abort() override { close(); }

  // On the thread of `call`: it gets the events from number `from` on, and those that come; the reader before it is cut
  // off. An error when there is no such event, or not any more.
  std::optional<ApiError> attach(const CallPtr& call, uint64_t from);

  const std::string& content_type() const { return head_.content_type; }
  // Any thread. Since when nobody reads it.
  std::optional<Clock::time_point> idle_since() const;
  // All events are there and a reader was given the last one.
  bool is_delivered() const;

 private:
  struct Reader;
  void pump(const std::shared_ptr<Reader>& reader);
  void wake();
  void update_pressure();
  void lost(const std::shared_ptr<Reader>& reader, bool cut);
  void move_cursor(uint64_t to);  // with the lock held, as is the next
  void trim();

  HttpMetrics& metrics_;
  const size_t buffer_bytes_;
  const CallPtr home_;
  const Head head_;
  const std::string separator_;  // between events
  Callbacks writer_;
  std::atomic<bool> full_{false};

  mutable std::mutex mutex_;
  std::deque<std::string> events_;
  uint64_t first_ = 0;                          // number of events_.front()
  uint64_t cursor_ = 0;                         // what the reader, or the last one, gets next
  size_t given_bytes_ = 0, waiting_bytes_ = 0;  // of the events before and from cursor_ on
  bool ended_ = false;
  bool waking_ = false;  // the reader was told that there is something
  std::shared_ptr<Reader> reader_;
  std::optional<Clock::time_point> idle_since_;
};

// All of them, by the name of the reply and of the request; names of one tenant mean nothing to another. Any thread.
class ResumableStreams {
 public:
  ResumableStreams(const ServerConfig& config, HttpMetrics& metrics) : config_(config), metrics_(metrics) {}

  // Room for one more: those that were read to their end make place. An error when there is none.
  std::optional<ApiError> reserve();
  void release();
  // Takes the room that was reserved. `abandon` runs on any thread if nobody comes back in time.
  void add(const Call& call, std::shared_ptr<ResumableStream> stream, std::function<void()> abandon);
  std::shared_ptr<ResumableStream> find(const std::string& tenant, const std::string& name) const;
  // Ends what nobody has read for --resume-timeout. About once a second.
  void sweep(Clock::time_point now);
  // Forgets one, without ending it; false: there is none.
  bool erase(const std::string& tenant, const std::string& name);
  // Ends all.
  void clear();
  // Streams whose last event nobody was given yet.
  size_t num_undelivered() const;

 private:
  struct Entry {
    std::string id, request_id;  // with their tenant
    std::shared_ptr<ResumableStream> stream;
    std::function<void()> abandon;
  };
  std::list<Entry>::const_iterator find_named(const std::string& name) const;  // with the lock held
  void count() const;

  const ServerConfig& config_;
  HttpMetrics& metrics_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // oldest first
  int64_t reserved_ = 0;
};

// `call`, or one that survives its connection; null when an error was answered.
CallPtr resumable_call(ServerContext& context, CallPtr call);

}  // namespace bam
