#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "models/tokenizer.h"
#include "server/http/auth.h"
#include "server/jinja/chat_template.h"
#include "server/http/connections.h"
#include "server/grammar/constraint.h"
#include "server/api/live_jobs.h"
#include "server/api/metrics.h"
#include "server/api/openai_api.h"
#include "server/api/server_config.h"
#include "server/http/worker_pool.h"

namespace bam {

// A prompt with a hidden number and the number itself.
struct PasskeyPrompt {
  std::vector<int32_t> tokens;
  std::string answer;      // digits
  int64_t max_tokens = 8;  // enough for them
};

// Everything about the loaded model that handlers need. Immutable once published.
struct ServingModel {
  ServingModel(Engine& engine, const Tokenizer& tokenizer) : engine(engine), tokenizer(tokenizer) {}

  Engine& engine;
  const Tokenizer& tokenizer;
  std::optional<ChatTemplate> chat_template;
  std::string chat_template_error;  // why there is none
  SamplingDefaults defaults;
  std::string system_fingerprint;
  std::string checkpoint;  // folder, for /props
  std::string weight_dtype, device;
  int64_t num_parameters = 0;
  uint64_t weight_bytes = 0;
  int64_t created = 0;  // Unix seconds
  // Hidden-number prompts for the self test; empty: not offered. length in tokens, depth in [0, 1].
  std::function<Result<PasskeyPrompt>(int64_t length, double depth, uint64_t seed)> passkey_prompt;

  // Built on first use: it walks the whole vocabulary.
  const ConstraintVocabulary& constraint_vocabulary() const;

 private:
  mutable std::once_flag vocabulary_once_;
  mutable std::unique_ptr<ConstraintVocabulary> vocabulary_;
};

// What handlers share. Lives longer than the event loops.
struct ServerContext {
  explicit ServerContext(ServerConfig server_config)
      : config(std::move(server_config)), keys(config.api_keys, config.admin_key), connections(config) {}

  const ServerConfig config;
  const KeyRing keys;
  std::string version;
  std::string props_json;  // resolved configuration, secrets masked
  ConnectionTable connections;
  HttpMetrics metrics;
  LiveJobs jobs;
  std::atomic<bool> draining{false};
  std::atomic<const ServingModel*> model{nullptr};  // null while loading
  const std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  WorkerPool workers;  // last: its threads end before anything above goes away
};

}  // namespace bam
