#pragma once

#include <vector>

#include "app/cli_help.h"

namespace bam {

// One function per sub-command. argv[0] is the sub-command's own name ("bench"); the result is the exit code:
// 0 success, 1 the work failed, 2 the command line is wrong.
int run_serve(int argc, char** argv);
int run_worker(int argc, char** argv);
int run_chat(int argc, char** argv);
int run_generate(int argc, char** argv);
int run_batch(int argc, char** argv);
int run_inspect(int argc, char** argv);
int run_bench(int argc, char** argv);
int run_passkey(int argc, char** argv);
int run_eval(int argc, char** argv);
int run_probe(int argc, char** argv);
int run_selftest(int argc, char** argv);
int run_man(int argc, char** argv);
int run_completion(int argc, char** argv);

struct Command {
  const char* name;
  const char* summary;
  int (*run)(int argc, char** argv);
};
const std::vector<Command>& all_commands();
// The program as a whole: its sub-commands with their flags.
CommandHelp describe_program();

}  // namespace bam
