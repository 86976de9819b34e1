// Rows that go from the memory of this stage's device to that of the next one, beside the messages: a message that says
// "rows" has no payload then. Control stays with the messages, which also tell when a neighbour is lost.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "transport/row_wire.h"
#include "transport/transport.h"

namespace bam {

// What a rank says of the way that its rows take: equal on all ranks. Throws UsageError where the backend has no device.
std::string describe_row_wires(const RowWireMaker* wires, const Backend& backend);

// The way of one rank in one group. One thread computes; when the group is lost, all that it waits for here ends in PeerLost.
class DeviceRows {
 public:
  // Connects with the neighbours, which do the same. All outlive it. Throws PeerLost.
  DeviceRows(Backend& backend, const RowWireMaker& wires, Transport& transport, uint64_t epoch);
  ~DeviceRows();
  DeviceRows(const DeviceRows&) = delete;

  // Memory for rows that will be sent. Waits while the next stage has not taken what was in it before.
  float* outgoing(size_t floats);
  // What is there now. After the message that announces it: the next stage asks for rows when it has read that.
  void send(size_t floats);
  // The rows that a message has announced; good until the next call.
  const float* receive(size_t floats);

 private:
  // One direction: the wire, and memory for what is on it.
  struct Side {
    std::vector<std::unique_ptr<DeviceBuffer>> slots;
    std::unique_ptr<RowWire> wire;  // goes first: nobody writes to a slot after it
    uint64_t issued = 0;            // transfers
  };

  void connect(Side& side, bool sends, const RowWireMaker& wires, uint64_t epoch);
  float* slot(Side& side, size_t floats);
  // Until at most `left` of its transfers are under way.
  void await(Side& side, uint64_t left);
  // `work` of a wire, whose failure is that of the group.
  template <typename F>
  void on_wire(F work);
  void watch();

  Backend& backend_;
  Transport& transport_;
  Side in_, out_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  std::thread watcher_;
};

}  // namespace bam
