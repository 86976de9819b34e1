// What a transport plugin (libbam_gloo.so, libbam_mpi.so) offers: plain bytes between two ranks. Messages, channels and
// liveness are made of it by wire_transport.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "transport/key_value_store.h"

namespace bam {

// Thread rules: one thread at a time per (direction, peer). All methods throw Error, in one line, when the peer is gone or
// has not taken or given a byte for `patience`.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string description() const = 0;
  // Both sides cut a stream of bytes in the same places: a receive() gets what one send() gave. Returns when `data` may be
  // reused.
  virtual void send(int to, std::span<const std::byte> data) = 0;
  virtual void receive(int from, std::span<std::byte> data) = 0;
  // Ends all calls on this rank, now and later, with Error. From any thread.
  virtual void close() noexcept = 0;
};

struct WireOptions {
  int rank = 0;
  int size = 1;
  KeyValueStore* store = nullptr;                  // of this group alone; outlives the making of the wire
  std::string address;                             // by which others reach this rank; empty: the machine's name
  std::chrono::milliseconds patience{10000};       // longer than the silence after which wire_transport gives a rank up
  std::chrono::milliseconds join_timeout{120000};  // all ranks must be there by then
};

// The plugin's C symbol: a wire, or null and one line in `error` (cut to `error_size`, always terminated).
using MakeWireFunction = Wire* (*)(const WireOptions* options, char* error, size_t error_size);
inline constexpr const char* kMakeWireSymbol = "bam_make_wire";

}  // namespace bam
