#pragma once

#include <functional>

#include <CLI/CLI.hpp>

namespace bam {

// How every sub-command ends: --help prints and gives 0; a bad flag or a UsageError gives one line on stderr and 2, any
// other exception one line and 1. argv[0] is the sub-command's name.
int run_command(CLI::App& app, int argc, char** argv, const std::function<int()>& body);

}  // namespace bam
