#include <cstdio>
#include <cstring>
#include <string_view>

#include "app/commands.h"

namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(int argc, char** argv);
};

constexpr Command kCommands[] = {
    {"serve", "serve a checkpoint over an OpenAI-compatible HTTP API", bam::run_serve},
    {"generate", "generate text in the terminal, without a server", bam::run_generate},
    {"batch", "answer the requests of a JSONL file, without a server", bam::run_batch},
    {"inspect", "sizes, KV cost and the positional prior of every head of a checkpoint", bam::run_inspect},
    {"bench", "load test an OpenAI-compatible server", bam::run_bench},
    {"passkey", "passkey accuracy over lengths and depths against a server", bam::run_passkey},
    {"eval", "perplexity and task scores against a server", bam::run_eval},
    {"probe", "ask a server whether it is ready; for health checks", bam::run_probe},
    {"selftest", "compare every operation of a device with the CPU", bam::run_selftest},
};

void print_help(std::FILE* out) {
  std::fputs("bam: inference server for BAM language models\n\nUsage: bam COMMAND [OPTIONS]\n\nCommands:\n", out);
  for (const Command& command : kCommands) std::fprintf(out, "  %-10s %s\n", command.name, command.summary);
  std::fputs(
      "  help       this text; `bam help COMMAND` for one command\n"
      "  version    the version\n"
      "\nExamples:\n"
      "  bam serve --model demo --port 8000\n"
      "  bam generate --model demo -p \"Once upon a time\" -n 64\n"
      "  bam inspect --model demo --at 65536\n",
      out);
}

const Command* find_command(std::string_view name) {
  for (const Command& command : kCommands) {
    if (name == command.name) return &command;
  }
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    print_help(stderr);
    return 2;
  }
  std::string_view name = argv[1];
  if (name == "--version" || name == "version") {
    std::printf("bam %s\n", BAM_VERSION);
    return 0;
  }
  if (name == "help" || name == "--help" || name == "-h") {
    if (argc < 3) {
      print_help(stdout);
      return 0;
    }
    if (const Command* command = find_command(argv[2])) {
      char help[] = "--help";
      char* arguments[] = {argv[2], help, nullptr};
      return command->run(2, arguments);
    }
    name = argv[2];
  } else if (const Command* command = find_command(name)) {
    return command->run(argc - 1, argv + 1);
  }
  std::fprintf(stderr, "bam: there is no command '%.*s'; `bam help` lists them\n", static_cast<int>(name.size()),
               name.data());
  return 2;
}
