#include "app/serve_config.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "app/suggest.h"
#include "app/units.h"
#include "base/error.h"
#include "base/json.h"

namespace bam {

namespace {

// A value of the configuration file as the texts that flags would have.
std::vector<std::string> as_texts(const Json& value, const std::string& origin) {
  if (value.is_string()) return {value.get<std::string>()};
  if (value.is_boolean()) return {value.get<bool>() ? "on" : "off"};
  if (value.is_number()) return {value.dump()};
  if (!value.is_array()) throw UsageError("{}: must be a string, a number, a boolean or a list of strings", origin);
  std::vector<std::string> list;
  for (const Json& entry : value) {
    if (!entry.is_string()) throw UsageError("{}: the list must hold strings", origin);
    list.push_back(entry.get<std::string>());
  }
  return list;
}

std::string canonical(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

struct Setting {
  std::vector<std::string> values;
  std::string origin;
};
using Settings = std::map<std::string, Setting>;  // by name

const ServeOption* find_option(const std::string& name) {
  const auto& options = serve_options();
  const auto found = std::find_if(options.begin(), options.end(), [&](const ServeOption& o) { return o.name == name; });
  return found == options.end() ? nullptr : &*found;
}

std::vector<std::string> option_names() {
  std::vector<std::string> names;
  for (const ServeOption& option : serve_options()) names.push_back(option.name);
  return names;
}

void read_file_layer(const std::string& text, const std::string& name, Settings& settings) {
  const Result<Json> root = parse_json(text);
  if (!root) throw UsageError("--config: {}: {}", name, root.error().what());
  if (!root->is_object()) throw UsageError("--config: {} must hold a JSON object", name);
  for (const auto& [key, value] : root->items()) {
    const ServeOption* option = find_option(canonical(key));
    if (option == nullptr) {
      throw UsageError("--config: {} has the unknown key '{}'{}", name, key,
                       did_you_mean(canonical(key), option_names()));
    }
    if (value.is_null()) continue;
    const std::string origin = name + ": " + key;
    std::vector<std::string> values = as_texts(value, origin);
    if (value.is_array() && !option->list) throw UsageError("{}: must be one value, not a list", origin);
    if (!values.empty()) settings[option->name] = {std::move(values), origin};
  }
}

void check_combinations(const ServeConfig& config) {
  const ServerConfig& server = config.server;
  if (server.tls_cert.empty() != server.tls_key.empty()) {
    throw UsageError("--tls-cert and --tls-key must be given together");
  }
  for (const auto& [flag, file] : {std::pair{"--tls-cert", server.tls_cert}, {"--tls-key", server.tls_key}}) {
    if (!file.empty() && !std::ifstream(file)) throw UsageError("{}: cannot read {}", flag, file);
  }
  if (config.model.engine.max_batched_tokens < config.model.engine.max_num_seqs) {
    throw UsageError("--max-batched-tokens ({}) must not be less than --max-num-seqs ({})",
                     config.model.engine.max_batched_tokens, config.model.engine.max_num_seqs);
  }
  if (std::find(server.api_keys.begin(), server.api_keys.end(), server.admin_key) != server.api_keys.end()) {
    throw UsageError("--admin-key must differ from the API keys");
  }
}

}  // namespace

std::string ServeOption::environment() const {
  std::string result = "BAM_";
  for (const char c : name) result += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
}

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

std::vector<std::string> misspelt_variables(const char* const* environment) {
  std::vector<std::string> known = {"BAM_CONFIG", "BAM_DEMO_DIR", "BAM_PLUGIN_DIR"};
  for (const ServeOption& option : serve_options()) known.push_back(option.environment());
  std::vector<std::string> hints;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with("BAM_") || std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string nearest = nearest_word(name, known);
    if (!nearest.empty()) hints.push_back(fmt::format("{} is not a setting; did you mean {}?", name, nearest));
  }
  return hints;
}

ServeConfig resolve_serve_config(const GivenFlags& flags, const Environment& environment,
                                 const std::optional<std::string>& config_file, const std::string& config_name) {
  Settings settings;
  if (config_file) read_file_layer(*config_file, config_name, settings);
  for (const ServeOption& option : serve_options()) {
    const auto value = environment(option.environment());
    if (value && !value->empty()) settings[option.name] = {{*value}, option.environment()};
  }
  for (const auto& [name, values] : flags) settings[name] = {values, "--" + name};

  ServeConfig config;
  for (const ServeOption& option : serve_options()) {
    const auto it = settings.find(option.name);
    if (it == settings.end()) {
      config.resolved.push_back({option.name, option.fallback, "default"});
      continue;
    }
    const auto& [values, origin] = it->second;
    option.apply(config, values, origin);
    const std::string shown = join(values, ",");
    config.resolved.push_back({option.name, option.secret && !shown.empty() ? "***" : shown, origin});
  }
  if (config.server.served_model_names.empty()) {
    const std::filesystem::path path = std::filesystem::path(config.model.model).lexically_normal();
    const std::string name = path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
    config.server.served_model_names = {name.empty() || name == "." || name == ".." ? "bam" : name};
    for (ServeConfig::Resolved& setting : config.resolved) {
      if (setting.name == "served-model-name") setting.value = config.server.served_model_names.front();
    }
  }
  check_combinations(config);
  return config;
}

std::string ServeConfig::resolved_json() const {
  Json object = Json::object();
  for (const Resolved& setting : resolved) {
    object[setting.name] = {{"value", setting.value}, {"origin", setting.origin}};
  }
  return dump_json(object);
}

std::string ServeConfig::resolved_line() const {
  std::string line;
  for (const Resolved& setting : resolved) {
    line += fmt::format("{}{}={}", line.empty() ? "" : " ", setting.name, setting.value.empty() ? "-" : setting.value);
    if (setting.origin != "default") line += "*";
  }
  return line;
}

}  // namespace bam
