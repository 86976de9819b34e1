// What a plugin for device memory (libbam_nccl.so) offers: rows from the memory of one device to that of another, past the
// hosts. A wire is one boundary between two stages, in one direction; everything else that ranks say goes over Transport.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace bam {

// All methods may be called from any thread, and none of them waits for the other end's work.
class RowWire {
 public:
  virtual ~RowWire() = default;  // as abort()
  // Queues one transfer behind those before it; `memory` (of this rank's device) is the wire's until it is done. Both ends
  // name the same bytes in the same order. A first transfer returns when the other end has asked for it, too. Throws Error,
  // in one line, when there will be no more.
  virtual void send(const void* memory, size_t bytes) = 0;
  virtual void receive(void* memory, size_t bytes) = 0;
  // How many transfers are done. Throws as above.
  virtual uint64_t done() = 0;
  // Ends what is on its way: nothing waits for the other end any more.
  virtual void abort() noexcept = 0;
};

using RowWireId = std::array<char, 128>;  // by which two ends find each other

struct RowWireOptions {
  int device = 0;  // of this process
  bool sends = false;
  RowWireId id{};
  std::function<void()> watch;                // called while the other end is awaited; what it throws ends that
  std::chrono::milliseconds timeout{60'000};  // for the other end to come, and for a first transfer
};

// How to get one, from a plugin or from a test.
class RowWireMaker {
 public:
  virtual ~RowWireMaker() = default;
  virtual std::string description() const = 0;  // "nccl 2.28.9": equal on all ranks
  // The end that sends makes the id. Both throw Error.
  virtual RowWireId make_id() const = 0;
  virtual std::unique_ptr<RowWire> make(const RowWireOptions& options) const = 0;
};

// Throws Error if there is no plugin of that name.
std::unique_ptr<RowWireMaker> load_row_wires(const std::string& name);

// The plugin's C symbol: a maker, or null and one line in `error` (cut to `error_size`, always terminated).
using MakeRowWiresFunction = RowWireMaker* (*)(char* error, size_t error_size);
inline constexpr const char* kMakeRowWiresSymbol = "bam_make_row_wires";

}  // namespace bam
