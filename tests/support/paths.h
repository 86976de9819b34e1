// Where the tests find files of the repository. The only objects that depend on the checkout's own path are those of
// paths.cpp, so that a compiler cache serves every other one to the next checkout.
#pragma once

#include <filesystem>

namespace bam::testing {

std::filesystem::path source_dir();
// Files that tests share, small and checked in.
std::filesystem::path fixtures_dir();
// Data that may lie beside the checkout; tests that want it say so when it is missing.
std::filesystem::path shared_data_dir();

}  // namespace bam::testing
