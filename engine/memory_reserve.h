#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <thread>

#include "base/log.h"

namespace bam {

// Memory with which to end requests when there is no other.
class MemoryReserve {
 public:
  void refill() {
    if (!bytes_) bytes_.reset(new (std::nothrow) std::byte[kBytes]);
  }
  // For what must be done even without memory: gives up the reserve and tries again. `work` changes nothing if it
  // throws.
  template <typename F>
  void insist(F work) {
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      try {
        return work();
      } catch (const std::bad_alloc&) {
        bytes_.reset();
        if (attempt > 0) std::this_thread::sleep_for(kPause);  // others may give some back
      }
    }
    log::error("there is no memory left to say so to a client");
  }

 private:
  static constexpr size_t kBytes = size_t{256} << 10;
  static constexpr int kAttempts = 100;
  static constexpr auto kPause = std::chrono::milliseconds(10);
  std::unique_ptr<std::byte[]> bytes_;
};

}  // namespace bam
