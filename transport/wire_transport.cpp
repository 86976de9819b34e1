#include "transport/wire_transport.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/describe.h"
#include "transport/mailbox.h"
#include "transport/outbox.h"

namespace bam {

namespace {

// A message travels as frames of one size, the first of which says how long it is and holds its beginning; what does not fit
// follows in pieces, each well within a deadline.
constexpr size_t kFrameBytes = 512;
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 33;
constexpr uint32_t kMagic = 0x316d6162;
constexpr uint32_t kAlive = 0x100, kLost = 0x101;  // kinds beside the channels
constexpr int kBeatsPerDeadline = 4;
constexpr std::chrono::milliseconds kFarewell{500};  // nobody who takes nothing holds up the end for longer

struct FrameHead {
  uint32_t magic = kMagic;
  uint32_t kind = 0;
  uint64_t length = 0;  // of the whole message
};
constexpr size_t kInlineBytes = kFrameBytes - sizeof(FrameHead);
using Frame = std::array<std::byte, kFrameBytes>;

class WireTransport : public Transport {
 public:
  WireTransport(std::unique_ptr<Wire> wire, std::chrono::milliseconds deadline)
      : wire_(std::move(wire)),
        deadline_(deadline),
        mailbox_(wire_->size()),
        peers_(static_cast<size_t>(wire_->size())) {
    try {
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        threads_.emplace_back([this, peer] { read_all(peer); });
        threads_.emplace_back([this, peer] { write_all(peer); });
      }
      beater_ = std::thread([this] { beat(); });
      keeper_ = std::thread([this] { keep(); });
    } catch (const std::exception& e) {
      end();
      throw Error("{}", describe(e));
    }
  }

  ~WireTransport() override {
    for (Peer& peer : peers_) peer.outbox.drain(deadline_);  // what was said is heard
    end();
  }

  int rank() const override { return wire_->rank(); }
  int size() const override { return wire_->size(); }
  std::string description() const override { return wire_->description(); }

  void send_swap(int to, Channel channel, std::vector<std::byte>& message) override {
    BAM_CHECK(to >= 0 && to < size() && to != rank());
    mailbox_.throw_if_lost();
    peers_[static_cast<size_t>(to)].outbox.put(static_cast<uint32_t>(channel), message);
  }

  bool receive(int from, Channel channel, std::vector<std::byte>& message, std::chrono::milliseconds timeout) override {
    BAM_CHECK(from >= 0 && from < size() && from != rank());
    return mailbox_.take(from, channel, message, timeout);
  }

  void check() const override { mailbox_.throw_if_lost(); }
  void abort(const std::string& why) noexcept override { leave(why, true); }

 private:
  // All threads that there are.
  void end() noexcept {
    leave("it left the group", false);
    if (keeper_.joinable()) keeper_.join();
    wire_->close();  // unless the keeper has
    if (beater_.joinable()) beater_.join();
    for (std::thread& thread : threads_) thread.join();
  }

  void leave(const std::string& why, bool comes_back) noexcept {
    try {
      lose(rank(), why, comes_back);
    } catch (...) {  // no memory for the words
      wire_->close();
    }
  }

  // What ranks say to each other leaves on a thread per peer: whoever computes does not wait for a receiver.
  void write_all(int to) {
    Outbox& outbox = peers_[static_cast<size_t>(to)].outbox;
    uint32_t kind = 0;
    std::vector<std::byte> message;
    try {
      while (outbox.take(kind, message)) write(to, kind, message);
    } catch (const std::exception& e) {
      lose(to, e.what());
    }
    outbox.close();
  }

  void write(int to, uint32_t kind, std::span<const std::byte> message) {
    const FrameHead head{kMagic, kind, message.size()};
    Frame frame{};
    std::memcpy(frame.data(), &head, sizeof head);
    const size_t first = std::min(message.size(), kInlineBytes);
    if (first > 0) std::memcpy(frame.data() + sizeof head, message.data(), first);
    const std::lock_guard lock(peers_[static_cast<size_t>(to)].writing);
    wire_->send(to, frame);
    for (size_t at = first; at < message.size(); at += kPieceBytes) {
      wire_->send(to, message.subspan(at, std::min(kPieceBytes, message.size() - at)));
    }
  }

  void read(int peer) {
    Frame frame;
    try {
      while (true) {
        wire_->receive(peer, frame);
        peers_[static_cast<size_t>(peer)].heard_at = Clock::now();
        FrameHead head;
        std::memcpy(&head, frame.data(), sizeof head);
        const bool is_channel = head.kind < static_cast<uint32_t>(kNumChannels);
        if (head.magic != kMagic || head.length > kMaxMessageBytes ||
            (!is_channel && (head.length > kInlineBytes || (head.kind != kAlive && head.kind != kLost)))) {
          throw Error("it sent something that is not a message");
        }
        const auto begin = frame.begin() + sizeof head;
        if (head.kind == kAlive) continue;
        if (head.kind == kLost) return hear_of_loss({&*begin, head.length}, peer);
        std::vector<std::byte> message = mailbox_.spare(peer, static_cast<Channel>(head.kind));
        message.resize(head.length);
        const size_t first = std::min<size_t>(head.length, kInlineBytes);
        std::copy_n(begin, first, message.begin());
        for (size_t at = first; at < message.size(); at += kPieceBytes) {
          wire_->receive(peer, {message.data() + at, std::min(kPieceBytes, message.size() - at)});
          peers_[static_cast<size_t>(peer)].heard_at = Clock::now();
        }
        mailbox_.put(peer, static_cast<Channel>(head.kind), std::move(message));
      }
    } catch (const std::exception& e) {
      lose(peer, e.what());
    }
  }

  // All that it said, until it or the wire ended.
  void read_all(int peer) {
    read(peer);
    {
      const std::lock_guard lock(mutex_);
      peers_[static_cast<size_t>(peer)].is_read = true;
    }
    ended_.notify_all();
  }

  // kLost: who it was, then the reason.
  struct LossHead {
    int32_t rank = -1;
    int32_t comes_back = 0;
  };

  void hear_of_loss(std::span<const std::byte> text, int peer) {
    LossHead loss;
    if (text.size() < sizeof loss) return lose(peer, "it left the group");
    std::memcpy(&loss, text.data(), sizeof loss);
    if (loss.rank < 0 || loss.rank >= size()) loss.rank = peer;
    if (loss.rank != peer && loss.rank != rank()) {
      const std::lock_guard lock(mutex_);
      told_of_ = loss.rank;
    }
    lose(loss.rank, {reinterpret_cast<const char*>(text.data()) + sizeof loss, text.size() - sizeof loss},
         loss.comes_back != 0);
  }

  void lose(int who, const std::string& why, bool comes_back = false) {
    if (!mailbox_.lose(who, why, comes_back)) return;
    {
      const std::lock_guard lock(mutex_);
      const LossHead loss{who, comes_back};
      farewell_.assign(reinterpret_cast<const char*>(&loss), sizeof loss);
      farewell_ += why.substr(0, kInlineBytes - sizeof loss);
      lost_rank_ = who;
      lost_ = true;
    }
    ended_.notify_all();
    for (Peer& peer : peers_) peer.outbox.close();
  }

  std::chrono::milliseconds interval() const {
    return std::max(deadline_ / kBeatsPerDeadline, std::chrono::milliseconds(1));
  }

  // Signs of life to those who hear nothing else, until the group is lost; then the news of it.
  void beat() {
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, interval(), [&] { return lost_; })) {
      lock.unlock();
      for (int peer = 0; peer < size(); ++peer) {
        if (peer != rank()) peers_[static_cast<size_t>(peer)].outbox.put_if_empty(kAlive);
      }
      lock.lock();
    }
    const std::string farewell = farewell_;
    const int lost = lost_rank_;
    lock.unlock();
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank() && peer != lost) say_quietly(peer, kLost, farewell);
    }
    lock.lock();
    told_ = true;
    ended_.notify_all();
  }

  // Who was silent for too long is lost, at the moment when it has been. Then the end of the wire.
  void keep() {
    std::unique_lock lock(mutex_);
    while (!lost_) {
      auto next = Clock::time_point::max();
      int silent = rank();
      for (int peer = 0; peer < size(); ++peer) {
        const auto until = peers_[static_cast<size_t>(peer)].heard_at.load() + deadline_;
        if (peer == rank() || until >= next) continue;
        next = until;
        silent = peer;
      }
      if (next > Clock::now()) {
        ended_.wait_until(lock, next);
        continue;
      }
      lock.unlock();
      lose(silent, fmt::format("it said nothing for {:.1f} s", std::chrono::duration<double>(deadline_).count()));
      lock.lock();
    }
    // Of whom others have told, the last words may still be on their way.
    const auto is_silent = [&] { return told_of_ < 0 || peers_[static_cast<size_t>(told_of_)].is_read; };
    ended_.wait_for(lock, kFarewell, [&] { return told_ && is_silent(); });
    lock.unlock();
    wire_->close();
  }

  // Who cannot be told hears it from the wire's end.
  void say_quietly(int peer, uint32_t kind, const std::string& text) noexcept {
    try {
      // A sender that waits for a stuck rank holds its lock for long: not worth waiting for.
      const std::unique_lock lock(peers_[static_cast<size_t>(peer)].writing, kFarewell / 4);
      if (!lock) return;
      Frame frame{};
      const FrameHead head{kMagic, kind, text.size()};
      std::memcpy(frame.data(), &head, sizeof head);
      std::memcpy(frame.data() + sizeof head, text.data(), text.size());
      wire_->send(peer, frame);
    } catch (...) {
    }
  }

  using Clock = std::chrono::steady_clock;
  struct Peer {
    Outbox outbox;
    std::timed_mutex writing;
    std::atomic<Clock::time_point> heard_at{Clock::now()};
    bool is_read = false;
  };
  std::unique_ptr<Wire> wire_;
  std::chrono::milliseconds deadline_;
  Mailbox mailbox_;
  std::vector<Peer> peers_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool lost_ = false, told_ = false;
  int lost_rank_ = -1;
  int told_of_ = -1;                  // the rank of whose loss another one has told; -1: none
  std::string farewell_;              // rank and reason
  std::vector<std::thread> threads_;  // a reader and a writer per peer
  std::thread beater_, keeper_;
};

}  // namespace

std::unique_ptr<Transport> make_wire_transport(std::unique_ptr<Wire> wire, std::chrono::milliseconds deadline) {
  return std::make_unique<WireTransport>(std::move(wire), deadline);
}

}  // namespace bam
