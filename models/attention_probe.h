#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace bam {

class BamModel;

// The queries of one row, whose keys and values, and those of all rows before it, are in pages already: the row is computed
// again, layer by layer, and each layer's query kept. It writes its own key and value once more, to the same bits, and
// adds nothing to the serving statistics.
class AttentionProbe {
 public:
  // Between the model's forward calls only. `row` is one row. Returns [layers of this stage][heads * head_dim], rotated
  // where the layer does so. Residuals as in ForwardInput.
  static std::vector<float> queries(BamModel& model, const KvCacheView& kv, const SequenceRows& row, int32_t token,
                                    const float* residual_in = nullptr, float* residual_out = nullptr,
                                    bool residual_on_device = false);
  // [layers] of the whole model.
  static std::vector<AttentionSpec> specs(const BamModel& model);
};

}  // namespace bam
