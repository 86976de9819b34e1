// How much KV memory an engine takes and what fits into it, decided once at start.
#pragma once

#include <cstdint>
#include <string>

#include "engine/config.h"
#include "engine/kv_geometry.h"
#include "kernels/paged_kv.h"
#include "models/bam.h"

namespace bam {

struct KvPlan {
  EngineConfig config;  // with auto values resolved
  KvGeometry geometry;
  KvLayout layout;
  int64_t num_pages = 0;

  size_t bytes() const { return static_cast<size_t>(num_pages) * layout.page_bytes(); }
  // Tokens that fit when no page is freed early.
  int64_t capacity_tokens() const { return num_pages / geometry.num_groups() * geometry.page_size(); }
};

// Throws UsageError with the formats that the device has if `dtype` is not one of them.
void check_kv_dtype(const Backend& backend, DType dtype);

// The safe share of free memory that kv_memory auto takes.
uint64_t auto_kv_bytes(uint64_t free_bytes);

// kv_memory auto: 70 % of what the backend calls free, but no more than one sequence of 4M tokens beside max_num_seqs
// of 32K could ever use. max_model_len auto: the longest sequence that fits alone, at most 4M. Limits that the model's
// scratch memory sets (rows, logit rows) are applied too. Throws Error when not even one page per group fits,
// UsageError when an explicit max_model_len does not.
KvPlan plan_kv(BamModel& model, EngineConfig config);

// One line for the log: pages, bytes, tokens.
std::string describe(const KvPlan& plan);

}  // namespace bam
