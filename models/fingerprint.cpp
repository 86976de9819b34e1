#include "models/fingerprint.h"

#include <bit>

#include "base/hash.h"

namespace bam {
namespace {

constexpr size_t kSmallTensorBytes = 16 * 1024;
constexpr size_t kNumSamples = 16;
constexpr size_t kSampleBytes = 64;

uint64_t hash_config(const ModelConfig& config, uint64_t hash) {
  const auto add = [&hash](uint64_t value) { hash = hash_number(value, hash); };
  for (const int64_t size : {config.hidden_size, config.intermediate_size, config.num_layers, config.num_heads,
                             config.num_kv_heads, config.head_dim, config.vocab_size, config.sliding_window}) {
    add(static_cast<uint64_t>(size));
  }
  for (const double value :
       {static_cast<double>(config.rms_norm_eps), config.prior_eps, config.rope_theta, config.sinusoidal_theta}) {
    add(std::bit_cast<uint64_t>(value));
  }
  add(static_cast<uint64_t>(config.position_encoding));
  add(static_cast<uint64_t>(config.prior_form));
  add(static_cast<uint64_t>(config.prior_scope));
  add(static_cast<uint64_t>(config.rope_style));
  add(uint64_t{config.tie_word_embeddings} | uint64_t{config.ssmax} << 1 | uint64_t{config.ssmax_prior} << 2);
  if (config.position_encoding == PositionEncoding::kT5) {
    add(static_cast<uint64_t>(config.relative_buckets));
    add(static_cast<uint64_t>(config.relative_max_distance));
  }
  return hash;
}

uint64_t hash_tensor(std::span<const std::byte> data, uint64_t hash) {
  if (data.size() <= kSmallTensorBytes) return hash_bytes(data, hash);
  for (size_t i = 0; i < kNumSamples; ++i) {
    const size_t begin = (data.size() - kSampleBytes) / (kNumSamples - 1) * i;
    hash = hash_bytes(data.subspan(begin, kSampleBytes), hash);
  }
  return hash;
}

}  // namespace

uint64_t fingerprint_checkpoint(const ModelConfig& config, const SafetensorsCheckpoint& checkpoint) {
  uint64_t hash = hash_config(config, hash_bytes("bam checkpoint v2"));
  for (const auto& file : checkpoint.files()) hash = hash_bytes(file->header_bytes(), hash);
  for (const auto& [name, entry] : checkpoint.tensors()) {
    hash = hash_tensor(entry.file->data(*entry.tensor), hash_bytes(name, hash));
  }
  return hash;
}

}  // namespace bam
