// Stands between ranks and their transport: counts what goes over, slows it down, cuts it off.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "transport/transport.h"

namespace bam::testing {

struct Tap {
  std::atomic<int64_t> sent_bytes[kNumChannels] = {};
  std::atomic<int64_t> buffered{0}, most_buffered{0};  // bytes of activations that were sent and not taken yet
  // Asked when `rank` has received its `count`-th message in all groups; true: the rank is lost.
  std::function<bool(int rank, int64_t count)> kills;
  std::function<void(int rank, Channel channel)> before_receive;
  // True: other ranks tell of the end of rank 0 before this message is there.
  std::function<bool(int rank, std::span<const std::byte> message)> overtaken;

  int64_t sent(Channel channel) const { return sent_bytes[static_cast<int>(channel)].load(); }
};

class TappedTransport final : public Transport {
 public:
  TappedTransport(std::unique_ptr<Transport> inner, Tap& tap, std::atomic<int64_t>& received)
      : inner_(std::move(inner)), tap_(tap), received_(received) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string description() const override { return inner_->description(); }
  void send_swap(int to, Channel channel, std::vector<std::byte>& message) override {
    const auto bytes = static_cast<int64_t>(message.size());
    tap_.sent_bytes[static_cast<int>(channel)] += bytes;
    if (channel == Channel::kActivations) {
      const int64_t now = tap_.buffered += bytes;
      int64_t most = tap_.most_buffered;
      while (most < now && !tap_.most_buffered.compare_exchange_weak(most, now)) {
      }
    }
    inner_->send_swap(to, channel, message);
  }
  bool receive(int from, Channel channel, std::vector<std::byte>& message, std::chrono::milliseconds timeout) override {
    if (tap_.before_receive) tap_.before_receive(rank(), channel);
    if (!late_.empty() && channel == Channel::kPlan) {
      if (++looks_ < 3) throw PeerLost(0, "others say so");
      message = std::exchange(late_, {});
      return true;
    }
    if (!inner_->receive(from, channel, message, timeout)) return false;
    if (channel == Channel::kActivations) tap_.buffered -= static_cast<int64_t>(message.size());
    if (tap_.overtaken && tap_.overtaken(rank(), message)) {
      late_ = message;
      throw PeerLost(0, "others say so");
    }
    if (tap_.kills && tap_.kills(rank(), ++received_)) {
      inner_->abort("the test has killed it");
      throw PeerLost(rank(), "the test has killed it");
    }
    return true;
  }
  void check() const override { inner_->check(); }
  void abort(const std::string& why) noexcept override { inner_->abort(why); }

 private:
  std::unique_ptr<Transport> inner_;
  Tap& tap_;
  std::atomic<int64_t>& received_;
  std::vector<std::byte> late_;
  int looks_ = 0;
};

class TappedSource final : public GroupSource {
 public:
  TappedSource(std::unique_ptr<GroupSource> inner, Tap& tap) : inner_(std::move(inner)), tap_(tap) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::unique_ptr<Transport> form(std::chrono::milliseconds timeout, uint64_t& epoch) override {
    auto transport = inner_->form(timeout, epoch);
    if (!transport) return nullptr;
    return std::make_unique<TappedTransport>(std::move(transport), tap_, received_);
  }
  const RowWireMaker* row_wires() const override { return inner_->row_wires(); }

 private:
  std::unique_ptr<GroupSource> inner_;
  Tap& tap_;
  std::atomic<int64_t> received_{0};
};

}  // namespace bam::testing
