// What the emulated machine looks like and how it schedules. Tests change it between launches; the first values come
// from the environment, so that a whole program can run on an emulated device:
//   BAM_CUDA_EMU_SEED=N      order of threads and blocks; 0: ascending
//   BAM_CUDA_EMU_STREAMS=lazy|eager|random
//   BAM_CUDA_EMU_DEVICES=N   0: no device
//   BAM_CUDA_EMU_DRIVER=old  the driver is older than the runtime
//   BAM_CUDA_EMU_CC=80       compute capability
//   BAM_CUDA_EMU_MEMORY=N    MiB of device memory
//   BAM_CUDA_EMU_BREAK=N     the N-th launch ends with an illegal address, and nothing works on that device from then
//   on BAM_CUDA_EMU_CUBLAS=no   the library is missing
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace cuda_emu {

// When work queued on a stream is done: as late as possible, at once, or now and then.
enum class StreamMode { kLazy, kEager, kRandom };

struct Config {
  uint64_t seed = 0;
  StreamMode streams = StreamMode::kLazy;
  // Device memory faults when host code touches it (a system call or two per flush of a stream).
  bool protect_device_memory = false;
  int device_count = 1;
  bool driver_too_old = false;
  int compute_capability = 80;
  bool cublas = true;  // the library is installed
  int multiprocessors = 108;
  size_t memory_bytes = size_t{2} << 30;  // of every device
  uint64_t fail_allocation = 0;           // counted by statistics().allocations; that one fails
  uint64_t break_at_launch = 0;           // counted by statistics().launches; 0: never
  uint64_t break_at_transfer = 0;         // counted by statistics().transfers: it fails, and so does its communicator

  size_t shared_per_block_optin() const;  // bytes, by compute capability
  size_t shared_per_multiprocessor() const;
};

Config& config();

// Sets a configuration for a scope. Streams must be idle at both ends.
class ScopedConfig {
 public:
  explicit ScopedConfig(const Config& next) : saved_(config()) { config() = next; }
  ~ScopedConfig() { config() = saved_; }
  ScopedConfig(const ScopedConfig&) = delete;
  ScopedConfig& operator=(const ScopedConfig&) = delete;

 private:
  Config saved_;
};

// What was done so far, for tests that count launches, copies and waits of the host.
struct Statistics {
  uint64_t launches = 0;
  uint64_t graph_launches = 0;
  uint64_t graph_instantiations = 0;
  uint64_t graph_updates = 0;
  uint64_t copies = 0;
  uint64_t copied_bytes = 0;
  uint64_t captures = 0;
  uint64_t host_waits = 0;   // synchronising calls
  uint64_t allocations = 0;  // of device and of pinned memory
  uint64_t gemms = 0;
  uint64_t transfers = 0;  // sends and receives between devices
  uint64_t transferred_bytes = 0;
  uint64_t communicators = 0;  // that live
};
Statistics& statistics();

// What an illegal address, an ECC error or an Xid does to a device: every call on it answers `error` from now on, until
// repair_devices() (a new process).
void break_device(int device, cudaError_t error);
void repair_devices();

}  // namespace cuda_emu
