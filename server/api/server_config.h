#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bam {

// Resolved settings of the HTTP side; valid by the time the server sees them.
struct ServerConfig {
  std::string host = "127.0.0.1";
  int port = 8000;                              // 0: any free port
  std::vector<std::string> served_model_names;  // first: the one in replies
  std::vector<std::string> api_keys;            // empty: no authentication
  std::string admin_key;                        // empty: admin routes are off
  bool cache_salt_per_key = true;               // with several API keys, cached prompts are shared within one only
  int32_t max_priority = 100;                   // of callers without the admin key, either way
  std::vector<std::string> cors_origins;        // empty: no CORS; "*": any
  std::vector<std::string> allowed_hosts;       // names of this server beyond addresses and local names; "*": any
  std::string tls_cert, tls_key;                // files; empty: plain HTTP
  uint64_t max_body_bytes = 32ull << 20;
  int64_t max_connections = 4096;
  int64_t default_max_tokens =
      4096;                      // of a chat that names no limit, nor does the checkpoint; 0: the rest of the context
  double request_timeout_s = 0;  // 0: none
  double drain_timeout_s = 30;
  double read_timeout_s = 30;                // a request that has begun must arrive within it
  double idle_timeout_s = 300;               // keep-alive connections without a request
  double stall_timeout_s = 60;               // a reply of which nothing can be sent for that long
  uint64_t max_unsent_bytes = 256ull << 10;  // per stream; nothing is computed for a reader that is further behind
  double ping_interval_s = 10;
  double resume_timeout_s = 60;               // a resumable stream without a reader is kept that long
  uint64_t resume_buffer_bytes = 4ull << 20;  // of its events
  int64_t max_resumable = 64;                 // such streams at a time
  int io_threads = 2;
  std::string batch_dir;  // of files and batches; empty: there are none
  bool vllm_metrics = true;
  bool log_prompts = false;
};

}  // namespace bam
