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
#include "server/api/call.h"
#include "server/api/live_jobs.h"
#include "server/api/metrics.h"
#include "server/api/openai_api.h"
#include "server/api/response_store.h"
#include "server/api/resumable.h"
#include "server/api/server_config.h"
#include "server/grammar/vocabulary.h"
#include "server/jinja/chat_template.h"

namespace bam {

struct ServerContext;
class BatchStore;

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
  // The handler of POST /v1/selftest/passkey; the program that serves brings it. Empty: not offered.
  std::function<void(ServerContext&, CallPtr)> passkey_selftest;

  // Built on first use: it walks the whole vocabulary.
  const ConstraintVocabulary& constraint_vocabulary() const;

 private:
  mutable std::once_flag vocabulary_once_;
  mutable std::unique_ptr<ConstraintVocabulary> vocabulary_;
};

// What handlers share. Lives longer than the event loops.
struct ServerContext {
  ServerContext(ServerConfig server_config, Workers& worker_threads)
      : config(std::move(server_config)), workers(worker_threads) {}

  const ServerConfig config;
  std::string version;
  std::string props_json;  // resolved configuration, secrets masked
  HttpMetrics metrics;
  LiveJobs jobs;
  ResponseStore responses;
  ResumableStreams streams{config, metrics};
  std::shared_ptr<BatchStore> batches;  // null without --batch-dir
  std::atomic<bool> draining{false};
  std::atomic<const ServingModel*> model{nullptr};  // null while loading
  const std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  Workers& workers;
};

}  // namespace bam
