#include "app/serve_config.h"

#include <filesystem>
#include <fstream>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"

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
  return resolve_serve_config(flags, environment(env), file, "settings.json");
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
                           "kv-dtype",
                           "kv-memory",
                           "page-size",
                           "max-model-len",
                           "max-num-seqs",
                           "max-batched-tokens",
                           "step-target-ms",
                           "attention",
                           "attention-epsilon",
                           "prefix-cache",
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

// A default's text must mean what the struct holds without it.
TEST(ServeConfig, TheDefaultsInTheTableAreTheDefaults) {
  const ServeConfig plain = resolve({});
  for (const ServeOption& option : serve_options()) {
    if (option.fallback.empty() || option.name == "served-model-name") continue;
    const ServeConfig spelled = resolve({{option.name, option.fallback}});
    EXPECT_EQ(spelled.server.port, plain.server.port) << option.name;
    EXPECT_EQ(spelled.server.max_body_bytes, plain.server.max_body_bytes);
    EXPECT_EQ(spelled.server.max_unsent_bytes, plain.server.max_unsent_bytes);
    EXPECT_EQ(spelled.server.max_connections, plain.server.max_connections);
    EXPECT_EQ(spelled.server.io_threads, plain.server.io_threads);
    EXPECT_EQ(spelled.server.drain_timeout_s, plain.server.drain_timeout_s);
    EXPECT_EQ(spelled.server.read_timeout_s, plain.server.read_timeout_s);
    EXPECT_EQ(spelled.server.idle_timeout_s, plain.server.idle_timeout_s);
    EXPECT_EQ(spelled.server.stall_timeout_s, plain.server.stall_timeout_s);
    EXPECT_EQ(spelled.server.ping_interval_s, plain.server.ping_interval_s);
    EXPECT_EQ(spelled.model.engine.kv_dtype, plain.model.engine.kv_dtype);
    EXPECT_EQ(spelled.model.engine.kv_memory_bytes, plain.model.engine.kv_memory_bytes);
    EXPECT_EQ(spelled.model.engine.page_size, plain.model.engine.page_size);
    EXPECT_EQ(spelled.model.engine.max_model_len, plain.model.engine.max_model_len);
    EXPECT_EQ(spelled.model.engine.max_batched_tokens, plain.model.engine.max_batched_tokens);
    EXPECT_EQ(spelled.model.engine.max_queued_tokens, plain.model.engine.max_queued_tokens);
    EXPECT_EQ(spelled.model.engine.step_target_ms, plain.model.engine.step_target_ms);
    EXPECT_NEAR(spelled.model.attention_epsilon, plain.model.attention_epsilon, 1e-10);
    EXPECT_EQ(spelled.model.certified_attention, plain.model.certified_attention);
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
    std::string env = "BAM_";
    for (const char c : name) env += c == '-' ? '_' : static_cast<char>(std::toupper(c));
    EXPECT_EQ(refusal({}, {{env, value}}).find(env), 0u) << env << "=" << value;
  }
}

TEST(ServeConfig, BadFilesAreNamed) {
  EXPECT_NE(refusal({}, {}, "{").find("settings.json is not valid JSON"), std::string::npos);
  EXPECT_NE(refusal({}, {}, "[]").find("must hold a JSON object"), std::string::npos);
  EXPECT_NE(refusal({}, {}, R"({"prot": 1})").find("unknown key 'prot'"), std::string::npos);
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
  const ServeConfig config = resolve({{"api-key", "one,two"}, {"api-key-file", file.string()}, {"admin-key", "root"}},
                                     {}, R"({"cors-origins": ["http://a", "http://b"]})");
  std::filesystem::remove(file);
  EXPECT_EQ(config.server.api_keys, (std::vector<std::string>{"one", "two", "alice", "bob"}));
  EXPECT_EQ(config.server.cors_origins.size(), 2u);
  for (const std::string& text : {config.resolved_json(), config.resolved_line()}) {
    EXPECT_EQ(text.find("one"), std::string::npos) << text;
    EXPECT_EQ(text.find("root"), std::string::npos) << text;
    EXPECT_NE(text.find("***"), std::string::npos) << text;
  }
  EXPECT_NO_THROW(nlohmann::json::parse(config.resolved_json()));
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

}  // namespace
}  // namespace bam
