#include "kernels/cuda/graph.h"

#include <algorithm>

#include "kernels/cuda/memory.h"

namespace bam::cuda {
namespace {

// Batch sizes up to 64, and a few steps of each that are not plain decoding.
constexpr size_t kMostGraphs = 128;

struct GraphOwner {
  cudaGraph_t graph = nullptr;
  ~GraphOwner() {
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
  }
};

bool same(const Record& a, const Record& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& one, const auto& other) { return one->same(*other); });
}

// The work as a graph: captured, so that nothing runs yet. The stream is its own again also after a failure.
void capture(const Record& record, cudaStream_t stream, GraphOwner& owner) {
  BAM_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  try {
    for (const auto& work : record) check(work->issue(stream), "recording a step");
  } catch (...) {
    (void)cudaStreamEndCapture(stream, &owner.graph);
    throw;
  }
  BAM_CUDA(cudaStreamEndCapture(stream, &owner.graph));
}

}  // namespace

StepGraph::~StepGraph() {
  for (const Known& one : known_) (void)cudaGraphExecDestroy(one.executable);
}

void StepGraph::begin() {
  record_.clear();
  recording_ = true;
}

StepGraph::Known& StepGraph::known(cudaStream_t stream) {
  const auto found =
      std::find_if(known_.begin(), known_.end(), [&](const Known& one) { return same(one.record, record_); });
  if (found != known_.end()) return *found;
  GraphOwner owner;
  capture(record_, stream, owner);
  Known next{std::move(record_), nullptr, 0};
  BAM_CUDA(cudaGraphInstantiate(&next.executable, owner.graph, 0));
  if (known_.size() < kMostGraphs) return known_.emplace_back(std::move(next));
  // The host has waited for every step but this one: the oldest does not run any more.
  Known& oldest = *std::min_element(known_.begin(), known_.end(),
                                    [](const Known& a, const Known& b) { return a.last_use < b.last_use; });
  (void)cudaGraphExecDestroy(oldest.executable);
  return oldest = std::move(next);
}

void StepGraph::finish(cudaStream_t stream) {
  if (!recording_) return;
  recording_ = false;
  Known& step = known(stream);
  step.last_use = ++uses_;
  BAM_CUDA(cudaGraphLaunch(step.executable, stream));
}

void StepGraph::abandon() {
  recording_ = false;
  record_.clear();
}

}  // namespace bam::cuda
