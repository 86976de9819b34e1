#include "app/command.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "app/suggest.h"
#include "app/units.h"
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

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const FlagHelp& flag : describe_command(app, "").flags) {
    if (!flag.positional) names.insert(names.end(), flag.names.begin(), flag.names.end());
  }
  return names;
}

// A flag that is not there: another (sub-)command's, what another command does, or a typing error.
std::string flag_hint(const CLI::App& app, const std::string& name) {
  std::vector<const CLI::App*> all = app.get_subcommands({});
  all.insert(all.begin(), &app);
  std::string others;
  std::vector<std::string> here;
  for (const CLI::App* each : all) {
    const std::vector<std::string> flags = flags_of(*each);
    if (std::find(flags.begin(), flags.end(), name) != flags.end()) {
      others += fmt::format("{}`{}{}`", others.empty() ? "" : " and ", app.get_name(),
                            each == &app ? "" : " " + each->get_name());
    }
    if (each == &app || each->parsed()) here.insert(here.end(), flags.begin(), flags.end());
  }
  if (!others.empty()) return "; it belongs to " + others;
  if (name == "--url") return "; `bam chat URL` talks to a server";
  return did_you_mean(name, here);
}

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands({})) names.push_back(sub->get_name());
  return names;
}

// The words on the command line that nobody expected, in one sentence.
std::string unexpected(const CLI::App& app) {
  const std::vector<std::string> rest = app.remaining(true);
  // What follows a flag that does not exist was meant for it.
  const auto flag =
      std::find_if(rest.begin(), rest.end(), [](const std::string& word) { return word.starts_with("-"); });
  if (flag != rest.end()) {
    const std::string name = flag->substr(0, flag->find('='));
    return fmt::format("there is no flag {}{}", name, flag_hint(app, name));
  }
  if (rest.empty()) return "too many arguments";
  const std::vector<std::string> commands = subcommand_names(app);
  std::string hint = did_you_mean(rest.front(), commands);
  if (hint.empty() && app.get_option_no_throw("--url") != nullptr && rest.front().find("://") != std::string::npos) {
    hint = "; a server's address goes to --url";
  } else if (hint.empty() && app.get_require_subcommand_min() > 0) {
    hint = "; there are " + join(commands, ", ");
  }
  return fmt::format("unexpected argument '{}'{}", rest.front(), hint);
}

// The words between "a" and "b" of "{a,b}" or of sub-commands.
std::string choices(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  }
  return text;
}

// The text before and behind a mark, if it is there.
std::optional<std::pair<std::string, std::string>> cut(const std::string& text, std::string_view mark) {
  const size_t at = text.find(mark);
  if (at == text.npos) return std::nullopt;
  return std::pair(text.substr(0, at), text.substr(at + mark.size()));
}

// "N not in range A to B".
std::string out_of_range(const std::string& name, const std::string& value, const std::string& low,
                         const std::string& high) {
  return fmt::format("{}: '{}' is not {} {}", name, value, low.find('.') == low.npos ? "a whole number" : "a number",
                     format_range(std::strtod(low.c_str(), nullptr), std::strtod(high.c_str(), nullptr)));
}

// What CLI11 has to say, as this program says such things.
std::string plain_sentence(const CLI::App& app, const std::string& said) {
  if (said == "A subcommand is required") return "what shall it do? " + choices(subcommand_names(app));
  if (const auto converted = cut(said, "Could not convert: ")) {
    if (const auto part = cut(converted->second, " = ")) {
      return fmt::format("{}: '{}' is not a number", part->first, part->second);
    }
  }
  if (const auto missing = cut(said, " is required"); missing && missing->second.empty()) {
    return missing->first + " is missing";
  }
  const auto named = cut(said, ": ");
  if (!named) return said;
  const auto& [name, rest] = *named;
  if (const auto range = cut(rest, " not in range "); range && range->first.starts_with("Value ")) {
    if (const auto bounds = cut(range->second, " to ")) {
      return out_of_range(name, range->first.substr(6), bounds->first, bounds->second);
    }
  }
  if (const auto words = cut(rest, " not in {"); words && words->second.ends_with('}')) {
    return fmt::format("{}: '{}' is not {}", name, words->first,
                       choices(split(words->second.substr(0, words->second.size() - 1), ',')));
  }
  if (rest.ends_with(" missing") && rest.find(" required ") != rest.npos) return name + ": its value is missing";
  return said;
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
    return fail(command, plain_sentence(app, error.what()), 2, fmt::format(" (see bam {} --help)", command));
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
