#include "app/cli_pages.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "app/units.h"

namespace bam {
namespace {

std::string last_word(const std::string& name) { return name.substr(name.rfind(' ') + 1); }

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += with.size()) text.replace(at, what.size(), with);
  return text;
}

std::string roff(const std::string& text) {
  std::string out = replaced(replaced(text, "\\", "\\e"), "-", "\\-");
  // A line that begins with a dot or an apostrophe would be a request.
  out = replaced(replaced(out, "\n.", "\n\\&."), "\n'", "\n\\&'");
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string roff_title(const std::string& name) {
  std::string title = replaced(name, " ", "-");
  std::transform(title.begin(), title.end(), title.begin(), [](unsigned char c) { return std::toupper(c); });
  return roff(title);
}

std::string roff_flag(const FlagHelp& flag) {
  std::string text = ".TP\n";
  if (flag.positional) {
    text += "\\fI" + roff(flag.names.front()) + "\\fR\n";
  } else {
    std::vector<std::string> names;
    for (const std::string& name : flag.names) names.push_back("\\fB" + roff(name) + "\\fR");
    text += join(names, ", ");
    if (!flag.value.empty()) text += " \\fI" + roff(flag.value) + "\\fR";
    text += "\n";
  }
  text += roff(flag.help);
  if (!flag.fallback.empty()) text += roff(fmt::format(" [{}]", flag.fallback));
  return text + "\n";
}

std::string roff_flags(const CommandHelp& command) {
  std::string text;
  for (const FlagHelp& flag : command.flags) text += roff_flag(flag);
  return text;
}

std::string one_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Quoted for a shell's single quotes.
std::string shell_quoted(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }

bool takes_path(const FlagHelp& flag) {
  return flag.value.find("FILE") != flag.value.npos || flag.value.find("DIR") != flag.value.npos;
}

std::vector<std::string> flag_names(const CommandHelp& command) {
  std::vector<std::string> names;
  for (const FlagHelp& flag : command.flags) {
    if (!flag.positional) names.insert(names.end(), flag.names.begin(), flag.names.end());
  }
  return names;
}

std::vector<std::string> command_names(const CommandHelp& command) {
  std::vector<std::string> names;
  for (const CommandHelp& sub : command.commands) names.push_back(last_word(sub.name));
  return names;
}

}  // namespace

std::string man_page(const CommandHelp& command, const CommandHelp& program, const std::string& version,
                     const std::string& date) {
  const bool whole = command.name == program.name;
  std::string page =
      fmt::format(".TH {} 1 \"{}\" \"bam {}\" \"User Commands\"\n", roff_title(command.name), date, version);
  std::string summary = one_line(command.summary);
  while (summary.ends_with('.')) summary.pop_back();
  page += fmt::format(".SH NAME\n{} \\- {}\n", roff(replaced(command.name, " ", "-")), roff(summary));
  page += fmt::format(".SH SYNOPSIS\n.B {}\n", roff(whole ? "bam COMMAND [OPTIONS]" : command.usage()));
  page += ".SH DESCRIPTION\n" + roff(command.summary) + "\n";
  if (whole) {
    page += ".SH COMMANDS\n";
    for (const CommandHelp& sub : program.commands) {
      page += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(last_word(sub.name)), roff(one_line(sub.summary)));
    }
    page +=
        ".TP\n\\fBhelp\\fR [\\fICOMMAND\\fR]\nwhat a command is for and its flags\n"
        ".TP\n\\fBversion\\fR\nversion, commit, compiler and date\n";
  } else {
    page += ".SH OPTIONS\n" + roff_flags(command);
    for (const CommandHelp& sub : command.commands) {
      page += fmt::format(".SS {}\n{}\n{}", roff(sub.usage()), roff(sub.summary), roff_flags(sub));
    }
    if (!command.footer.empty()) page += ".SH NOTES\n.nf\n" + roff(command.footer) + "\n.fi\n";
  }
  page += ".SH EXIT STATUS\n0: done; 1: the work failed; 2: the command line or a setting is wrong.\n";
  page += ".SH SEE ALSO\n";
  std::vector<std::string> others;
  if (!whole) others.push_back("\\fBbam\\fR(1)");
  for (const CommandHelp& sub : program.commands) {
    if (sub.name != command.name) others.push_back("\\fB" + roff(replaced(sub.name, " ", "-")) + "\\fR(1)");
  }
  return page + join(others, ",\n") + "\n";
}

std::string bash_completion(const CommandHelp& program) {
  std::string cases, values;
  for (const CommandHelp& command : program.commands) {
    std::vector<std::string> words = flag_names(command);
    for (const std::string& sub : command_names(command)) words.push_back(sub);
    for (const CommandHelp& sub : command.commands) {
      for (const std::string& name : flag_names(sub)) words.push_back(name);
    }
    std::string flags_with_values;
    for (const FlagHelp& flag : command.flags) {
      const std::vector<std::string> choices = flag.choices();
      if (flag.positional) {
        words.insert(words.end(), choices.begin(), choices.end());
        continue;
      }
      if (flag.value.empty()) continue;
      const std::string action =
          !choices.empty()   ? fmt::format("COMPREPLY=($(compgen -W {} -- \"$cur\"))", shell_quoted(join(choices, " ")))
          : takes_path(flag) ? "COMPREPLY=($(compgen -f -- \"$cur\")); compopt -o filenames 2>/dev/null"
                             : "COMPREPLY=()";
      flags_with_values += fmt::format("        {}) {}; return ;;\n", join(flag.names, " | "), action);
    }
    cases += fmt::format("    {})\n      case $prev in\n{}        *) ;;\n      esac\n      words={}\n      ;;\n",
                         last_word(command.name), flags_with_values, shell_quoted(join(words, " ")));
  }
  std::vector<std::string> names = command_names(program);
  names.insert(names.end(), {"help", "version"});
  return fmt::format(R"(# bash completion for bam; made by `bam completion bash`.
_bam() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} words=
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W {0} -- "$cur"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
    help) COMPREPLY=($(compgen -W {0} -- "$cur")); return ;;
{1}  esac
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
  else
    local word plain=
    for word in $words; do [[ $word == -* ]] || plain+="$word "; done
    COMPREPLY=($(compgen -W "$plain" -- "$cur") $(compgen -f -- "$cur"))
    compopt -o filenames 2>/dev/null
  fi
}}
complete -F _bam bam
)",
                     shell_quoted(join(names, " ")), cases);
}

std::string zsh_completion(const CommandHelp& program) {
  const auto in_brackets = [](const std::string& text) {
    return replaced(replaced(replaced(replaced(one_line(text), "\\", "\\\\"), "[", "\\["), "]", "\\]"), ":", "\\:");
  };
  const auto action = [](const FlagHelp& flag) {
    const std::vector<std::string> choices = flag.choices();
    if (!choices.empty()) return "(" + join(choices, " ") + ")";
    return std::string(takes_path(flag) || flag.positional ? "_files" : " ");
  };
  std::string list, cases;
  for (const CommandHelp& command : program.commands) {
    const std::string name = last_word(command.name);
    list += fmt::format("    {}\n", shell_quoted(name + ":" + in_brackets(command.summary)));
    std::string specs;
    for (const FlagHelp& flag : command.flags) {
      if (flag.positional) {
        specs += fmt::format(" \\\n        {}", shell_quoted(fmt::format("{}:{}:{}", flag.repeated ? "*" : "",
                                                                         flag.names.front(), action(flag))));
        continue;
      }
      for (const std::string& word : flag.names) {
        std::string spec = fmt::format("{}{}[{}]", flag.repeated ? "*" : "", word, in_brackets(flag.help));
        if (!flag.value.empty()) spec += fmt::format(":{}:{}", in_brackets(flag.value), action(flag));
        specs += " \\\n        " + shell_quoted(spec);
      }
    }
    if (!command.commands.empty()) {
      specs += " \\\n        " + shell_quoted(fmt::format("1:command:({})", join(command_names(command), " ")));
    }
    cases += fmt::format("    {})\n      _arguments -S{}\n      ;;\n", name, specs);
  }
  return fmt::format(R"(#compdef bam
# zsh completion for bam; made by `bam completion zsh`.
_bam() {{
  local -a commands=(
{}    'help:what a command is for and its flags'
    'version:version, commit, compiler and date'
  )
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  local command=${{words[2]}}
  shift words
  ((CURRENT--))
  case $command in
    help) _describe command commands ;;
{}  esac
}}
_bam "$@"
)",
                     list, cases);
}

std::string fish_completion(const CommandHelp& program) {
  std::string out = "# fish completion for bam; made by `bam completion fish`.\n";
  for (const CommandHelp& command : program.commands) {
    const std::string name = last_word(command.name);
    out += fmt::format("complete -c bam -n __fish_use_subcommand -f -a {} -d {}\n", name,
                       shell_quoted(one_line(command.summary)));
    const std::string when = fmt::format("complete -c bam -n '__fish_seen_subcommand_from {}'", name);
    for (const std::string& sub : command_names(command)) out += fmt::format("{} -a {}\n", when, sub);
    for (const FlagHelp& flag : command.flags) {
      const std::vector<std::string> choices = flag.choices();
      if (flag.positional) {
        if (!choices.empty()) out += fmt::format("{} -a {}\n", when, shell_quoted(join(choices, " ")));
        continue;
      }
      std::string line = when;
      for (const std::string& word : flag.names) {
        line += word.starts_with("--") ? " -l " + word.substr(2) : " -s " + word.substr(1);
      }
      if (!choices.empty()) {
        line += " -x -a " + shell_quoted(join(choices, " "));
      } else if (!flag.value.empty()) {
        line += takes_path(flag) ? " -r" : " -x";
      }
      out += line + " -d " + shell_quoted(one_line(flag.help)) + "\n";
    }
  }
  return out;
}

}  // namespace bam
