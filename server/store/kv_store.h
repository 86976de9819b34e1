// Prefixes that replicas share by content: one computes a long prompt and writes its pages, any other with the same identity
// finds them before it would compute the same tokens.
//
// Reading and writing is done by threads of its own, with bounded memory; the engine's thread copies pages between steps.
// A store that is slow, full, damaged or gone costs a request --kv-store-timeout at most, once: then nobody asks it for a
// while. What it holds changes when tokens come, never which.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/prefix_store.h"

namespace bam {

class Engine;

struct KvStoreConfig {
  std::string place;                   // see open_object_store(); empty: off
  uint64_t limit_bytes = 32ull << 30;  // of a folder
  int64_t min_tokens = 2048;           // shorter prefixes are neither written nor looked for
  double timeout_s = 2;                // a request waits at most so long
  int64_t stretch_tokens = 1024;       // prefixes are found in steps of so many
  uint64_t part_bytes = 4ull << 20;    // of an object, about
};

class KvStore final : public PrefixStore {
 public:
  // The engine outlives it. Throws UsageError for a place that cannot be one.
  KvStore(const KvStoreConfig& config, Engine& engine);
  // Writes what is waiting to be written, for a few seconds at most.
  ~KvStore() override;

  bool look_up(const Request& request, int64_t num_cached) override;
  Clock::duration patience() const override;
  void gave_up() override;
  void computed(const Request& request) override;

 private:
  class Shared;
  // Waits for the threads, but not for one that hangs in a system call.
  void stop();

  std::shared_ptr<Shared> shared_;  // a thread that hangs keeps it
  std::vector<std::thread> threads_;
  Engine& engine_;
};

}  // namespace bam
