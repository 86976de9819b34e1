// What has arrived for one rank and was not taken yet: a queue per (sender, channel), and whether the group is lost.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace bam {

// All methods may be called from any thread.
class Mailbox {
 public:
  explicit Mailbox(int size) : boxes_(static_cast<size_t>(size * kNumChannels)) {}

  void put(int from, Channel channel, std::span<const std::byte> message);
  // Takes the memory of `message` and leaves that of an older one.
  void put_swap(int from, Channel channel, std::vector<std::byte>& message);
  // As Transport::receive(): what had arrived before the loss is still handed out.
  bool take(int from, Channel channel, std::vector<std::byte>& message, std::chrono::milliseconds timeout);
  // The first loss counts. True if this was it.
  bool lose(int rank, const std::string& why);
  void throw_if_lost() const;

 private:
  struct Box {
    std::deque<std::vector<std::byte>> messages;
    std::condition_variable arrived;
  };
  struct Loss {
    int rank = -1;
    std::string why;
  };
  Box& box(int from, Channel channel) {
    return boxes_[static_cast<size_t>(from * kNumChannels + static_cast<int>(channel))];
  }
  std::vector<std::byte> spare();

  mutable std::mutex mutex_;
  std::vector<Box> boxes_;                     // [size][channels]
  std::vector<std::vector<std::byte>> spare_;  // memory of messages that were taken
  std::optional<Loss> loss_;
};

}  // namespace bam
