#include "app/option_flags.h"

#include <cstdio>
#include <fstream>
#include <sstream>

#include "app/model_setup.h"
#include "base/error.h"
#include "base/log.h"

namespace bam {

namespace {

std::string read_config_file(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) throw UsageError("--config: cannot read {}", file);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

}  // namespace

OptionFlags::OptionFlags(CLI::App& app, const std::function<bool(const ServeOption&)>& wanted) {
  app.add_option("--config", config_file_, "settings as a JSON object whose keys are flags (env BAM_CONFIG)")
      ->type_name("FILE");
  for (const ServeOption& option : serve_options()) {
    if (!wanted(option)) continue;
    CLI::Option* flag =
        app.add_option("--" + option.name, given_[option.name], option.help + " (env " + option.environment() + ")");
    flag->type_name(option.metavar);
    flag->default_str(option.fallback);
    flag->expected(1);
    flag->multi_option_policy(option.list ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::TakeLast);
  }
}

int OptionFlags::run(const char* command, CLI::App& app, int argc, char** argv,
                     const std::function<int(const ServeConfig&)>& body) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::string line = error.what();
    for (char& c : line) c = c == '\n' ? ' ' : c;
    std::fprintf(stderr, "bam %s: %s (see bam %s --help)\n", command, line.c_str(), command);
    return 2;
  }
  return guarded(command, [&] {
    std::map<std::string, std::string> flags;
    for (const auto& [name, values] : given_) {
      if (app.count("--" + name) == 0) continue;
      std::string joined;
      for (const std::string& value : values) joined += (joined.empty() ? "" : ",") + value;
      flags[name] = joined;
    }
    const Environment environment = process_environment();
    if (config_file_.empty()) config_file_ = environment("BAM_CONFIG").value_or("");
    std::optional<std::string> text;
    if (!config_file_.empty()) text = read_config_file(config_file_);
    const ServeConfig config = resolve_serve_config(flags, environment, text, config_file_);
    // Tools for the terminal speak by themselves; only the server has a log.
    const bool has_log = given_.contains("log-level");
    log::init(has_log ? config.log_level : "warn", has_log ? config.log_format : "text");
    return body(config);
  });
}

}  // namespace bam
