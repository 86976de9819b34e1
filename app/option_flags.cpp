#include "app/option_flags.h"

#include <unistd.h>

#include "app/command.h"
#include "app/units.h"
#include "base/error.h"
#include "base/log.h"

namespace bam {

const char* const kSettingsHelp =
    "Settings come from flags, then the environment (--kv-memory is BAM_KV_MEMORY),\n"
    "then the keys of --config (\"kv-memory\"), then the defaults in brackets.\n";

OptionFlags::OptionFlags(CLI::App& app, const std::function<bool(const ServeOption&)>& wanted) {
  app.add_option("--config", config_file_, "settings as a JSON object whose keys are flags")->type_name("FILE");
  for (const ServeOption& option : serve_options()) {
    if (!wanted(option)) continue;
    CLI::Option* flag = app.add_option("--" + option.name, given_[option.name], option.help);
    flag->type_name(option.metavar);
    flag->default_str(option.fallback);
    flag->expected(1);
    flag->allow_extra_args(false);  // what follows is an argument, not a second value
    flag->multi_option_policy(option.list ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::TakeLast);
  }
}

void OptionFlags::add_model_argument(CLI::App& app) {
  app.add_option("MODEL", model_, "checkpoint folder or demo, as --model")->type_name("");
}

int OptionFlags::run(CLI::App& app, int argc, char** argv, const std::function<int(const ServeConfig&)>& body) {
  return run_command(app, argc, argv, [&] {
    GivenFlags flags;
    for (const auto& [name, values] : given_) {
      if (app.count("--" + name) > 0) flags[name] = values;
    }
    if (!model_.empty()) {
      if (flags.contains("model")) throw UsageError("the model is given twice: '{}' and --model", model_);
      flags["model"] = {model_};
    }
    const Environment environment = process_environment();
    for (const std::string& hint : misspelt_variables(environ)) {
      fmt::print(stderr, "bam {}: warning: {}\n", argv[0], hint);
    }
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
