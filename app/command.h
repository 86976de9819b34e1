#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "app/cli_help.h"

namespace bam {

// How every sub-command ends: --help prints and gives 0; a bad flag or a UsageError gives one line on stderr and 2, any
// other exception one line and 1. argv[0] is the sub-command's name.
int run_command(CLI::App& app, int argc, char** argv, const std::function<int()>& body);

// What the command lines of these sub-commands take: each is run as far as run_command, which describes it instead.
std::vector<CommandHelp> describe_commands(const std::vector<std::pair<std::string, int (*)(int, char**)>>& commands);

}  // namespace bam
