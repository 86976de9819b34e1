#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"

namespace bam {

// What the HTTP side counts.
struct HttpMetrics {
  std::atomic<uint64_t> disconnects{0};   // clients that left before their reply was complete
  std::atomic<uint64_t> slow_readers{0};  // streams cut because nobody read them
  std::atomic<uint64_t> rejected_auth{0};
  std::atomic<uint64_t> rejected_queue{0};
  std::atomic<int64_t> open_streams{0};
  std::atomic<int64_t> resumable_streams{0}, resumable_bytes{0};
  std::atomic<uint64_t> resumed_streams{0};  // by another connection
  std::atomic<uint64_t> expired_streams{0};  // nobody came for their last event in time
  std::atomic<int64_t> body_bytes{0};        // request bodies held in memory
  std::atomic<int64_t> open_connections{0};
  std::atomic<uint64_t> timed_out_connections{0}, refused_connections{0};
  std::atomic<uint64_t> malformed_connections{0};  // what they sent is no HTTP
  std::atomic<uint64_t> failed_connections{0};     // something threw in their thread: a defect, but nobody else's loss

  void count_response(std::string_view route, int status);
  std::map<std::pair<std::string, int>, uint64_t> responses() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> responses_;
};

// One text in Prometheus' exposition format 0.0.4. `engine` may be null while the model is loading.
struct MetricsInput {
  const HttpMetrics& http;
  const Engine* engine = nullptr;
  std::string model_name;
  bool vllm_names = false;
};
std::string format_metrics(const MetricsInput& input);

// Every metric as {name, vllm, type, help}, for /openapi.json.
Json describe_metrics();

// Resident memory of this process in bytes, 0 if unknown.
uint64_t resident_bytes();

}  // namespace bam
