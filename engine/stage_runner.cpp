#include "engine/stage_runner.h"

#include <algorithm>

namespace bam {

StageRunner::StageRunner(BamModel& model, const KvPlan& plan)
    : model_(model),
      memory_(model.backend().allocate(plan.bytes())),
      kv_{static_cast<std::byte*>(memory_->data()), plan.num_pages, plan.layout},
      vocab_size_(static_cast<size_t>(model.config().vocab_size)),
      supports_drawing_(model.backend().supports_drawing(model.config().vocab_size)) {
  model_.prepare_kv(plan.layout);
}

void StageRunner::copy_pages(std::span<const PageCopy> copies) {
  for (const PageCopy& copy : copies) model_.backend().copy_page(kv_, copy.from, copy.to);
}

void StageRunner::run(const Input& input) {
  ForwardInput forward{input.tokens, input.sequences, {}};
  forward.residual_in = input.residual_in;
  forward.residual_on_device = input.residual_on_device;
  if (!model_.last_stage()) {
    forward.residual_out = input.residual_out;
    return model_.forward(forward, kv_, {});
  }
  const size_t floats = input.logit_rows.size() * vocab_size_, bytes = floats * sizeof(float);
  if (logits_.size() < bytes) logits_ = LazyMemory(std::max(bytes, 2 * logits_.size()));
  const bool draws = input.draws != nullptr && !input.draws->rows.empty();
  drawn_.assign(draws ? input.draws->rows.size() : 0, kDrawBadLogits);
  forward.logit_rows = input.logit_rows;
  hidden_.resize(input.wants_hidden ? input.logit_rows.size() * static_cast<size_t>(model_.config().hidden_size) : 0);
  if (input.wants_hidden) {
    forward.hidden = hidden_.data();
    head_rows_.assign(input.host_rows.begin(), input.host_rows.end());
    if (draws) {
      for (const DrawRow& row : input.draws->rows) head_rows_.push_back(row.row);
    }
    std::ranges::sort(head_rows_);
    head_rows_.erase(std::ranges::unique(head_rows_).begin(), head_rows_.end());
    forward.head_rows = head_rows_;
  }
  const std::span<float> logits(logits_.as<float>(), floats);
  if (!draws) return model_.forward(forward, kv_, logits);
  if (supports_drawing_) {
    const DrawInput draw{*input.draws, drawn_, input.host_rows};
    forward.draw = &draw;
    return model_.forward(forward, kv_, logits);
  }
  model_.forward(forward, kv_, logits);
  if (!drawer_) {
    drawer_ = std::make_unique<BatchSampler>(static_cast<int32_t>(vocab_size_), model_.config().eos_token_ids,
                                             model_.backend().threads());
  }
  drawer_->draw(*input.draws, logits.data(), drawn_);
}

}  // namespace bam
