// `bam man` and `bam completion`: what an installation puts beside the program.
#include <cstdio>
#include <filesystem>

#include "app/build_info.h"
#include "app/cli_pages.h"
#include "app/command.h"
#include "app/commands.h"
#include "app/suggest.h"
#include "app/units.h"
#include "base/error.h"

namespace bam {
namespace {

std::string file_name(const CommandHelp& command) {
  std::string name = command.name;
  for (char& c : name) c = c == ' ' ? '-' : c;
  return name + ".1";
}

std::string page_of(const CommandHelp& command, const CommandHelp& program) {
  return man_page(command, program, BAM_VERSION, kBuildDate);
}

int write_pages(const std::string& folder) {
  const CommandHelp program = describe_program();
  write_text_file((std::filesystem::path(folder) / "bam.1").string(), page_of(program, program));
  for (const CommandHelp& command : program.commands) {
    write_text_file((std::filesystem::path(folder) / file_name(command)).string(), page_of(command, program));
  }
  return 0;
}

}  // namespace

int run_man(int argc, char** argv) {
  CLI::App app("Prints a manual page, or writes all of them into a folder.", "bam man");
  std::string wanted, folder;
  CLI::Option* command = app.add_option("COMMAND", wanted, "the command; default: the program itself")->type_name("");
  app.add_option("-o,--out", folder, "write bam.1, bam-serve.1 … into this folder")
      ->type_name("DIR")
      ->excludes(command);
  app.footer("Example:\n  bam man serve | man -l -");
  return run_command(app, argc, argv, [&] {
    if (!folder.empty()) return write_pages(folder);
    const CommandHelp program = describe_program();
    std::vector<std::string> names;
    for (const CommandHelp& each : program.commands) {
      names.push_back(each.name.substr(4));
      if (wanted != names.back()) continue;
      std::fputs(page_of(each, program).c_str(), stdout);
      return 0;
    }
    if (!wanted.empty()) throw UsageError("there is no command '{}'{}", wanted, did_you_mean(wanted, names));
    std::fputs(page_of(program, program).c_str(), stdout);
    return 0;
  });
}

int run_completion(int argc, char** argv) {
  CLI::App app("Prints a completion script for a shell.", "bam completion");
  std::string shell;
  app.add_option("SHELL", shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  app.footer(
      "Examples:\n"
      "  source <(bam completion bash)\n"
      "  bam completion zsh > \"${fpath[1]}/_bam\"\n"
      "  bam completion fish > ~/.config/fish/completions/bam.fish");
  return run_command(app, argc, argv, [&] {
    const CommandHelp program = describe_program();
    const std::string script = shell == "bash"  ? bash_completion(program)
                               : shell == "zsh" ? zsh_completion(program)
                                                : fish_completion(program);
    std::fputs(script.c_str(), stdout);
    return 0;
  });
}

}  // namespace bam
