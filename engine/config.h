#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "kernels/dtype.h"

namespace bam {

// What kv_dtype may be; not every device has all of them (Backend::supports_kv).
inline constexpr DType kKvDtypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kFp8, DType::kI4};

// Resolved settings of an engine; every field is valid by the time an Engine sees it.
struct EngineConfig {
  DType kv_dtype = DType::kF16;
  uint64_t kv_memory_bytes = 0;       // 0: auto, a safe share of the free memory
  int page_size = 64;                 // multiple of 64
  int64_t max_model_len = 0;          // 0: auto, what the KV memory and the model allow
  int64_t max_num_seqs = 64;          // sequences in one step
  int64_t max_batched_tokens = 2048;  // rows of one step
  double step_target_ms = 50;         // prefill chunks are sized so that a mixed step takes about this long
  bool prefix_cache = true;
  bool drafts = true;                     // of requests that do not refuse them
  bool device_sampling = true;            // where the device can; tokens are the same
  uint64_t mask_work = 2'000'000;         // of all constraints in one step (MaskBudget)
  int64_t max_queue = 1024;               // waiting requests
  int64_t max_queued_tokens = 4'000'000;  // their prompt tokens
  double promote_after_s = 30;            // work that got no row for so long goes before every priority
  double queue_timeout_s = 0;             // 0: none
  std::filesystem::path kv_dir;           // snapshots; empty: off
  // With stages on several ranks:
  int replay_limit = 2;          // losses of a rank that a request survives; 0: the first one ends the server
  double group_timeout_s = 120;  // for the ranks to come together, at start and after a loss
};

}  // namespace bam
