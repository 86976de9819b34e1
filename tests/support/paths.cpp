#include "tests/support/paths.h"

namespace bam::testing {

std::filesystem::path source_dir() { return BAM_SOURCE_DIR; }

std::filesystem::path fixtures_dir() { return source_dir() / "tests" / "fixtures"; }

std::filesystem::path shared_data_dir() { return source_dir().parent_path() / "shared" / "data"; }

}  // namespace bam::testing
