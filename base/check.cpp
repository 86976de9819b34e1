#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace bam {

void check_failed(const char* condition, const char* file, int line, std::string_view message) {
  std::fprintf(stderr, "bam: internal error: %s at %s:%d%s%.*s\n", condition, file, line, message.empty() ? "" : ": ",
               static_cast<int>(message.size()), message.data());
  std::abort();
}

}  // namespace bam
