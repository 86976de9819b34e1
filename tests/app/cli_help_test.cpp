#include "app/cli_help.h"

#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

#include "app/cli_pages.h"
#include "app/client/terminal.h"
#include "app/commands.h"
#include "app/units.h"

namespace bam {
namespace {

void expect_narrow(const CommandHelp& command) {
  for (const std::string& line : split(help_text(command), '\n')) {
    EXPECT_LE(client::display_width(line), 80u) << command.name << ": " << line;
    EXPECT_EQ(line.find(" in ["), line.npos) << "a range that nobody needs: " << line;
    EXPECT_FALSE(line.ends_with(' ')) << command.name << ": '" << line << "'";
  }
  for (const CommandHelp& sub : command.commands) expect_narrow(sub);
}

TEST(CliHelp, EveryCommandFitsATerminal) {
  const CommandHelp program = describe_program();
  ASSERT_EQ(program.commands.size(), all_commands().size());
  for (const CommandHelp& command : program.commands) {
    EXPECT_FALSE(command.summary.empty()) << command.name;
    expect_narrow(command);
  }
}

TEST(CliHelp, SaysWhatAFlagTakes) {
  CLI::App app("Does things.");
  std::string file, shape = "round";
  int count = 3;
  app.add_option("FILE", file, "what to read")->type_name("")->required();
  app.add_option("-n,--count", count, "how many")->check(CLI::Range(1, 9))->capture_default_str();
  app.add_option("--shape", shape, "which")->check(CLI::IsMember({"round", "square"}));
  const CommandHelp help = describe_command(app, "bam do");
  EXPECT_EQ(help.usage(), "bam do [OPTIONS] FILE");
  const std::string text = help_text(help);
  EXPECT_NE(text.find("  -n, --count N             how many [3]\n"), text.npos) << text;
  EXPECT_NE(text.find("--shape round|square"), text.npos) << text;
  EXPECT_EQ(help.flags.back().choices(), (std::vector<std::string>{"round", "square"}));
}

TEST(CliHelp, ManualPagesNameEveryFlag) {
  const CommandHelp program = describe_program();
  for (const CommandHelp& command : program.commands) {
    const std::string page = man_page(command, program, "1", "2026-01-31");
    EXPECT_TRUE(page.starts_with(".TH BAM\\-")) << page.substr(0, 40);
    for (const FlagHelp& flag : command.flags) {
      std::string name = flag.names.back();
      for (size_t at = 0; (at = name.find('-', at)) != name.npos; at += 2) name.insert(at, 1, '\\');
      EXPECT_NE(page.find(name), page.npos) << command.name << " " << name;
    }
  }
}

}  // namespace
}  // namespace bam
