#include "engine/capacity.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"

namespace bam {

namespace {

constexpr double kSafeShare = 0.7;
constexpr int64_t kAutoTokensPerSequence = 32'768;

double gib(size_t bytes) { return static_cast<double>(bytes) / (1u << 30); }

}  // namespace

void check_kv_dtype(const Backend& backend, DType dtype) {
  if (backend.supports_kv(dtype)) return;
  std::string there;
  for (const DType other : kKvDtypes) {
    if (backend.supports_kv(other)) there += fmt::format("{}{}", there.empty() ? "" : ", ", dtype_name(other));
  }
  throw UsageError("--kv-dtype: this device has no KV cache of {}, it has {}; the device is {}", dtype_name(dtype),
                   there, backend.description());
}

uint64_t auto_kv_bytes(uint64_t free_bytes) {
  return static_cast<uint64_t>(kSafeShare * static_cast<double>(free_bytes));
}

KvPlan plan_kv(BamModel& model, EngineConfig config) {
  config.max_num_seqs = std::min({config.max_num_seqs, model.options().max_logit_rows, model.options().max_rows});
  config.max_batched_tokens =
      std::max(std::min(config.max_batched_tokens, model.options().max_rows), config.max_num_seqs);
  const KvGeometry geometry(config.page_size, model.group_reach(), config.max_batched_tokens);
  check_kv_dtype(model.backend(), config.kv_dtype);
  const KvLayout layout = make_kv_layout(config.kv_dtype, static_cast<int>(model.config().head_dim), config.page_size);

  const int64_t groups = geometry.num_groups();
  uint64_t bytes = config.kv_memory_bytes;
  int64_t useful = std::numeric_limits<int32_t>::max();  // page ids are 32 bits
  if (bytes == 0) {
    bytes = auto_kv_bytes(model.backend().free_memory_bytes());
    const int64_t most =
        geometry.pages_for(kMaxPositions) + config.max_num_seqs * geometry.pages_for(kAutoTokensPerSequence);
    useful = std::min(useful, std::max(most, groups));
  }
  KvPlan plan{config, geometry, layout, 0};
  plan.num_pages = static_cast<int64_t>(std::min<uint64_t>(bytes / layout.page_bytes(), static_cast<uint64_t>(useful)));
  if (plan.num_pages < groups) {
    throw Error("the KV memory of {} bytes is too small: {} groups need at least one page of {} bytes each", bytes,
                groups, layout.page_bytes());
  }
  plan.config.kv_memory_bytes = plan.bytes();

  const int64_t fits = geometry.max_tokens(plan.num_pages);
  if (config.max_model_len > fits) {
    throw UsageError("a context of {} tokens needs {:.2f} GiB of KV memory, but {:.2f} GiB hold at most {} tokens",
                     config.max_model_len,
                     gib(static_cast<size_t>(geometry.pages_for(config.max_model_len)) * layout.page_bytes()),
                     gib(plan.bytes()), fits);
  }
  if (config.max_model_len == 0) plan.config.max_model_len = fits;
  return plan;
}

std::string describe(const KvPlan& plan) {
  return fmt::format("KV cache: {} pages of {} keys, {}, {:.2f} GiB, {} tokens, longest context {} tokens",
                     plan.num_pages, plan.geometry.page_size(), dtype_name(plan.layout.dtype), gib(plan.bytes()),
                     plan.capacity_tokens(), plan.config.max_model_len);
}

}  // namespace bam
