#pragma once

#include <string_view>

namespace bam {

// Prints the failed condition and aborts. For programmer errors only: no check is reachable by user input.
[[noreturn]] void check_failed(const char* condition, const char* file, int line, std::string_view message = {});

}  // namespace bam

#define BAM_CHECK(cond) ((cond) ? void(0) : ::bam::check_failed(#cond, __FILE__, __LINE__))
#define BAM_CHECK_MSG(cond, msg) ((cond) ? void(0) : ::bam::check_failed(#cond, __FILE__, __LINE__, (msg)))
