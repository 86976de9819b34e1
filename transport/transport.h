// How the ranks of one server talk: ordered, reliable messages between any two ranks of a group. A group lives until one of
// its ranks is lost; then it is of no use to any rank, and a new one is formed under a new epoch.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/row_wire.h"

namespace bam {

// A rank is dead, stuck or cut off, or says itself that it gives up. Nothing can be sent to or received from anybody in this
// group any more.
class PeerLost : public Error {
 public:
  PeerLost(int rank, const std::string& what, bool comes_back = false)
      : Error("rank {} is lost: {}", rank, what), rank_(rank), comes_back_(comes_back) {}
  int rank() const { return rank_; }  // -1: not known which one
  // It has given up this group only, by its own abort().
  bool comes_back() const { return comes_back_; }

 private:
  int rank_;
  bool comes_back_;
};

// Streams of messages between two ranks; each is in order, they do not wait for each other.
enum class Channel : uint8_t { kPlan, kActivations, kDone };
inline constexpr int kNumChannels = 3;

// Thread rules: one thread at a time per (direction, peer, channel); different ones may be used from different threads at
// once. Liveness is watched by the transport itself (a rank that computes for long is not lost, one that is stopped or cut
// off is, within the deadline).
class Transport {
 public:
  virtual ~Transport() = default;  // leaves the group: the others see this rank as lost

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string description() const = 0;  // "gloo over tcp"

  // Takes the memory of `message` and leaves that of an older one; does not wait for the receiver. What it has not taken
  // yet takes memory: who sends without limit needs credits of its own. Throws PeerLost.
  virtual void send_swap(int to, Channel channel, std::vector<std::byte>& message) = 0;
  void send(int to, Channel channel, std::span<const std::byte> message) {
    std::vector<std::byte> copy(message.begin(), message.end());
    send_swap(to, channel, copy);
  }
  // The next message into `message` (its memory is reused). False: none came within `timeout`, which changes nothing.
  // Throws PeerLost, but not before messages that had arrived were taken.
  virtual bool receive(int from, Channel channel, std::vector<std::byte>& message,
                       std::chrono::milliseconds timeout) = 0;
  // Throws PeerLost if the group is lost, whatever has arrived. From any thread.
  virtual void check() const = 0;
  // Gives up this group but not the next one, on this rank at once (calls that wait end with PeerLost) and on the others as
  // soon as they hear of it. May be called from any thread.
  virtual void abort(const std::string& why) noexcept = 0;
};

// All ranks of a group in this process, by rank: queues between threads.
std::vector<std::unique_ptr<Transport>> make_local_group(int size);

// Forms the group again and again: at start and after every loss. Used by one thread per rank.
class GroupSource {
 public:
  virtual ~GroupSource() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Waits until all ranks have come together, at most `timeout`; null: they did not. `epoch` is the group's number, the same
  // on all ranks and larger than that of every group before.
  virtual std::unique_ptr<Transport> form(std::chrono::milliseconds timeout, uint64_t& epoch) = 0;
  // How rows go from device to device; null: in messages, like everything else.
  virtual const RowWireMaker* row_wires() const { return nullptr; }
};

// The same groups, whose rows go from device to device.
std::unique_ptr<GroupSource> with_row_wires(std::unique_ptr<GroupSource> source, std::unique_ptr<RowWireMaker> wires);

// One source per rank, for threads of this process; by rank. They may outlive each other.
std::vector<std::unique_ptr<GroupSource>> make_local_sources(int size);

}  // namespace bam
