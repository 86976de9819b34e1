#include "engine/step_batch.h"

#include <algorithm>

#include "base/check.h"

namespace bam {

void StepBatch::clear() {
  tokens.clear();
  entries.clear();
  logit_rows.clear();
  host_rows.clear();
  draws.clear();
  wants_hidden = false;
}

void StepBatch::reserve(int64_t rows, int64_t sequences, int64_t logits) {
  tokens.reserve(static_cast<size_t>(rows));
  entries.reserve(static_cast<size_t>(sequences));
  logit_rows.reserve(static_cast<size_t>(logits));
  host_rows.reserve(static_cast<size_t>(logits));
}

void StepBatch::append(const ScheduledRows& scheduled, const AppendDraw& append_draw) {
  const Sequence& s = *scheduled.sequence;
  const int64_t drafts = scheduled.num_drafts;
  const int64_t begin = scheduled.start, end = begin + scheduled.num_rows - drafts;
  const int64_t row_begin = static_cast<int64_t>(tokens.size());
  wants_hidden = wants_hidden || s.wants_hidden;
  tokens.insert(tokens.end(), s.tokens.begin() + begin, s.tokens.begin() + end);
  if (drafts > 0) {
    const auto guesses = s.drafter->proposal().first(static_cast<size_t>(drafts));
    tokens.insert(tokens.end(), guesses.begin(), guesses.end());
  }

  // Rows of the prompt are wanted only for prompt logprobs.
  Entry entry{begin, scheduled.num_rows, drafts};
  entry.samples = end == s.num_known() && s.num_known() < s.max_len;
  entry.first_logit = entry.samples ? end - 1 : end;
  entry.num_logits = entry.samples ? 1 + drafts : 0;
  entry.logit_offset = logit_rows.size();
  if (s.wants_prompt_logits()) {
    const int64_t first = std::max(begin, s.logits_from);
    const int64_t last = std::max(std::min(end, s.num_prompt - 1), entry.samples ? end : 0);
    if (first < last) {
      entry.first_logit = first;
      entry.num_logits = last - first;
    }
  }
  const size_t first_draw = draws.rows.size();
  if (entry.samples && entry.num_logits == 1 + drafts && append_draw && append_draw(s, drafts, draws)) {
    entry.draw = static_cast<int32_t>(first_draw);
    for (size_t i = first_draw; i < draws.rows.size(); ++i) {
      draws.rows[i].row = static_cast<int32_t>(entry.logit_offset + i - first_draw);
    }
  } else {
    // Rows that are pooled go no further than the final norm, but for the one that predicts.
    const int64_t first = s.wants_hidden ? entry.num_logits - static_cast<int64_t>(entry.samples) : 0;
    for (int64_t i = first; i < entry.num_logits; ++i) {
      host_rows.push_back(static_cast<int32_t>(entry.logit_offset) + static_cast<int32_t>(i));
    }
  }
  for (int64_t i = 0; i < entry.num_logits; ++i) {
    logit_rows.push_back(static_cast<int32_t>(row_begin + entry.first_logit + i - begin));
  }
  entries.push_back(entry);
}

size_t StepBatch::logit_row(size_t index, int64_t position) const {
  const Entry& entry = entries[index];
  BAM_CHECK(position >= entry.first_logit && position < entry.first_logit + entry.num_logits && entry.draw < 0);
  return entry.logit_offset + static_cast<size_t>(position - entry.first_logit);
}

}  // namespace bam
