#include "app/commands.h"

#include "app/command.h"

namespace bam {

const std::vector<Command>& all_commands() {
  static const std::vector<Command> commands = {
      {"serve", "serve a checkpoint over an OpenAI-compatible HTTP API", run_serve},
      {"worker", "compute some of the layers of a server on several machines", run_worker},
      {"chat", "talk to a model here or behind a URL", run_chat},
      {"generate", "generate text in the terminal, without a server", run_generate},
      {"batch", "answer the requests of a JSONL file, without a server", run_batch},
      {"inspect", "sizes, KV cost and the positional prior of every head", run_inspect},
      {"bench", "load test an OpenAI-compatible server", run_bench},
      {"passkey", "passkey accuracy over lengths and depths", run_passkey},
      {"eval", "perplexity and task scores against a server", run_eval},
      {"probe", "ask a server whether it is ready; for health checks", run_probe},
      {"selftest", "compare every operation of a device with the CPU", run_selftest},
      {"completion", "a completion script for bash, zsh or fish", run_completion},
      {"man", "the manual pages", run_man},
  };
  return commands;
}

CommandHelp describe_program() {
  CommandHelp program;
  program.name = "bam";
  program.summary = "inference server for BAM language models";
  program.command_required = true;
  std::vector<std::pair<std::string, int (*)(int, char**)>> runs;
  for (const Command& command : all_commands()) runs.emplace_back(command.name, command.run);
  program.commands = describe_commands(runs);
  return program;
}

}  // namespace bam
