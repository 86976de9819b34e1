#pragma once

#include <cstdint>
#include <string>

namespace bam {

// The one line that a request leaves in the log. Texts of clients are not part of it.
struct RequestLog {
  bool is_generation = false;  // others are logged at level debug
  std::string id, method, path, peer;
  int status = 0;  // 499: the client left
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  double ttft_ms = -1;   // -1: no token was produced
  double decode_ms = 0;  // from the first to the last token
  double total_ms = 0;
  std::string finish;  // stop, length, abort, error; empty: none
  std::string error;   // message of an error reply
  std::string prompt;  // only with --log-prompts

  void write() const;
};

}  // namespace bam
