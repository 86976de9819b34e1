// What a command line takes, read off its CLI::App: --help, the manual pages and the shells' completion say the same.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace bam {

struct FlagHelp {
  std::vector<std::string> names;  // "-n", "--max-tokens"; of a positional its one name
  std::string value;               // "N", "FILE", "f16|int8"; empty: a switch
  std::string help;
  std::string fallback;  // the default as text; empty: none
  bool positional = false;
  bool required = false;
  bool repeated = false;

  // The words that `value` lists ("auto", "cpu" of "auto|cpu|cuda:N"); empty: anything goes.
  std::vector<std::string> choices() const;
};

struct CommandHelp {
  std::string name;  // "bam serve"
  std::string summary;
  std::vector<FlagHelp> flags;  // positionals first, then in the order of definition
  std::vector<CommandHelp> commands;
  bool command_required = false;
  std::string footer;

  std::string usage() const;  // "bam chat [OPTIONS] [MODEL|URL]"
};

CommandHelp describe_command(const CLI::App& app, const std::string& name);
// For a terminal of 80 columns.
std::string help_text(const CommandHelp& command);
// `text` in lines of at most `width` columns; lines after the first begin with `indent` blanks.
std::string wrap_text(std::string_view text, size_t first_column, size_t indent, size_t width);

}  // namespace bam
