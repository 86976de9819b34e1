#include "app/cli_help.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "app/client/terminal.h"
#include "app/units.h"

namespace bam {
namespace {

constexpr size_t kColumns = 80;
constexpr size_t kHelpColumn = 28;

// CLI11 puts the descriptions of validators behind the type: "INT:INT in [1 - 9]". A word or a list of words says more
// than a range; what is out of it is said by the error message.
std::string value_name(std::string type) {
  const size_t list = type.find(":{");
  if (list != type.npos) {
    std::string words = type.substr(list + 2, type.find('}', list) - list - 2);
    std::replace(words.begin(), words.end(), ',', '|');
    return words;
  }
  for (const char* noise : {":INT", ":UINT", ":FLOAT", ":NUMBER", ":POSITIVE", ":NONNEGATIVE"}) {
    if (const size_t at = type.find(noise); at != type.npos) type.resize(at);
  }
  if (type == "INT" || type == "UINT") return "N";
  if (type == "FLOAT") return "X";
  return type;
}

FlagHelp describe_flag(const CLI::Option& option) {
  FlagHelp flag;
  flag.positional = option.get_positional() && !option.nonpositional();
  if (flag.positional) {
    flag.names = {option.get_name(true, false)};
  } else {
    for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  }
  if (option.get_type_size() != 0) flag.value = value_name(option.get_type_name());
  flag.help = option.get_description();
  flag.fallback = option.get_default_str();
  flag.required = option.get_required();
  flag.repeated = option.get_expected_max() >= CLI::detail::expected_max_vector_size;
  return flag;
}

std::string flag_text(const FlagHelp& flag) {
  std::string text = join(flag.names, ", ");
  if (flag.positional) return flag.repeated ? text + "…" : text;
  if (!flag.value.empty()) text += " " + flag.value;
  return text;
}

std::string flag_lines(const FlagHelp& flag) {
  std::string help = flag.help;
  if (!flag.fallback.empty()) help += fmt::format(" [{}]", flag.fallback);
  std::string line = "  " + flag_text(flag);
  if (line.size() + 2 > kHelpColumn) {
    line = wrap_text(line, 0, 6, kColumns) + "\n" + std::string(kHelpColumn, ' ');
  } else {
    line.resize(kHelpColumn, ' ');
  }
  return line + wrap_text(help, kHelpColumn, kHelpColumn, kColumns) + "\n";
}

// Prose goes on in the next line; a command needs a backslash for that.
std::string footer_line(const std::string& line) {
  if (client::display_width(line) <= kColumns) return line;
  if (!line.starts_with("  ")) return wrap_text(line, 0, 0, kColumns);
  std::string out = "  " + wrap_text(line.substr(2), 2, 4, kColumns - 2);
  for (size_t at = 0; (at = out.find('\n', at)) != out.npos; at += 3) out.insert(at, " \\");
  return out;
}

}  // namespace

std::vector<std::string> FlagHelp::choices() const {
  if (value.find('|') == value.npos) return {};
  std::vector<std::string> words;
  for (const std::string& word : split(value, '|')) {
    const bool plain =
        std::all_of(word.begin(), word.end(), [](char c) { return std::islower(c) || std::isdigit(c) || c == '-'; });
    if (plain && !word.empty()) words.push_back(word);
  }
  return words;
}

std::string CommandHelp::usage() const {
  std::string text = name;
  if (std::any_of(flags.begin(), flags.end(), [](const FlagHelp& f) { return !f.positional; })) text += " [OPTIONS]";
  for (const FlagHelp& flag : flags) {
    if (flag.positional) text += fmt::format(fmt::runtime(flag.required ? " {}" : " [{}]"), flag_text(flag));
  }
  if (!commands.empty()) text += command_required ? " COMMAND" : " [COMMAND]";
  return text;
}

CommandHelp describe_command(const CLI::App& app, const std::string& name) {
  CommandHelp command;
  command.name = name;
  command.summary = app.get_description();
  command.footer = app.get_footer();
  command.command_required = app.get_require_subcommand_min() > 0;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_group().empty()) command.flags.push_back(describe_flag(*option));
  }
  std::stable_partition(command.flags.begin(), command.flags.end(), [](const FlagHelp& f) { return f.positional; });
  for (const CLI::App* sub : app.get_subcommands({})) {
    command.commands.push_back(describe_command(*sub, name + " " + sub->get_name()));
  }
  return command;
}

std::string wrap_text(std::string_view text, size_t first_column, size_t indent, size_t width) {
  std::string out;
  size_t column = first_column;
  bool line_start = true;
  for (const std::string& word : split(text, ' ')) {
    const size_t size = client::display_width(word);
    if (!line_start && column + 1 + size > width) {
      while (out.ends_with(' ')) out.pop_back();
      out += "\n" + std::string(indent, ' ');
      column = indent;
      line_start = true;
    }
    if (!line_start) {
      out += ' ';
      ++column;
    }
    out += word;
    column += size;
    line_start = false;
  }
  return out;
}

std::string help_text(const CommandHelp& command) {
  std::string out;
  for (const std::string& line : split(command.summary, '\n')) out += wrap_text(line, 0, 0, kColumns) + "\n";
  out += "\nUsage: " + wrap_text(command.usage(), 7, 7, kColumns) + "\n";
  bool positionals = false, options = false;
  for (const FlagHelp& flag : command.flags) {
    bool& begun = flag.positional ? positionals : options;
    if (!begun) out += flag.positional ? "\nArguments:\n" : "\nOptions:\n";
    begun = true;
    out += flag_lines(flag);
  }
  if (!command.commands.empty()) out += "\nCommands:\n";
  for (const CommandHelp& sub : command.commands) {
    std::string line = "  " + sub.name.substr(sub.name.rfind(' ') + 1);
    line.resize(std::max(kHelpColumn, line.size() + 1), ' ');
    out += line + wrap_text(sub.summary, line.size(), kHelpColumn, kColumns) + "\n";
  }
  if (command.footer.empty()) return out;
  out += "\n";
  for (const std::string& line : split(command.footer, '\n')) out += footer_line(line) + "\n";
  return out;
}

}  // namespace bam
