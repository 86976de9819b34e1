#include "app/command.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "app/suggest.h"
#include "base/describe.h"
#include "base/error.h"

namespace bam {
namespace {

// Set while commands are described, on the one thread that there is then.
std::vector<CommandHelp>* g_descriptions = nullptr;

int fail(const char* command, std::string line, int code, const std::string& hint = {}) {
  std::replace(line.begin(), line.end(), '\n', ' ');
  fmt::print(stderr, "bam {}: {}{}\n", command, line, hint);
  return code;
}

void use_own_help(CLI::App& app, const std::string& name) {
  app.formatter_fn([name](const CLI::App* shown, const std::string&, CLI::AppFormatMode) {
    return help_text(describe_command(*shown, name));
  });
  for (CLI::App* sub : app.get_subcommands({})) use_own_help(*sub, name + " " + sub->get_name());
}

void collect_flags(const CommandHelp& command, std::vector<std::string>& names) {
  for (const FlagHelp& flag : command.flags) {
    if (!flag.positional) names.insert(names.end(), flag.names.begin(), flag.names.end());
  }
  for (const CommandHelp& sub : command.commands) collect_flags(sub, names);
}

// The words on the command line that nobody expected, in one sentence.
std::string unexpected(const CLI::App& app) {
  const std::vector<std::string> rest = app.remaining(true);
  std::vector<std::string> flags;
  collect_flags(describe_command(app, ""), flags);
  // What follows a flag that does not exist was meant for it.
  const auto flag =
      std::find_if(rest.begin(), rest.end(), [](const std::string& word) { return word.starts_with("-"); });
  if (flag != rest.end()) {
    const std::string name = flag->substr(0, flag->find('='));
    return fmt::format("there is no flag {}{}", name, did_you_mean(name, flags));
  }
  std::vector<std::string> commands;
  for (const CLI::App* sub : app.get_subcommands({})) commands.push_back(sub->get_name());
  return rest.empty() ? "too many arguments"
                      : fmt::format("unexpected argument '{}'{}", rest.front(), did_you_mean(rest.front(), commands));
}

}  // namespace

int run_command(CLI::App& app, int argc, char** argv, const std::function<int()>& body) {
  const char* command = argv[0];
  const std::string name = fmt::format("bam {}", command);
  if (g_descriptions != nullptr) {
    g_descriptions->push_back(describe_command(app, name));
    return 0;
  }
  use_own_help(app, name);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& shown) {  // --help
    return app.exit(shown);
  } catch (const CLI::ExtrasError&) {
    return fail(command, unexpected(app), 2, fmt::format(" (see bam {} --help)", command));
  } catch (const CLI::ParseError& error) {
    // A mistyped sub-command is missed as a command and left over as a word: the word says more.
    if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !app.remaining(true).empty()) {
      return fail(command, unexpected(app), 2, fmt::format(" (see bam {} --help)", command));
    }
    return fail(command, error.what(), 2, fmt::format(" (see bam {} --help)", command));
  }
  try {
    return body();
  } catch (const UsageError& error) {
    return fail(command, error.what(), 2);
  } catch (const std::exception& error) {
    return fail(command, describe(error), 1);
  }
}

std::vector<CommandHelp> describe_commands(const std::vector<std::pair<std::string, int (*)(int, char**)>>& commands) {
  std::vector<CommandHelp> descriptions;
  g_descriptions = &descriptions;
  for (const auto& [name, run] : commands) {
    std::string word = name;
    char* arguments[] = {word.data(), nullptr};
    run(1, arguments);
  }
  g_descriptions = nullptr;
  return descriptions;
}

}  // namespace bam
