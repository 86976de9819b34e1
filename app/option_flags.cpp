#include "app/option_flags.h"

#include "app/command.h"
#include "app/units.h"
#include "base/log.h"

namespace bam {

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

int OptionFlags::run(CLI::App& app, int argc, char** argv, const std::function<int(const ServeConfig&)>& body) {
  return run_command(app, argc, argv, [&] {
    GivenFlags flags;
    for (const auto& [name, values] : given_) {
      if (app.count("--" + name) > 0) flags[name] = values;
    }
    const Environment environment = process_environment();
    if (config_file_.empty()) config_file_ = environment("BAM_CONFIG").value_or("");
    std::optional<std::string> text;
    if (!config_file_.empty()) text = read_text_file(config_file_);
    const ServeConfig config = resolve_serve_config(flags, environment, text, config_file_);
    // Tools for the terminal speak by themselves; only the server has a log.
    const bool has_log = given_.contains("log-level");
    log::init(has_log ? config.log_level : "warn", has_log ? config.log_format : "text");
    return body(config);
  });
}

}  // namespace bam
