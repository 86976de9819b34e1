#include "engine/step_batch.h"

#include <gtest/gtest.h>

#include <vector>

namespace bam {
namespace {

struct PromptRows {
  explicit PromptRows(int64_t length) {
    sequence.tokens.assign(static_cast<size_t>(length), 7);
    sequence.num_prompt = length;
    sequence.max_len = length + 1;
    sequence.logits_from = 0;
  }
  Sequence sequence;
};

TEST(StepBatch, RowsThatArePooledWantNoLogitsButTheOneThatPredicts) {
  PromptRows pooled(10);
  pooled.sequence.wants_hidden = true;
  PromptRows scored(4);
  StepBatch batch;
  batch.append({&scored.sequence, 0, 4}, {});
  batch.append({&pooled.sequence, 0, 6}, {});
  EXPECT_TRUE(batch.wants_hidden);
  EXPECT_EQ(batch.logit_rows, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(batch.host_rows, (std::vector<int32_t>{0, 1, 2, 3}));
  batch.clear();
  batch.append({&pooled.sequence, 6, 4}, {});
  EXPECT_EQ(batch.logit_rows, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(batch.host_rows, (std::vector<int32_t>{3}));
  EXPECT_EQ(batch.logit_row(0, 9), 3u);
}

}  // namespace
}  // namespace bam
