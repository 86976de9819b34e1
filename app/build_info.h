#pragma once

#include <string>

namespace bam {

// Of the source: short commit ("+" behind it: changed since) and its date; "unknown" outside of a git checkout.
extern const char* const kBuildCommit;
extern const char* const kBuildDate;

// "bam 0.1.0 (commit 1a2b3c4 of 2026-01-31, GCC 12.2.0, x86_64)"
std::string build_line();

}  // namespace bam
