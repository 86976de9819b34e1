#include "app/build_info.h"

#include <fmt/format.h>

namespace bam {

std::string build_line() {
#if defined(__clang__)
  const std::string compiler = fmt::format("Clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  const std::string compiler = fmt::format("GCC {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
#if defined(__x86_64__)
  constexpr const char* kMachine = "x86_64";
#elif defined(__aarch64__)
  constexpr const char* kMachine = "aarch64";
#else
  constexpr const char* kMachine = "unknown machine";
#endif
  return fmt::format("bam {} (commit {} of {}, {}, {})", BAM_VERSION, kBuildCommit, kBuildDate, compiler, kMachine);
}

}  // namespace bam
