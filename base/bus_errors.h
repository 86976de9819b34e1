// A mapped file that cannot be read any more raises SIGBUS, wherever it is touched. Nothing can be repaired there, but the
// user hears which file it was.
#pragma once

#include <cstddef>
#include <string>

namespace bam {

// Once, early in main(): from now on it ends the process with one line that names the file, and exit code 1.
void report_bus_errors();

// The mappings that there are. Any thread.
void remember_mapping(const void* address, size_t size, const std::string& path);
void forget_mapping(const void* address);

}  // namespace bam
