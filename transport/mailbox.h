// What has arrived for one rank and was not taken yet: a queue per (sender, channel), and whether the group is lost.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace bam {

// All methods may be called from any thread.
class Mailbox {
 public:
  explicit Mailbox(int size) : boxes_(static_cast<size_t>(size * kNumChannels)) {}

  void put(int from, Channel channel, std::vector<std::byte>&& message);
  // Memory of a message of this kind that was taken, for the next one; may be empty.
  std::vector<std::byte> spare(int from, Channel channel);
  // As Transport::receive(): what had arrived before the loss is still handed out.
  bool take(int from, Channel channel, std::vector<std::byte>& message, std::chrono::milliseconds timeout);
  // The first loss counts. True if this was it.
  bool lose(int rank, const std::string& why, bool comes_back);
  void throw_if_lost() const;

 private:
  struct Box {
    std::deque<std::vector<std::byte>> messages;
    std::vector<std::vector<std::byte>> spare;  // memory of messages that were taken
    std::condition_variable arrived;
  };
  struct Loss {
    int rank = -1;
    std::string why;
    bool comes_back = false;
  };
  Box& box(int from, Channel channel) {
    return boxes_[static_cast<size_t>(from * kNumChannels + static_cast<int>(channel))];
  }

  mutable std::mutex mutex_;
  std::vector<Box> boxes_;  // [size][channels]
  std::optional<Loss> loss_;
};

}  // namespace bam
