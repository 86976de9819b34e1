#include "app/serve_config.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace bam {

namespace {

using nlohmann::json;

// Reads the leading number and returns what follows it, lower-cased and without blanks.
double leading_number(const std::string& text, const std::string& origin, const char* what, std::string& unit) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) {
    throw UsageError("{}: '{}' is not {}", origin, text, what);
  }
  for (const char* c = end; c != text.data() + text.size(); ++c) {
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  return number;
}

// A value of the configuration file as the text that a flag would have.
std::string as_text(const json& value, const std::string& origin) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
  if (value.is_number()) return value.dump();
  if (value.is_array()) {
    std::string list;
    for (const json& entry : value) {
      if (!entry.is_string()) throw UsageError("{}: the list must hold strings", origin);
      list += (list.empty() ? "" : ",") + entry.get<std::string>();
    }
    return list;
  }
  throw UsageError("{}: must be a string, a number, a boolean or a list of strings", origin);
}

std::string canonical(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

using Settings = std::map<std::string, std::pair<std::string, std::string>>;  // name -> value, origin

void read_file_layer(const std::string& text, const std::string& name, Settings& settings) {
  json root;
  try {
    root = json::parse(text);
  } catch (const json::exception& error) {
    throw UsageError("--config: {} is not valid JSON: {}", name, error.what());
  }
  if (!root.is_object()) throw UsageError("--config: {} must hold a JSON object", name);
  for (const auto& [key, value] : root.items()) {
    const std::string option = canonical(key);
    const auto& options = serve_options();
    if (std::none_of(options.begin(), options.end(), [&](const ServeOption& o) { return o.name == option; })) {
      throw UsageError("--config: {} has the unknown key '{}'", name, key);
    }
    const std::string origin = name + ": " + key;
    if (!value.is_null()) settings[option] = {as_text(value, origin), origin};
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

uint64_t parse_bytes(const std::string& text, const std::string& origin) {
  static const std::map<std::string, double> units = {
      {"", 1},         {"b", 1},      {"k", 1024}, {"kb", 1e3},     {"kib", 1024}, {"m", 0x1p20}, {"mb", 1e6},
      {"mib", 0x1p20}, {"g", 0x1p30}, {"gb", 1e9}, {"gib", 0x1p30}, {"t", 0x1p40}, {"tb", 1e12},  {"tib", 0x1p40}};
  std::string unit;
  const double number = leading_number(text, origin, "a size such as 8GiB", unit);
  const auto it = units.find(unit);
  if (it == units.end() || number * it->second > 0x1p60)
    throw UsageError("{}: '{}' is not a size such as 8GiB", origin, text);
  return static_cast<uint64_t>(number * it->second);
}

double parse_seconds(const std::string& text, const std::string& origin) {
  static const std::map<std::string, double> units = {{"", 1},   {"s", 1},    {"ms", 1e-3},
                                                      {"m", 60}, {"min", 60}, {"h", 3600}};
  std::string unit;
  const double number = leading_number(text, origin, "a time such as 30s", unit);
  const auto it = units.find(unit);
  if (it == units.end() || number * it->second > 1e9)
    throw UsageError("{}: '{}' is not a time such as 30s", origin, text);
  return number * it->second;
}

int64_t parse_integer(const std::string& text, const std::string& origin, int64_t min, int64_t max) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < min || number > max) {
    throw UsageError("{}: '{}' is not an integer between {} and {}", origin, text, min, max);
  }
  return number;
}

double parse_number(const std::string& text, const std::string& origin, double min, double max) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !(number >= min && number <= max)) {
    throw UsageError("{}: '{}' is not a number between {} and {}", origin, text, min, max);
  }
  return number;
}

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

ServeConfig resolve_serve_config(const std::map<std::string, std::string>& flags, const Environment& environment,
                                 const std::optional<std::string>& config_file, const std::string& config_name) {
  Settings settings;
  if (config_file) read_file_layer(*config_file, config_name, settings);
  for (const ServeOption& option : serve_options()) {
    if (auto value = environment(option.environment())) settings[option.name] = {*value, option.environment()};
  }
  for (const auto& [name, value] : flags) settings[name] = {value, "--" + name};

  ServeConfig config;
  for (const ServeOption& option : serve_options()) {
    const auto it = settings.find(option.name);
    if (it == settings.end()) {
      config.resolved.push_back({option.name, option.fallback, "default"});
      continue;
    }
    const auto& [value, origin] = it->second;
    option.apply(config, value, origin);
    config.resolved.push_back({option.name, option.secret && !value.empty() ? "***" : value, origin});
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
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const Resolved& setting : resolved) {
    object[setting.name] = {{"value", setting.value}, {"origin", setting.origin}};
  }
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
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
