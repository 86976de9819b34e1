// A step of few rows as a CUDA graph. Its launches and copies are written down instead of issued; when the step ends and
// the same list was seen before, the graph made of it then is launched again: nothing is captured, instantiated or
// updated. What differs from step to step (tokens, positions, block tables, work items) is data at fixed addresses.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/launch.h"

namespace bam::cuda {

class StepGraph {
 public:
  StepGraph() = default;
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  bool recording() const { return recording_; }
  // Starts writing down what goes to queue().
  void begin();
  Queue queue(cudaStream_t stream) { return {stream, recording_ ? &record_ : nullptr}; }
  // Launches what was written down, if anything; safe to call at any time.
  void finish(cudaStream_t stream);
  // Forgets what was written down, after a failure.
  void abandon();

 private:
  struct Known {
    Record record;
    cudaGraphExec_t executable = nullptr;
    uint64_t last_use = 0;
  };
  Known& known(cudaStream_t stream);

  bool recording_ = false;
  Record record_;
  std::vector<Known> known_;
  uint64_t uses_ = 0;
};

}  // namespace bam::cuda
