#include "engine/model_runner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace bam {

ModelRunner::ModelRunner(BamModel& model, const KvPlan& plan)
    : model_(model),
      memory_(model.backend().allocate(plan.bytes())),
      kv_{static_cast<std::byte*>(memory_->data()), plan.num_pages, plan.layout},
      vocab_size_(static_cast<size_t>(model.config().vocab_size)),
      supports_drawing_(model.backend().supports_drawing(model.config().vocab_size)) {
  model_.prepare_kv(plan.layout);
  tokens_.reserve(static_cast<size_t>(plan.config.max_batched_tokens));
  sequences_.reserve(static_cast<size_t>(plan.config.max_num_seqs));
  logit_ranges_.reserve(static_cast<size_t>(plan.config.max_num_seqs));
  logit_row_ids_.reserve(static_cast<size_t>(model.options().max_logit_rows));
}

void ModelRunner::copy_pages(std::vector<PageCopy>& copies) {
  const std::vector<PageCopy> issued = std::exchange(copies, {});  // not again, whatever happens
  for (const PageCopy& copy : issued) model_.backend().copy_page(kv_, copy.from, copy.to);
}

void ModelRunner::append(const ScheduledRows& scheduled, const AppendDraw& append_draw) {
  const Sequence& s = *scheduled.sequence;
  const int64_t begin = s.num_computed, end = begin + scheduled.num_rows;
  const int64_t row_begin = static_cast<int64_t>(tokens_.size());
  wants_hidden_ = wants_hidden_ || s.wants_hidden;
  sequences_.push_back({s.blocks.entries.data(), s.blocks.stride, row_begin, scheduled.num_rows, begin});
  tokens_.insert(tokens_.end(), s.tokens.begin() + begin, s.tokens.begin() + end);

  // The newest row predicts the next token; rows of the prompt are wanted only for prompt logprobs.
  const bool samples = end == s.num_known() && s.num_known() < s.max_len;
  LogitRows rows{samples ? end - 1 : end, samples ? 1 : 0, logit_row_ids_.size(), -1};
  if (s.wants_prompt_logits()) {
    const int64_t first = std::max(begin, s.logits_from);
    const int64_t last = std::max(std::min(end, s.num_prompt - 1), samples ? end : 0);
    if (first < last) {
      rows.first_pos = first;
      rows.count = last - first;
    }
  }
  if (samples && rows.count == 1 && append_draw && append_draw(s, draws_)) {
    rows.draw = static_cast<int32_t>(draws_.rows.size()) - 1;
    draws_.rows.back().row = static_cast<int32_t>(rows.offset);
  } else {
    for (int64_t i = 0; i < rows.count; ++i)
      host_rows_.push_back(static_cast<int32_t>(rows.offset) + static_cast<int32_t>(i));
  }
  for (int64_t i = 0; i < rows.count; ++i) {
    logit_row_ids_.push_back(static_cast<int32_t>(row_begin + rows.first_pos + i - begin));
  }
  logit_ranges_.push_back(rows);
}

void ModelRunner::run(const SchedulePlan& plan, const AppendDraw& append_draw) {
  tokens_.clear();
  sequences_.clear();
  logit_row_ids_.clear();
  logit_ranges_.clear();
  draws_.clear();
  host_rows_.clear();
  wants_hidden_ = false;
  for (const ScheduledRows& scheduled : plan.rows) append(scheduled, append_draw);
  drawn_.assign(draws_.rows.size(), kDrawBadLogits);
  const size_t floats = logit_row_ids_.size() * vocab_size_;
  const size_t bytes = floats * sizeof(float);
  if (logits_.size() < bytes) logits_ = LazyMemory(std::max(bytes, 2 * logits_.size()));
  if (wants_hidden_) hidden_.resize(logit_row_ids_.size() * static_cast<size_t>(model_.config().hidden_size));
  const DrawInput draw{draws_, drawn_, host_rows_};
  model_.forward({tokens_, sequences_, logit_row_ids_, draws_.rows.empty() ? nullptr : &draw, nullptr, nullptr,
                  wants_hidden_ ? hidden_.data() : nullptr},
                 kv_, std::span(logits_.as<float>(), floats));
}

std::span<const float> ModelRunner::logits(size_t entry, int64_t position) const {
  const LogitRows& rows = logit_ranges_[entry];
  BAM_CHECK(position >= rows.first_pos && position < rows.first_pos + rows.count && rows.draw < 0);
  const size_t row = rows.offset + static_cast<size_t>(position - rows.first_pos);
  return {logits_.as<float>() + row * vocab_size_, vocab_size_};
}

std::span<const float> ModelRunner::hidden(size_t entry, int64_t position) const {
  const LogitRows& rows = logit_ranges_[entry];
  BAM_CHECK(wants_hidden_ && position >= rows.first_pos && position < rows.first_pos + rows.count);
  const auto size = static_cast<size_t>(model_.config().hidden_size);
  return {hidden_.data() + (rows.offset + static_cast<size_t>(position - rows.first_pos)) * size, size};
}

std::optional<int32_t> ModelRunner::drawn(size_t entry) const {
  const int32_t draw = logit_ranges_[entry].draw;
  if (draw < 0) return std::nullopt;
  return drawn_[static_cast<size_t>(draw)];
}

}  // namespace bam
