// The loop of ranks > 0 of a pipeline: rank 0 plans, this rank computes its layers and hands rows on.
#pragma once

#include <cstdint>
#include <stop_token>

#include "engine/config.h"
#include "models/bam.h"
#include "transport/transport.h"

namespace bam {

// Serves the layers of `model` (its ModelOptions::stage) on the calling thread, in one group after the other: when a rank
// is lost, the next group is formed, and rank 0 computes again what it needs. `config` must say the same on all ranks,
// but for kv_memory_bytes. Returns when rank 0 says that it is over or `stop` is requested. Throws
//   PeerLost    rank 0 is gone without a word: who starts it again starts this one, too
//   Error       rank 0 refused this rank (one line that names both and what differs), or no group was formed within
//               config.group_timeout_s
//   DeviceLost  nothing can be computed any more by this process
void run_stage_worker(BamModel& model, const EngineConfig& config, uint64_t tokenizer_fingerprint, GroupSource& source,
                      std::stop_token stop = {});

}  // namespace bam
