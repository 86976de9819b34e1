// One device of the machine: which one, what it can do, and how a thread makes it its own. Streams, memory and handles
// are made while it is current and belong to a backend; none of them is global, so one process may use several devices.
#pragma once

#include <cuda_runtime.h>

#include <string>

namespace bam::cuda {

class CudaContext {
 public:
  // The device is current for the calling thread afterwards.
  explicit CudaContext(int device);

  // While one lives, the calling thread works on the device; the one it had before comes back at the end.
  class Scope {
   public:
    explicit Scope(int device);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    int previous_ = 0;
    bool changed_ = false;
  };
  [[nodiscard]] Scope enter() const { return Scope(device_); }

  int device() const { return device_; }
  const std::string& name() const { return name_; }
  int capability() const { return capability_; }  // 80: compute capability 8.0
  int multiprocessors() const { return multiprocessors_; }
  size_t shared_per_block() const { return shared_per_block_; }  // bytes, static and dynamic, after opting in

 private:
  int device_ = 0;
  std::string name_;
  int capability_ = 0;
  int multiprocessors_ = 1;
  size_t shared_per_block_ = 0;
};

}  // namespace bam::cuda
