// Looks at single heads, computed in pieces beside the steps of others. Engine thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "base/error.h"
#include "models/attention_probe.h"

namespace bam {

struct ModelConfig;

class ProbeQueue {
 public:
  static constexpr int64_t kMaxTokens = 2048;
  // What is wrong with such a probe; nullopt: nothing. Any thread.
  static std::optional<Error> check(const ModelConfig& model, std::span<const int32_t> tokens, int layer, int head,
                                    int64_t position);

  using Done = std::function<void(Result<std::vector<float>>)>;
  void add(std::unique_ptr<AttentionProbe> probe, std::stop_token stop, Done done);
  // Lets `add` hand a probe over to the engine's thread, and waits for its row. Any other thread.
  static Result<std::vector<float>> ask(const std::function<void(Done)>& add);
  bool empty() const { return probes_.empty(); }
  // Forgets those whose callers left.
  void drop_stopped();
  // Keys before the next row of the oldest one.
  int64_t num_computed() const { return probes_.front().probe->num_computed(); }
  // Up to so many rows of the oldest one, computed by `compute`; tells its caller when it is complete or failed. Throws
  // DeviceLost after that. PeerLost changes nothing.
  using Compute = std::function<std::optional<std::vector<float>>(AttentionProbe&, int64_t rows)>;
  void advance(int64_t rows, const Compute& compute);
  // What has been computed is lost.
  void restart();
  void cancel_all();

 private:
  struct Probe {
    std::unique_ptr<AttentionProbe> probe;
    std::stop_token stop;
    Done done;
  };
  std::deque<Probe> probes_;
};

}  // namespace bam
