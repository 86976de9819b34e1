// What one step computes, wherever its pages are: rows, whose logits are wanted, what is drawn where the logits are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/scheduler.h"
#include "kernels/draw.h"

namespace bam {

// Appends the draws of a sequence's next token and of so many after it, if those before are what its drafter says; but for
// their rows of logits. False, with nothing appended: the host will sample.
using AppendDraw = std::function<bool(const Sequence&, int64_t drafts, DrawBatch&)>;

struct StepBatch {
  // The rows of one sequence, the last of them guesses, and which of them have logits: positions [first_logit,
  // first_logit + num_logits).
  struct Entry {
    int64_t start = 0, num_rows = 0, num_drafts = 0;
    int64_t first_logit = 0, num_logits = 0;
    size_t logit_offset = 0;  // of the first one in logit_rows
    int32_t draw = -1;        // its tokens are drawn where the logits are, from this draw on, and they stay there
    bool samples = false;     // the newest known row predicts the next token, a guess the one behind it
  };

  std::vector<int32_t> tokens;      // [rows]
  std::vector<Entry> entries;       // cover all rows in order
  std::vector<int32_t> logit_rows;  // ascending rows whose logits are wanted
  std::vector<int32_t> host_rows;   // ascending, of logit_rows those that the host wants
  DrawBatch draws;                  // DrawRow::row counts logit_rows
  bool wants_hidden = false;        // somebody pools: all logit_rows behind the final norm come along

  void clear();
  void reserve(int64_t rows, int64_t sequences, int64_t logits);
  // append_draw may be empty.
  void append(const ScheduledRows& scheduled, const AppendDraw& append_draw);
  // Where the logits of an entry's position are among logit_rows.
  size_t logit_row(size_t entry, int64_t position) const;
};

}  // namespace bam
