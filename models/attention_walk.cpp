#include "models/attention_walk.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/check.h"
#include "kernels/backend.h"
#include "kernels/page_keys.h"
#include "models/model_config.h"

namespace bam {

std::string check_look(const AttentionLook& look, const ModelConfig& config, int64_t num_tokens) {
  if (look.layer < -1 || look.layer >= config.num_layers) {
    return fmt::format("there is no layer {}: the model has {}", look.layer, config.num_layers);
  }
  if (look.head < -1 || look.head >= config.num_heads) {
    return fmt::format("there is no head {}: the model has {} in every layer", look.head, config.num_heads);
  }
  if (look.position >= 0 && look.position + 1 != num_tokens) {
    return fmt::format("position {} is outside the {} tokens", look.position, num_tokens);
  }
  const int64_t to = look.to < 0 ? num_tokens : look.to;
  if (look.from < 0 || look.from >= to || to > num_tokens) {
    return fmt::format("keys [{}, {}) are no part of the {} that the row sees", look.from, to, num_tokens);
  }
  if (look.bins < 1 || look.bins > AttentionLook::kMaxBins || look.peaks < 0 || look.peaks > AttentionLook::kMaxPeaks ||
      look.spans.size() > static_cast<size_t>(AttentionLook::kMaxSpans)) {
    return fmt::format("a look has 1 to {} bins, at most {} peaks and {} spans", AttentionLook::kMaxBins,
                       AttentionLook::kMaxPeaks, AttentionLook::kMaxSpans);
  }
  const int64_t heads = (look.layer < 0 ? config.num_layers : 1) * (look.head < 0 ? config.num_heads : 1);
  if (heads * look.bins > AttentionLook::kMaxNumbers) {
    return fmt::format("{} heads of {} bins are more than {} numbers: ask for fewer bins or for one layer", heads,
                       look.bins, AttentionLook::kMaxNumbers);
  }
  for (const auto& [begin, end] : look.spans) {
    if (begin < 0 || begin >= end || end > num_tokens) {
      return fmt::format("the span [{}, {}) is no part of the {} tokens", begin, end, num_tokens);
    }
  }
  return {};
}

AttentionWalk::Mass::Mass() : m(-std::numeric_limits<double>::infinity()), s(0) {}

void AttentionWalk::Mass::add(double logit) {
  if (logit <= m) {
    s += std::exp(logit - m);
  } else {
    s = s * std::exp(m - logit) + 1;
    m = logit;
  }
}

void AttentionWalk::Mass::add(const Mass& other) {
  if (other.s == 0) return;
  const double top = std::max(m, other.m);
  s = (s == 0 ? 0 : s * std::exp(m - top)) + other.s * std::exp(other.m - top);
  m = top;
}

double AttentionWalk::Mass::share_of(const Mass& total) const {
  return s == 0 ? 0 : s / total.s * std::exp(m - total.m);
}

struct AttentionWalk::Head {
  int layer = 0, head = 0;
  RowScales scales{};
  std::vector<Mass> bins, prior_bins;
  Mass outside, prior_outside;
  std::vector<Mass> spans;
  std::vector<Candidate> peaks;  // a heap whose first is the smallest
  int64_t first_key = std::numeric_limits<int64_t>::max();
};

AttentionWalk::AttentionWalk(std::vector<AttentionSpec> specs, const AttentionLook& look, int64_t position,
                             std::vector<float> queries)
    : look_([&] {
        AttentionLook resolved = look;
        if (resolved.to < 0) resolved.to = position + 1;
        return resolved;
      }()),
      specs_(std::move(specs)),
      queries_(std::move(queries)),
      position_(position) {
  const int64_t keys = look_.to - look_.from;
  bin_keys_ = (keys + look_.bins - 1) / look_.bins;
  num_bins_ = static_cast<size_t>((keys + bin_keys_ - 1) / bin_keys_);
  for (int layer = 0; layer < static_cast<int>(specs_.size()); ++layer) {
    if (look_.layer >= 0 && layer != look_.layer) continue;
    const AttentionSpec& spec = specs_[static_cast<size_t>(layer)];
    const int per_group = spec.num_heads / spec.num_kv_heads;
    for (int kv_head = 0; kv_head < spec.num_kv_heads; ++kv_head) {
      if (look_.head >= 0 && look_.head / per_group != kv_head) continue;
      groups_.push_back({layer, kv_head});
      first_head_.push_back(heads_.size());
      for (int h = kv_head * per_group; h < (kv_head + 1) * per_group; ++h) {
        if (look_.head >= 0 && h != look_.head) continue;
        Head& head = heads_.emplace_back();
        head.layer = layer;
        head.head = h;
        head.scales = row_scales(spec.ssmax, spec.bias_of(h).scaled, spec.seq_scale_of(h),
                                 visible_keys(position_, spec.window), spec.head_dim);
        head.bins.resize(num_bins_);
        head.prior_bins.resize(num_bins_);
        head.spans.resize(look_.spans.size());
      }
    }
  }
  first_head_.push_back(heads_.size());
  BAM_CHECK(!groups_.empty());
}

AttentionWalk::~AttentionWalk() = default;

void AttentionWalk::add_key(Head& head, int64_t key, double logit, double prior) const {
  head.first_key = std::min(head.first_key, key);
  for (size_t i = 0; i < look_.spans.size(); ++i) {
    if (key >= look_.spans[i].first && key < look_.spans[i].second) head.spans[i].add(logit);
  }
  if (key < look_.from || key >= look_.to) {
    head.outside.add(logit);
    head.prior_outside.add(prior);
    return;
  }
  const auto bin = static_cast<size_t>((key - look_.from) / bin_keys_);
  head.bins[bin].add(logit);
  head.prior_bins[bin].add(prior);
  const auto later = [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; };
  const auto wanted = static_cast<size_t>(look_.peaks);
  if (wanted == 0 || (head.peaks.size() == wanted && logit <= head.peaks.front().logit)) return;
  if (head.peaks.size() == wanted) {
    std::ranges::pop_heap(head.peaks, later);
    head.peaks.pop_back();
  }
  head.peaks.push_back({logit, prior, key});
  std::ranges::push_heap(head.peaks, later);
}

void AttentionWalk::add(size_t group, int64_t first_key, const KvLayout& layout, const std::byte* page) {
  const AttentionSpec& spec = specs_[static_cast<size_t>(groups_[group].layer)];
  const auto dim = static_cast<size_t>(spec.head_dim);
  std::vector<float> keys(dim * kPanelKeys);
  for (int panel = 0; panel < layout.page_size / kPanelKeys; ++panel) {
    const int64_t first = first_key + panel * kPanelKeys;
    if (first > position_) return;
    if (spec.window >= 0 && position_ - (first + kPanelKeys - 1) > spec.window) continue;
    constexpr int kPanelsPerTile = kTileKeys / kPanelKeys;
    const std::byte* tile = page + static_cast<size_t>(panel / kPanelsPerTile) * layout.tile_bytes;
    decode_key_panel(layout, tile, panel % kPanelsPerTile, keys.data());
    for (size_t i = first_head_[group]; i < first_head_[group + 1]; ++i) {
      Head& head = heads_[i];
      const float* query = queries_.data() + static_cast<size_t>(head.layer) * static_cast<size_t>(spec.q_width()) +
                           static_cast<size_t>(head.head) * dim;
      double dots[kPanelKeys] = {};
      for (size_t d = 0; d < dim; ++d) {
        const double q = query[d];
        for (size_t k = 0; k < kPanelKeys; ++k) dots[k] += q * keys[d * kPanelKeys + k];
      }
      for (int k = 0; k < kPanelKeys && first + k <= position_; ++k) {
        const int64_t distance = position_ - first - k;
        if (spec.window >= 0 && distance > spec.window) continue;
        const double prior = spec.bias_of(head.head).value(distance) * head.scales.bias;
        add_key(head, first + k, dots[k] * head.scales.content + prior, prior);
      }
    }
  }
}

std::optional<AttentionReport> AttentionWalk::report() const {
  AttentionReport report{position_, look_.from, look_.to, bin_keys_, {}};
  for (const Head& head : heads_) {
    Mass total = head.outside, prior_total = head.prior_outside;
    for (const Mass& bin : head.bins) total.add(bin);
    for (const Mass& bin : head.prior_bins) prior_total.add(bin);
    if (!(total.s > 0) || !std::isfinite(total.s) || !std::isfinite(total.m)) return std::nullopt;
    const auto weight = [](double logit, const Mass& all) {
      return static_cast<float>(std::exp(logit - all.m) / all.s);
    };
    HeadAttention& out = report.heads.emplace_back();
    out.layer = head.layer;
    out.head = head.head;
    out.first_key = head.first_key;
    out.outside = static_cast<float>(head.outside.share_of(total));
    for (size_t b = 0; b < num_bins_; ++b) {
      out.sum.push_back(static_cast<float>(head.bins[b].share_of(total)));
      out.prior.push_back(static_cast<float>(head.prior_bins[b].share_of(prior_total)));
      out.max.push_back(head.bins[b].s == 0 ? 0 : weight(head.bins[b].m, total));
    }
    for (const Mass& span : head.spans) out.spans.push_back(static_cast<float>(span.share_of(total)));
    std::vector<Candidate> peaks = head.peaks;
    std::ranges::sort(peaks, [](const Candidate& a, const Candidate& b) {
      return a.logit != b.logit ? a.logit > b.logit : a.key < b.key;
    });
    for (const Candidate& peak : peaks) {
      out.peaks.push_back({peak.key, weight(peak.logit, total), weight(peak.prior, prior_total)});
    }
  }
  return report;
}

}  // namespace bam
