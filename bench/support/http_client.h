// The load tester's HTTP client as the benchmarks use it: many event streams on one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bam::bench {

struct Reply {
  double sent_s = 0, first_token_s = 0, last_token_s = 0;
  int64_t num_tokens = 0;       // over HTTP: what the usage says
  std::vector<int32_t> tokens;  // over HTTP: only if asked for

  void add_token(int32_t token, double now) {
    arrived(now);
    tokens.push_back(token);
    ++num_tokens;
  }
  void arrived(double now) {
    if (first_token_s == 0) first_token_s = now;
    last_token_s = now;
  }
};

// Posts every body to 127.0.0.1:port over `concurrency` kept connections and reads the streams to their ends. Throws
// Error for a status other than 200 and for a stream that ends without [DONE].
std::vector<Reply> run_streams(int port, const std::string& path, const std::vector<std::string>& bodies,
                               size_t concurrency);

}  // namespace bam::bench
