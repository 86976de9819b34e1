#include "models/model_config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/temp_dir.h"

namespace bam {
namespace {

using nlohmann::json;
using testing::TempDir;
using testing::tiny_config;
using testing::write_file;

// The keys without which there is no model.
json minimal() {
  return {{"model_type", "bam"},       {"hidden_size", 768},  {"intermediate_size", 1536}, {"num_hidden_layers", 12},
          {"num_attention_heads", 16}, {"vocab_size", 32768}, {"position_encoding", "bam"}};
}

ModelConfig parse(const json& config) { return parse_model_config(config.dump(), "config.json"); }

std::string failure(const std::string& text) {
  try {
    parse_model_config(text, "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(ModelConfig, Defaults) {
  const ModelConfig config = parse(minimal());
  EXPECT_EQ(config.hidden_size, 768);
  EXPECT_EQ(config.intermediate_size, 1536);
  EXPECT_EQ(config.num_layers, 12);
  EXPECT_EQ(config.num_heads, 16);
  EXPECT_EQ(config.num_kv_heads, 16);
  EXPECT_EQ(config.head_dim, 48);
  EXPECT_EQ(config.vocab_size, 32768);
  EXPECT_EQ(config.rms_norm_eps, 1e-5f);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.max_position_embeddings, 0);
  EXPECT_EQ(config.position_encoding, PositionEncoding::kBam);
  EXPECT_FALSE(config.ssmax);
  EXPECT_TRUE(config.ssmax_prior);
  EXPECT_EQ(config.prior_form, PriorForm::kScaleInside);
  EXPECT_EQ(config.prior_scope, PriorScope::kLayer);
  EXPECT_EQ(config.prior_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 500000.0);
  EXPECT_EQ(config.rope_style, RopeStyle::kInterleaved);
  EXPECT_EQ(config.sliding_window, -1);
  EXPECT_EQ(config.sinusoidal_theta, 10000.0);
  EXPECT_EQ(config.bos_token_id, -1);
  EXPECT_TRUE(config.eos_token_ids.empty());
  EXPECT_EQ(config.torch_dtype, DType::kF32);
}

TEST(ModelConfig, PriorFormFollowsSsmaxUnlessGiven) {
  json config = minimal();
  config["ssmax"] = true;
  EXPECT_EQ(parse(config).prior_form, PriorForm::kScaleOutside);
  config["prior_form"] = "scale_inside";
  EXPECT_EQ(parse(config).prior_form, PriorForm::kScaleInside);
  config["ssmax"] = false;
  config["prior_form"] = "scale_outside";
  EXPECT_EQ(parse(config).prior_form, PriorForm::kScaleOutside);
}

// Every field, written and read back with values that are not defaults.
TEST(ModelConfig, RoundTrip) {
  ModelConfig config = tiny_config(PositionEncoding::kRopeLocal, true);
  config.num_kv_heads = 2;
  config.head_dim = 24;
  config.rms_norm_eps = 1e-6f;
  config.tie_word_embeddings = true;
  config.max_position_embeddings = 2048;
  config.ssmax_prior = false;
  config.prior_form = PriorForm::kScaleInside;
  config.prior_scope = PriorScope::kGlobal;
  config.prior_eps = 1e-4;
  config.rope_theta = 25e6;
  config.rope_style = RopeStyle::kRotateHalf;
  config.sliding_window = 77;
  config.sinusoidal_theta = 20000;
  config.relative_buckets = 48;
  config.relative_max_distance = 333;
  config.bos_token_id = 3;
  config.eos_token_ids = {5, 2};
  config.torch_dtype = DType::kBF16;
  const ModelConfig read = parse_model_config(testing::model_config_json(config), "config.json");
  EXPECT_EQ(testing::model_config_json(read), testing::model_config_json(config));
  EXPECT_EQ(read.num_kv_heads, 2);
  EXPECT_EQ(read.head_dim, 24);
  EXPECT_EQ(read.rms_norm_eps, 1e-6f);
  EXPECT_EQ(read.sliding_window, 77);
  EXPECT_EQ(read.rope_style, RopeStyle::kRotateHalf);
  EXPECT_EQ(read.eos_token_ids, (std::vector<int32_t>{5, 2}));
  EXPECT_EQ(read.torch_dtype, DType::kBF16);
}

TEST(ModelConfig, EveryPositionEncoding) {
  for (const char* name : {"bam", "alibi", "nope", "rope", "rope_local", "sinusoidal", "t5"}) {
    json config = minimal();
    config["position_encoding"] = name;
    config["sliding_window"] = 512;
    const ModelConfig read = parse(config);
    EXPECT_EQ(position_encoding_name(read.position_encoding), name);
    EXPECT_EQ(read.sliding_window, read.position_encoding == PositionEncoding::kRopeLocal ? 512 : -1);
  }
}

TEST(ModelConfig, NullAndUnknownKeysAreAbsent) {
  json config = minimal();
  for (const char* key : {"num_key_value_heads", "head_dim", "sliding_window", "eos_token_id", "torch_dtype"}) {
    config[key] = nullptr;
  }
  config["architectures"] = {"BamForCausalLM"};
  config["initializer_range"] = 0.02;
  config["num_hidden_layers"] = 12.0;  // JSON knows one kind of number
  EXPECT_EQ(parse(config).head_dim, 48);
}

TEST(ModelConfig, EosOneOrMany) {
  json config = minimal();
  config["eos_token_id"] = 2;
  EXPECT_EQ(parse(config).eos_token_ids, (std::vector<int32_t>{2}));
  config["eos_token_id"] = {2, 7, 2};
  EXPECT_EQ(parse(config).eos_token_ids, (std::vector<int32_t>{2, 7}));
}

struct BadKey {
  const char* key;
  json value;  // discarded: the key is removed
  const char* message;
};

TEST(ModelConfig, BadValuesAreNamed) {
  const json absent(json::value_t::discarded);
  const std::vector<BadKey> cases = {
      {"num_hidden_layers", "twelve", "'num_hidden_layers' must be an integer between 1 and 4096, got \"twelve\""},
      {"num_hidden_layers", absent, "'num_hidden_layers' is missing"},
      {"num_hidden_layers", 0, "must be an integer between 1 and 4096, got 0"},
      {"num_hidden_layers", -3, "must be an integer between 1 and 4096, got -3"},
      {"num_hidden_layers", 12.5, "must be an integer between 1 and 4096, got 12.5"},
      {"num_hidden_layers", true, "must be an integer between 1 and 4096, got true"},
      {"num_hidden_layers", {12}, "must be an integer between 1 and 4096, got [12]"},
      {"num_hidden_layers", 5000, "must be an integer between 1 and 4096, got 5000"},
      {"hidden_size", absent, "'hidden_size' is missing"},
      {"hidden_size", 1 << 21, "must be an integer between 1 and 1048576"},
      {"hidden_size", 18446744073709551615u, "must be an integer between 1 and 1048576"},
      {"hidden_size", 770, "'head_dim' is missing, and hidden_size (770) is not a multiple"},
      {"intermediate_size", absent, "'intermediate_size' is missing"},
      {"intermediate_size", 1ll << 40, "must be an integer between 1 and 1048576"},
      {"num_attention_heads", absent, "'num_attention_heads' is missing"},
      {"num_key_value_heads", 5, "'num_attention_heads' (16) must be a multiple of num_key_value_heads (5)"},
      {"num_key_value_heads", 32, "must be a multiple"},
      {"num_key_value_heads", 0, "must be an integer between 1 and 1048576, got 0"},
      {"head_dim", 1 << 17, "times num_attention_heads (16) must be at most 1048576"},
      {"head_dim", "48", "'head_dim' must be an integer between 1 and 1048576, got \"48\""},
      {"vocab_size", absent, "'vocab_size' is missing"},
      {"vocab_size", (1 << 24) + 1, "must be an integer between 1 and 16777216"},
      {"rms_norm_eps", 0, "'rms_norm_eps' must be a positive number of at most 1, got 0"},
      {"rms_norm_eps", -1e-5, "must be a positive number of at most 1"},
      {"rms_norm_eps", "1e-5", "must be a positive number of at most 1, got \"1e-5\""},
      {"rms_norm_eps", 1e-60, "is too small for float32"},
      {"rms_norm_eps", 2.5, "must be a positive number of at most 1, got"},
      {"tie_word_embeddings", 1, "'tie_word_embeddings' must be true or false, got 1"},
      {"max_position_embeddings", -1,
       "'max_position_embeddings' must be an integer between 1 and 1099511627776, got -1"},
      {"model_type", "llama", "'model_type' must be \"bam\", got \"llama\""},
      {"model_type", absent, "'model_type' is missing"},
      {"position_encoding", absent, "'position_encoding' is missing"},
      {"position_encoding", "bam_ssmax",
       "must be one of \"bam\", \"alibi\", \"nope\", \"rope\", \"rope_local\", \"sinusoidal\", \"t5\", got "
       "\"bam_ssmax\""},
      {"position_encoding", 3, "must be one of"},
      {"position_encoding", "rope_local", "'sliding_window' is missing: position_encoding \"rope_local\" needs it"},
      {"ssmax", "yes", "'ssmax' must be true or false"},
      {"ssmax_prior", 0, "'ssmax_prior' must be true or false"},
      {"prior_form", "inside", "must be one of \"scale_outside\", \"scale_inside\", got \"inside\""},
      {"prior_scope", "head", "must be one of \"layer\", \"global\", got \"head\""},
      {"prior_eps", 0, "'prior_eps' must be a positive number of at most 1"},
      {"prior_eps", 3, "must be a positive number of at most 1, got"},
      {"rope_theta", -5, "'rope_theta' must be a positive number"},
      {"rope_theta", json::object(), "must be a positive number of at most 1000000000000000, got {}"},
      {"rope_style", "neox", "must be one of \"interleaved\", \"rotate_half\", got \"neox\""},
      {"sliding_window", 0, "'sliding_window' must be an integer between 1 and 1099511627776, got 0"},
      {"sliding_window", "all", "'sliding_window' must be an integer between 1 and 1099511627776, got \"all\""},
      {"relative_attention_num_buckets", 1, "must be an integer between 2 and 256, got 1"},
      {"relative_attention_num_buckets", 257, "must be an integer between 2 and 256"},
      {"relative_attention_max_distance", 16, "(16) must be more than half of relative_attention_num_buckets (32)"},
      {"sinusoidal_theta", 0, "'sinusoidal_theta' must be a positive number"},
      {"bos_token_id", -1, "'bos_token_id' must be a token id or a list of them, got -1"},
      {"bos_token_id", 32768, "'bos_token_id' is 32768, but vocab_size is 32768"},
      {"eos_token_id", {2, "x"}, "'eos_token_id' must be a token id or a list of them, got \"x\""},
      {"eos_token_id", {2, 40000}, "'eos_token_id' is 40000, but vocab_size is 32768"},
      {"eos_token_id", 2.5, "must be a token id or a list of them, got 2.5"},
      {"torch_dtype", "int8", "must be one of \"float32\", \"float16\", \"bfloat16\", \"int4\", got \"int8\""},
  };
  for (const BadKey& bad : cases) {
    json config = minimal();
    if (bad.value.is_discarded()) {
      config.erase(bad.key);
    } else {
      config[bad.key] = bad.value;
    }
    const std::string message = failure(config.dump());
    EXPECT_NE(message.find(bad.message), std::string::npos) << bad.key << "\n  got: " << message;
    EXPECT_TRUE(message.starts_with("config.json: ")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(ModelConfig, RotaryNeedsAnEvenHead) {
  json config = minimal();
  config["head_dim"] = 47;
  EXPECT_EQ(parse(config).head_dim, 47);
  config["position_encoding"] = "rope";
  EXPECT_NE(failure(config.dump()).find("'head_dim' must be even for rotary positions, got 47"), std::string::npos);
}

TEST(ModelConfig, NotTheJsonItShouldBe) {
  EXPECT_NE(failure("").find("config.json: not valid JSON"), std::string::npos);
  EXPECT_NE(failure("[]").find("config.json: must be a JSON object"), std::string::npos);
  EXPECT_NE(failure("{\"hidden_size\": NaN}").find("not valid JSON"), std::string::npos);
  EXPECT_NE(failure("{\"rope_theta\": 1e999}").find("not valid JSON"), std::string::npos);
  EXPECT_NE(failure("{\"a\": 1, \"a\": 2}").find("key 'a' appears twice"), std::string::npos);
  EXPECT_NE(failure("{\"a\": {\"b\": 1, \"b\": 2}}").find("key 'b' appears twice"), std::string::npos);
  EXPECT_NE(failure(std::string("{}\0", 3)).find("NUL byte"), std::string::npos);
  EXPECT_NE(failure("{\"a\":" + std::string(100'000, '[')).find("nested deeper than 32 levels"), std::string::npos);
  EXPECT_NE(failure(std::string(2 << 20, ' ')).find("the limit is 1048576"), std::string::npos);
}

TEST(ModelConfig, LoadNamesFolderAndFile) {
  const auto load_failure = [](const std::filesystem::path& dir) -> std::string {
    try {
      load_model_config(dir);
    } catch (const Error& error) {
      return error.what();
    }
    return "(no error)";
  };
  EXPECT_EQ(load_failure("/no/such/folder"), "/no/such/folder: no such checkpoint folder");
  TempDir dir;
  EXPECT_EQ(load_failure(dir.path()), (dir / "config.json").string() + ": cannot open: No such file or directory");
  write_file(dir / "config.json", "{}");
  EXPECT_EQ(load_failure(dir.path()), (dir / "config.json").string() + ": 'model_type' is missing");
  write_file(dir / "config.json", minimal().dump());
  EXPECT_EQ(load_model_config(dir.path()).num_layers, 12);
}

// The paper's table: embedding and remaining parameters in millions.
TEST(ModelConfig, ParameterCountsOfThePaper) {
  json config = minimal();
  config["ssmax"] = true;
  const ModelConfig small = parse(config);
  EXPECT_EQ(small.num_embedding_parameters(), 25165824);
  // 12 layers of 4 * 768^2 + 3 * 768 * 1536 + 2 * 768 + 4 * 16, final norm, untied head.
  EXPECT_EQ(small.num_parameters_without_embedding(),
            12 * (4 * 768 * 768 + 3 * 768 * 1536 + 2 * 768 + 4 * 16) + 768 + 32768 * 768);
  config["prior_scope"] = "global";
  config["tie_word_embeddings"] = true;
  EXPECT_EQ(parse(config).num_parameters_without_embedding(),
            12 * (4 * 768 * 768 + 3 * 768 * 1536 + 2 * 768 + 16) + 3 * 16 + 768);
}

}  // namespace
}  // namespace bam
