// Messages between the ranks of a pipeline.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "engine/stage_tables.h"
#include "engine/step_wire.h"

using namespace bam;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const wire::PlanLimits limits{.max_rows = 64,
                                .max_logit_rows = 16,
                                .num_groups = 3,
                                .num_pages = 100,
                                .page_size = 64,
                                .vocab_size = 512,
                                .max_positions = 4096};
  static StageTables tables(KvGeometry(64, {-1, 100, 300}, 64));
  static std::vector<SequenceRows> rows;
  if (tables.size() > 1000) tables.clear();
  const std::span<const std::byte> message(reinterpret_cast<const std::byte*>(data), size);
  try {
    wire::Reader reader(message);
    switch (reader.head().kind) {
      case wire::Kind::kRows:
      case wire::Kind::kDone: {
        wire::StepReport report;
        read(reader, report);
        (void)reader.floats(reader.payload().size() / sizeof(float));
        break;
      }
      case wire::Kind::kReadPages: (void)wire::read_page_ids(reader, limits); break;
      default: {
        wire::StepPlan plan;
        decode(reader, limits, plan);
        std::vector<std::byte> again;
        encode(reader.head(), plan, again);
        tables.apply(plan, rows);
        // What a forward call would read and write is there.
        for (const SequenceRows& row : rows) {
          const int64_t last = (row.start_pos + row.num_rows - 1) / 64;
          for (int64_t g = 0; g < 3; ++g) {
            const int32_t page = row.block_table[g * row.table_stride + last];
            if (page < 0 || page >= 100) std::abort();
          }
        }
      }
    }
  } catch (const wire::WireError&) {
  }
  return 0;
}
