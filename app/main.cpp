#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

#include "app/build_info.h"
#include "app/commands.h"
#include "app/suggest.h"
#include "base/bus_errors.h"

namespace {

void print_help(std::FILE* out) {
  std::fputs("bam: inference server for BAM language models\n\nUsage: bam COMMAND [OPTIONS]\n\nCommands:\n", out);
  for (const bam::Command& command : bam::all_commands()) {
    std::fprintf(out, "  %-10s %s\n", command.name, command.summary);
  }
  std::fputs(
      "  help       this text; `bam help COMMAND` for one command\n"
      "  version    version, commit, compiler and date\n"
      "\nExamples:\n"
      "  bam chat\n"
      "  bam serve demo --port 8000\n"
      "  bam generate \"Once upon a time\" -n 64\n"
      "  bam inspect demo --at 65536\n",
      out);
}

const bam::Command* find_command(const std::string& name) {
  for (const bam::Command& command : bam::all_commands()) {
    if (name == command.name) return &command;
  }
  return nullptr;
}

// What other programs call it, what was mistyped, or a model or an address without a command.
std::string meant(const std::string& name) {
  static const std::map<std::string, std::string> elsewhere = {
      {"run", "chat"}, {"start", "serve"}, {"server", "serve"}, {"complete", "generate"}, {"show", "inspect"}};
  if (const auto found = elsewhere.find(name); found != elsewhere.end()) return found->second;
  std::error_code unknown;
  if (name == "demo" || name.find("://") != name.npos || std::filesystem::exists(name + "/config.json", unknown)) {
    return "chat " + name;
  }
  std::vector<std::string> names = {"help", "version", "--help", "--version"};
  for (const bam::Command& command : bam::all_commands()) names.emplace_back(command.name);
  return bam::nearest_word(name, names);
}

int run(int argc, char** argv) {
  if (argc < 2) {
    print_help(stderr);
    return 2;
  }
  std::string name = argv[1];
  if (name == "--version" || name == "-V" || name == "version") {
    std::printf("%s\n", bam::build_line().c_str());
    return 0;
  }
  if (name == "help" || name == "--help" || name == "-h") {
    const std::string about = argc < 3 ? "help" : argv[2];
    if (about == "help" || about == "version" || about == "--help" || about == "-h") {
      print_help(stdout);
      return 0;
    }
    if (const bam::Command* command = find_command(argv[2])) {
      char help[] = "--help";
      char* arguments[] = {argv[2], help, nullptr};
      return command->run(2, arguments);
    }
    name = argv[2];
  } else if (const bam::Command* command = find_command(name)) {
    return command->run(argc - 1, argv + 1);
  }
  const std::string hint = meant(name);
  std::fprintf(stderr, "bam: there is no command '%s'; %s`bam help` lists them\n", name.c_str(),
               hint.empty() ? "" : ("did you mean `bam " + hint + "`? ").c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  bam::report_bus_errors();
  const int code = run(argc, argv);
  // What could not be written, on a full disk for example, is not done.
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fputs("bam: standard output could not be written\n", stderr);
  return code == 0 ? 1 : code;
}
