// One decode step as a CUDA graph: the launches between begin() and finish() are recorded instead of issued, an
// executable graph of the same batch size is brought up to date with them, and one launch runs the whole step. Steps
// whose shape changed in a way that an update cannot follow are instantiated anew.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>

namespace bam::cuda {

class StepGraph {
 public:
  StepGraph() = default;
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  bool recording() const { return recording_; }
  // Starts recording what is issued on `stream` for a step of `rows` rows.
  void begin(cudaStream_t stream, int64_t rows);
  // Launches what was recorded, if anything; safe to call at any time.
  void finish(cudaStream_t stream);
  // Forgets what was recorded, after a failure.
  void abandon(cudaStream_t stream);

 private:
  bool recording_ = false;
  int64_t rows_ = 0;
  std::map<int64_t, cudaGraphExec_t> executables_;  // by rows of the step
};

}  // namespace bam::cuda
