#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/client/completion_call.h"
#include "app/client/http_loop.h"
#include "app/client/prompt_builder.h"

namespace CLI {
class App;
}

namespace bam::client {

struct TargetOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;
  std::string model;      // empty: the first one that /v1/models lists
  std::string tokenizer;  // checkpoint folder or sentencepiece file; empty: the server's /tokenize
  std::vector<std::string> headers;
  double timeout_s = 0;
  bool insecure = false;
};
// $BAM_API_KEY or $OPENAI_API_KEY.
std::string default_api_key();
// --url --model --api-key --header --tokenizer --timeout --insecure
void add_target_options(CLI::App& app, TargetOptions* options);

// A server under test: where its routes are and what it is called. Results name it; the key is never part of them.
class Target {
 public:
  // Throws UsageError for a URL that is none.
  explicit Target(TargetOptions options);
  // Asks /v1/models; throws Error when nobody answers there.
  void connect();

  const std::string& url() const { return root_; }
  const std::string& model() const { return options_.model; }
  double timeout_s() const { return options_.timeout_s; }
  std::string endpoint_url(Endpoint endpoint) const;
  HttpSettings http_settings() const;
  HttpSession& session() { return session_; }
  // Streams can tell how much of a prompt is read (return_progress): ours and llama.cpp's.
  bool reports_progress() const { return reports_progress_; }
  // Tokens of prompt and answer together, where /v1/models says so.
  std::optional<int64_t> context() const { return context_; }
  // "bam/0.1.0" or the like if GET /version says; for the reports.
  const std::string& server_name() const { return server_name_; }
  nlohmann::json describe() const;

  // One completion outside of any measurement. Throws Error with the server's words on failure.
  nlohmann::json complete(const nlohmann::json& body, Endpoint endpoint, double timeout_s);
  // process_resident_memory_bytes of GET /metrics.
  std::optional<double> resident_bytes();

 private:
  TargetOptions options_;
  std::string root_;  // without a trailing slash and /v1
  std::string api_;   // root + /v1
  std::string server_name_;
  bool reports_progress_ = false;
  std::optional<int64_t> context_, training_context_;
  HttpSession session_;
};

std::optional<double> parse_resident_bytes(std::string_view metrics);

// Text to ids, from the server's /tokenize (vLLM's and llama.cpp's shapes) or from a local file.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual TokenIds encode(std::string_view text) = 0;  // no special tokens; throws Error
  virtual std::string name() const = 0;
  EncodeFn encoder() {
    return [this](std::string_view text) { return encode(text); };
  }
};
// nullptr: no --tokenizer was given and the server has no /tokenize.
std::unique_ptr<TokenSource> open_token_source(Target& target, const TargetOptions& options);

// Does the server take `prompt` as token ids, and does it count them as we do?
struct IdSupport {
  bool accepted = false;
  std::string reason;        // why not, in the server's words
  int64_t added_tokens = 0;  // what the server puts in front of the ids (a BOS)
};
IdSupport probe_id_prompts(Target& target, const TokenIds& ids);

// Tokens per English word as the server's usage counts them, for prompts that can only be sent as text.
// Throws Error when the server reports no usage.
double measure_tokens_per_word(Target& target, Endpoint endpoint);

}  // namespace bam::client
