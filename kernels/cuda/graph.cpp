#include "kernels/cuda/graph.h"

#include "kernels/cuda/memory.h"

namespace bam::cuda {
namespace {

struct GraphOwner {
  cudaGraph_t graph = nullptr;
  ~GraphOwner() {
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
  }
};

}  // namespace

StepGraph::~StepGraph() {
  for (const auto& [rows, executable] : executables_) (void)cudaGraphExecDestroy(executable);
}

void StepGraph::begin(cudaStream_t stream, int64_t rows) {
  // Relaxed: scratch memory may have to grow while a step is recorded.
  BAM_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  recording_ = true;
  rows_ = rows;
}

void StepGraph::finish(cudaStream_t stream) {
  if (!recording_) return;
  recording_ = false;
  GraphOwner recorded;
  BAM_CUDA(cudaStreamEndCapture(stream, &recorded.graph));
  cudaGraphExec_t& executable = executables_[rows_];
  if (executable != nullptr) {
    cudaGraphExecUpdateResultInfo result{};
    if (cudaGraphExecUpdate(executable, recorded.graph, &result) != cudaSuccess) {
      (void)cudaGetLastError();  // another number of launches than last time: build it anew
      (void)cudaGraphExecDestroy(executable);
      executable = nullptr;
    }
  }
  if (executable == nullptr) BAM_CUDA(cudaGraphInstantiate(&executable, recorded.graph, 0));
  BAM_CUDA(cudaGraphLaunch(executable, stream));
}

void StepGraph::abandon(cudaStream_t stream) {
  if (!recording_) return;
  recording_ = false;
  GraphOwner recorded;
  (void)cudaStreamEndCapture(stream, &recorded.graph);
  (void)cudaGetLastError();
}

}  // namespace bam::cuda
