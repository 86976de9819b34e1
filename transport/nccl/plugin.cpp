// What libbam_nccl.so exports.
#include "transport/nccl/nccl_wire.h"
#include "transport/wire_plugin.h"

BAM_PLUGIN_EXPORT const char* bam_plugin_abi() { return BAM_TRANSPORT_ABI; }

BAM_PLUGIN_EXPORT bam::RowWireMaker* bam_make_row_wires(char* error, size_t error_size) {
  return bam::made_or_reason([] { return bam::make_nccl_wires().release(); }, error, error_size);
}
