#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "app/serve_config.h"

namespace bam {

// Settings of the table as flags of a sub-command.
class OptionFlags {
 public:
  OptionFlags(CLI::App& app, const std::function<bool(const ServeOption&)>& wanted);

  // The model may also stand without --model: `bam serve demo`.
  void add_model_argument(CLI::App& app);
  // Parses the command line, resolves flags, environment and --config, and runs the body as run_command does.
  int run(CLI::App& app, int argc, char** argv, const std::function<int(const ServeConfig&)>& body);

 private:
  std::map<std::string, std::vector<std::string>> given_;
  std::string config_file_;
  std::string model_;
};

// For the end of --help of commands that have these flags.
extern const char* const kSettingsHelp;

}  // namespace bam
