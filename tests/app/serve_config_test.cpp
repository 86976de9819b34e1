#include "app/serve_config.h"

#include <filesystem>
#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "app/units.h"
#include "base/error.h"
#include "base/json.h"

namespace bam {
namespace {

using Flags = std::map<std::string, std::string>;

Environment environment(Flags values) {
  return [values](const std::string& name) -> std::optional<std::string> {
    const auto it = values.find(name);
    return it == values.end() ? std::nullopt : std::optional<std::string>(it->second);
  };
}

ServeConfig resolve(const Flags& flags, const Flags& env = {}, const std::optional<std::string>& file = std::nullopt) {
  GivenFlags given;
  for (const auto& [name, value] : flags) given[name] = {value};
  return resolve_serve_config(given, environment(env), file, "settings.json");
}

std::string refusal(const Flags& flags, const Flags& env = {}, const std::optional<std::string>& file = std::nullopt) {
  try {
    resolve(flags, env, file);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(ServeConfig, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  const std::string file = R"({"port": 1, "host": "file", "max-queue": 3, "kv_dtype": "int8"})";
  const ServeConfig config = resolve({{"port", "3"}}, {{"BAM_PORT", "2"}, {"BAM_HOST", "env"}}, file);
  EXPECT_EQ(config.server.port, 3);
  EXPECT_EQ(config.server.host, "env");
  EXPECT_EQ(config.model.engine.max_queue, 3);
  EXPECT_EQ(config.model.engine.kv_dtype, DType::kI8) << "underscores are fine in a file";
  EXPECT_EQ(config.model.engine.max_num_seqs, 64);
  std::map<std::string, std::string> origins;
  for (const auto& setting : config.resolved) origins[setting.name] = setting.origin;
  EXPECT_EQ(origins["port"], "--port");
  EXPECT_EQ(origins["host"], "BAM_HOST");
  EXPECT_EQ(origins["max-queue"], "settings.json: max-queue");
  EXPECT_EQ(origins["threads"], "default");
}

TEST(ServeConfig, EverySettingOfTheContractIsThere) {
  std::set<std::string> names;
  for (const ServeOption& option : serve_options()) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name << " twice";
    EXPECT_FALSE(option.help.empty() || option.metavar.empty());
  }
  for (const char* name : {"host",
                           "port",
                           "model",
                           "served-model-name",
                           "device",
                           "threads",
                           "dtype",
                           "math",
                           "kv-dtype",
                           "kv-memory",
                           "page-size",
                           "max-model-len",
                           "max-num-seqs",
                           "max-batched-tokens",
                           "step-target-ms",
                           "attention",
                           "attention-math",
                           "attention-epsilon",
                           "prefix-cache",
                           "draft",
                           "kv-dir",
                           "api-key",
                           "api-key-file",
                           "admin-key",
                           "cors-origins",
                           "tls-cert",
                           "tls-key",
                           "max-body",
                           "max-queue",
                           "max-queued-tokens",
                           "queue-timeout",
                           "request-timeout",
                           "drain-timeout",
                           "log-level",
                           "log-format",
                           "metrics-compat",
                           "cache-salt-per-key"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

// A default's text must mean what the struct holds without it, bit by bit: snapshots hash some of these values.
TEST(ServeConfig, TheDefaultsThatAreShownAreTheDefaults) {
  const ServeConfig plain;
  for (const ServeOption& option : serve_options()) {
    EXPECT_EQ(option.fallback, option.show(plain)) << option.name;
    if (option.fallback.empty() || option.name == "served-model-name") continue;
    ServeConfig spelled;
    option.apply(spelled, {option.fallback}, "default");
    for (const ServeOption& other : serve_options()) {
      EXPECT_EQ(other.show(spelled), other.show(plain)) << option.name << " changes " << other.name;
    }
  }
  EXPECT_EQ(resolve({{"attention-epsilon", "9.536743e-07"}}).model.attention_epsilon, 0x1p-20f);
  std::map<std::string, std::string> shown;
  for (const ServeOption& option : serve_options()) shown[option.name] = option.fallback;
  EXPECT_EQ(shown["attention-epsilon"], "9.536743e-07");
  EXPECT_EQ(shown["max-body"], "32MiB");
  EXPECT_EQ(shown["drain-timeout"], "30s");
  EXPECT_EQ(shown["kv-memory"], "auto");
  EXPECT_EQ(shown["prefix-cache"], "on");
  EXPECT_EQ(shown["kv-dtype"], "f16");
}

// Whatever a setting is set to can be shown and read back.
TEST(ServeConfig, SettingsSurviveBeingShown) {
  const std::map<std::string, std::string> given = {{"port", "0"},
                                                    {"threads", "3"},
                                                    {"kv-dtype", "int4"},
                                                    {"kv-memory", "1500000"},
                                                    {"page-size", "128"},
                                                    {"max-model-len", "77"},
                                                    {"attention", "dense"},
                                                    {"attention-epsilon", "0.001"},
                                                    {"max-body", "3MiB"},
                                                    {"step-target-ms", "2.5"},
                                                    {"queue-timeout", "1.5s"},
                                                    {"cors-origins", "http://a,http://b"},
                                                    {"prefix-cache", "off"},
                                                    {"draft", "off"},
                                                    {"metrics-compat", "vllm"},
                                                    {"log-level", "warn"}};
  const ServeConfig config = resolve(given);
  for (const ServeOption& option : serve_options()) {
    if (const auto it = given.find(option.name); it != given.end()) EXPECT_EQ(option.show(config), it->second);
  }
}

TEST(ServeConfig, EveryKvFormatHasAName) {
  for (const DType dtype : kKvDtypes) {
    const std::string name(dtype_name(dtype));
    EXPECT_EQ(resolve({{"kv-dtype", name}}).model.engine.kv_dtype, dtype) << name;
  }
}

TEST(ServeConfig, BadValuesAreNamed) {
  const std::vector<std::pair<std::string, std::string>> bad = {{"port", "65536"},
                                                                {"port", "-1"},
                                                                {"port", "80x"},
                                                                {"port", ""},
                                                                {"threads", "1.5"},
                                                                {"device", "tpu"},
                                                                {"dtype", "fp8"},
                                                                {"kv-dtype", "f8"},
                                                                {"kv-memory", "lots"},
                                                                {"kv-memory", "0"},
                                                                {"kv-memory", "-1GiB"},
                                                                {"page-size", "65"},
                                                                {"page-size", "0"},
                                                                {"max-model-len", "0"},
                                                                {"max-num-seqs", "0"},
                                                                {"attention", "sparse"},
                                                                {"attention-epsilon", "1"},
                                                                {"attention-epsilon", "nan"},
                                                                {"prefix-cache", "maybe"},
                                                                {"step-target-ms", "0"},
                                                                {"queue-timeout", "soon"},
                                                                {"drain-timeout", "-1"},
                                                                {"max-body", "12"},
                                                                {"log-level", "loud"},
                                                                {"log-format", "xml"},
                                                                {"metrics-compat", "tgi"},
                                                                {"api-key-file", "does-not-exist"},
                                                                {"ping-interval", "10ms"},
                                                                {"served-model-name", ""}};
  for (const auto& [name, value] : bad) {
    EXPECT_EQ(refusal({{name, value}}).find("--" + name), 0u)
        << name << "=" << value << ": " << refusal({{name, value}});
    if (value.empty()) continue;  // an empty variable is no variable
    std::string env = "BAM_";
    for (const char c : name) env += c == '-' ? '_' : static_cast<char>(std::toupper(c));
    EXPECT_EQ(refusal({}, {{env, value}}).find(env), 0u) << env << "=" << value;
  }
}

TEST(ServeConfig, BadFilesAreNamed) {
  EXPECT_NE(refusal({}, {}, "{").find("settings.json: not valid JSON"), std::string::npos);
  EXPECT_NE(refusal({}, {}, "[]").find("must hold a JSON object"), std::string::npos);
  EXPECT_NE(refusal({}, {}, R"({"prot": 1})").find("unknown key 'prot'"), std::string::npos);
  EXPECT_NE(refusal({}, {}, R"({"port": 1, "port": 2})").find("'port' appears twice"), std::string::npos);
  EXPECT_EQ(refusal({}, {}, R"({"port": [1]})").find("settings.json: port"), 0u);
  EXPECT_EQ(refusal({}, {}, R"({"port": ["1", "2"]})"), "settings.json: port: must be one value, not a list");
  EXPECT_EQ(refusal({}, {}, R"({"port": "x"})").find("settings.json: port"), 0u);
  EXPECT_NE(refusal({}, {}, R"({"port": {}})").find("settings.json: port"), std::string::npos);
}

TEST(ServeConfig, BadCombinations) {
  EXPECT_NE(refusal({{"tls-cert", "x"}}).find("--tls-key"), std::string::npos);
  EXPECT_NE(refusal({{"tls-cert", "x"}, {"tls-key", "y"}}).find("cannot read x"), std::string::npos);
  EXPECT_NE(refusal({{"max-num-seqs", "100"}, {"max-batched-tokens", "50"}}).find("--max-batched-tokens"),
            std::string::npos);
  EXPECT_NE(refusal({{"api-key", "a"}, {"admin-key", "a"}}).find("--admin-key"), std::string::npos);
}

TEST(ServeConfig, KeysListsAndSecrets) {
  const auto file = std::filesystem::temp_directory_path() / "bam_serve_config_test_keys";
  std::ofstream(file) << "# people\nalice \n\nbob\r\n";
  const GivenFlags flags = {{"api-key", {"one", "two"}}, {"api-key-file", {file.string()}}, {"admin-key", {"root"}}};
  const ServeConfig config =
      resolve_serve_config(flags, environment({}), R"({"cors-origins": ["http://a", "http://b"]})", "settings.json");
  std::filesystem::remove(file);
  EXPECT_EQ(config.server.api_keys, (std::vector<std::string>{"one", "two", "alice", "bob"}));
  EXPECT_EQ(config.server.cors_origins.size(), 2u);
  for (const std::string& text : {config.resolved_json(), config.resolved_line()}) {
    EXPECT_EQ(text.find("one"), std::string::npos) << text;
    EXPECT_EQ(text.find("root"), std::string::npos) << text;
    EXPECT_NE(text.find("***"), std::string::npos) << text;
  }
  EXPECT_TRUE(parse_json(config.resolved_json()).ok());
  EXPECT_EQ(resolve({}, {}, R"({"api-key": ["a", "b"]})").server.api_keys.size(), 2u);
}

// A key that was meant to protect the server and does not must end the start, not open the door.
TEST(ServeConfig, AKeyThatCannotBeOneIsRefused) {
  EXPECT_EQ(refusal({{"api-key", ""}}).find("--api-key: is empty"), 0u);
  EXPECT_EQ(refusal({}, {}, R"({"api-key": ""})").find("settings.json: api-key: is empty"), 0u);
  EXPECT_EQ(refusal({}, {}, R"({"api-key": ["a", ""]})").find("settings.json: api-key: is empty"), 0u);
  for (const char* key : {"one,two", "a b", "a\n", "schl\xc3\xbcssel"}) {
    EXPECT_EQ(refusal({{"api-key", key}}).find("--api-key: "), 0u) << key;
    EXPECT_EQ(refusal({{"admin-key", key}}).find("--admin-key: "), 0u) << key;
    EXPECT_EQ(refusal({}, {{"BAM_API_KEY", key}}).find("BAM_API_KEY: "), 0u) << key;
    EXPECT_EQ(refusal({{"api-key", key}}).find(key), std::string::npos) << "a message shows a secret";
  }
  EXPECT_TRUE(resolve({}, {{"BAM_API_KEY", ""}}).server.api_keys.empty()) << "compose files pass an empty variable";
}

TEST(ServeConfig, TheFolderNamesTheModel) {
  EXPECT_EQ(resolve({{"model", "a/b/my-model/"}}).server.served_model_names.front(), "my-model");
  EXPECT_EQ(resolve({}).server.served_model_names.front(), "demo");
  EXPECT_EQ(resolve({{"served-model-name", "x,y"}}).server.served_model_names.size(), 2u);
}

TEST(ServeConfig, SizesAndTimes) {
  EXPECT_EQ(parse_bytes("8GiB", "o"), 8ull << 30);
  EXPECT_EQ(parse_bytes("1.5 MiB", "o"), 3ull << 19);
  EXPECT_EQ(parse_bytes("2GB", "o"), 2'000'000'000ull);
  EXPECT_EQ(parse_bytes("4096", "o"), 4096ull);
  EXPECT_DOUBLE_EQ(parse_seconds("500ms", "o"), 0.5);
  EXPECT_DOUBLE_EQ(parse_seconds("2m", "o"), 120);
  EXPECT_DOUBLE_EQ(parse_seconds("30", "o"), 30);
  EXPECT_THROW(parse_bytes("8 quarks", "o"), UsageError);
  EXPECT_THROW(parse_bytes("1e30", "o"), UsageError);
  EXPECT_THROW(parse_seconds("inf", "o"), UsageError);
}

TEST(ServeConfig, MistypedNamesGetAHint) {
  EXPECT_NE(refusal({}, {}, R"({"kv_memroy": "1GiB"})").find("did you mean kv-memory?"), std::string::npos);
  const char* environment[] = {"PATH=/bin",      "BAM_KV_MEMROY=1GiB",        "BAM_PORT=1",
                               "BAM_DEMO_DIR=x", "BAM_SERVICE_HOST=10.0.0.1", nullptr};
  EXPECT_EQ(misspelt_variables(environment),
            std::vector<std::string>{"BAM_KV_MEMROY is not a setting; did you mean BAM_KV_MEMORY?"});
}

}  // namespace
}  // namespace bam
