// Manual pages and completion scripts, made from what --help says.
#pragma once

#include <string>

#include "app/cli_help.h"

namespace bam {

// A page of section 1 in roff: of the whole program, or of one command of it. `date`: of the source.
std::string man_page(const CommandHelp& command, const CommandHelp& program, const std::string& version,
                     const std::string& date);
std::string bash_completion(const CommandHelp& program);
std::string zsh_completion(const CommandHelp& program);
std::string fish_completion(const CommandHelp& program);

}  // namespace bam
