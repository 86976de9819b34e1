// What one rank has said to another and the wire has not taken yet.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

namespace bam {

// Any thread puts, one takes.
class Outbox {
 public:
  // Takes the memory of `message` and leaves that of an older one.
  void put(uint32_t kind, std::vector<std::byte>& message) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      messages_.emplace_back(kind, std::exchange(message, spare(kind)));
    }
    changed_.notify_all();
  }
  // A word that says nothing beside others.
  void put_if_empty(uint32_t kind) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || taken_ || !messages_.empty()) return;
      messages_.emplace_back(kind, std::vector<std::byte>{});
    }
    changed_.notify_all();
  }

  // Waits for the next one. It counts as here until the next call, which has the same arguments. False: closed.
  bool take(uint32_t& kind, std::vector<std::byte>& message) {
    std::unique_lock lock(mutex_);
    if (taken_) {
      taken_ = false;
      if (spare_.size() < kMaxSpare) spare_.emplace_back(kind, std::move(message));
      if (messages_.empty()) changed_.notify_all();
    }
    changed_.wait(lock, [&] { return closed_ || !messages_.empty(); });
    if (closed_) return false;
    kind = messages_.front().first;
    message = std::move(messages_.front().second);
    messages_.pop_front();
    taken_ = true;
    return true;
  }

  // Until nothing is left, at most `timeout`.
  void drain(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [&] { return closed_ || (messages_.empty() && !taken_); });
  }
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

 private:
  using Message = std::pair<uint32_t, std::vector<std::byte>>;
  static constexpr size_t kMaxSpare = 8;

  // Messages of one kind are about the same size.
  std::vector<std::byte> spare(uint32_t kind) {
    const auto found = std::ranges::find(spare_, kind, &Message::first);
    if (found == spare_.end()) return {};
    std::vector<std::byte> memory = std::move(found->second);
    spare_.erase(found);
    return memory;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;
  std::vector<Message> spare_;  // memory of messages that have left
  bool taken_ = false, closed_ = false;
};

}  // namespace bam
