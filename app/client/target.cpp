#include "app/client/target.h"

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <unordered_map>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "app/client/passkey_prompt.h"
#include "app/units.h"
#include "base/error.h"
#include "models/tokenizer.h"

namespace bam::client {
namespace {

using nlohmann::json;

std::optional<TokenIds> ids_of(const json& body) {
  if (!body.is_object() || !body.contains("tokens") || !body["tokens"].is_array()) return std::nullopt;
  TokenIds ids;
  ids.reserve(body["tokens"].size());
  for (const json& token : body["tokens"]) {
    if (!token.is_number_integer()) return std::nullopt;
    ids.push_back(token.get<int32_t>());
  }
  return ids;
}

enum class TokenizeShape { kVllm, kLlamaCpp };

json tokenize_body(TokenizeShape shape, std::string_view text, const std::string& model) {
  if (shape == TokenizeShape::kVllm) {
    return {{"model", model}, {"prompt", text}, {"add_special_tokens", false}};
  }
  return {{"content", text}, {"add_special", false}, {"parse_special", false}};
}

class RemoteTokens : public TokenSource {
 public:
  RemoteTokens(Target& target, TokenizeShape shape) : target_(target), shape_(shape) {}

  static std::optional<TokenIds> try_encode(Target& target, TokenizeShape shape, std::string_view text,
                                            std::string* error) {
    const HttpResponse response =
        target.session().post(target.url() + "/tokenize", tokenize_body(shape, text, target.model()).dump(), 120);
    if (!response.ok()) {
      *error = response.error.empty() ? error_text(response.status, response.body) : response.error;
      return std::nullopt;
    }
    std::optional<TokenIds> ids = ids_of(json::parse(response.body, nullptr, false));
    if (!ids) *error = "the answer has no list of token ids";
    return ids;
  }

  TokenIds encode(std::string_view text) override {
    const std::string key(text);
    if (const auto known = cache_.find(key); known != cache_.end()) return known->second;
    std::string error;
    std::optional<TokenIds> ids = try_encode(target_, shape_, text, &error);
    if (!ids) throw Error("{}/tokenize: {}", target_.url(), error);
    if (cache_.size() < kMaxCached && text.size() < 1024) cache_.emplace(key, *ids);
    return *std::move(ids);
  }
  std::string name() const override { return "server /tokenize"; }

 private:
  static constexpr size_t kMaxCached = 16384;
  std::unordered_map<std::string, TokenIds> cache_;  // the same few pieces come up in every prompt
  Target& target_;
  TokenizeShape shape_;
};

class LocalTokens : public TokenSource {
 public:
  explicit LocalTokens(const std::string& path) : path_(path) {
    namespace fs = std::filesystem;
    if (fs::is_directory(path)) {
      tokenizer_ = Tokenizer::load(path);
      return;
    }
    if (!fs::is_regular_file(path)) throw UsageError("--tokenizer: {} does not exist", path);
    // The loader wants a folder: show it the file under the name it looks for.
    std::string pattern = (fs::temp_directory_path() / "bam-tokenizer-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw Error("cannot create {}", pattern);
    std::error_code error;
    fs::create_symlink(fs::absolute(path), fs::path(pattern) / "tokenizer.model", error);
    try {
      tokenizer_ = Tokenizer::load(pattern);
    } catch (...) {
      fs::remove_all(pattern, error);
      throw;
    }
    fs::remove_all(pattern, error);
  }

  TokenIds encode(std::string_view text) override { return tokenizer_->encode(text, false); }
  std::string name() const override { return "local " + path_; }

 private:
  std::string path_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace

std::string default_api_key() {
  for (const char* name : {"BAM_API_KEY", "OPENAI_API_KEY"}) {
    if (const char* value = std::getenv(name); value != nullptr && *value != 0) return value;
  }
  return {};
}

void add_target_options(CLI::App& app, TargetOptions* options) {
  options->api_key = default_api_key();
  app.add_option("-u,--url", options->url, "Server, with or without /v1")->capture_default_str();
  app.add_option("-m,--model", options->model, "Model name (default: the first of /v1/models)");
  app.add_option("--api-key", options->api_key, "Bearer key (default: $BAM_API_KEY, $OPENAI_API_KEY)");
  app.add_option("--header", options->headers, "Extra header \"Name: value\"; may be repeated");
  app.add_option("--tokenizer", options->tokenizer,
                 "Checkpoint folder or sentencepiece file (default: the server's /tokenize)");
  app.add_option("--timeout", options->timeout_s, "Seconds per request; 0 = none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--insecure", options->insecure, "Do not verify the server's TLS certificate");
}

Target::Target(TargetOptions options) : options_(std::move(options)), session_(http_settings()) {
  root_ = options_.url;
  if (root_.empty() || root_.find_first_of(" \t\r\n") != root_.npos) {
    throw UsageError("--url: '{}' is not a URL", options_.url);
  }
  if (root_.find("://") == root_.npos) root_ = "http://" + root_;
  if (!root_.starts_with("http://") && !root_.starts_with("https://")) {
    throw UsageError("--url: '{}' is not an http or https URL", options_.url);
  }
  while (root_.ends_with('/')) root_.pop_back();
  if (root_.ends_with("/v1")) root_.resize(root_.size() - 3);
  api_ = root_ + "/v1";
}

HttpSettings Target::http_settings() const {
  HttpSettings settings;
  settings.headers = options_.headers;
  if (!options_.api_key.empty()) settings.headers.push_back("Authorization: Bearer " + options_.api_key);
  settings.verify_tls = !options_.insecure;
  return settings;
}

std::string Target::endpoint_url(Endpoint endpoint) const {
  return api_ + (endpoint == Endpoint::kChat ? "/chat/completions" : "/completions");
}

void Target::connect() {
  const HttpResponse models = session_.get(api_ + "/models", 30);
  if (!models.error.empty()) throw Error("no server at {}: {}", root_, models.error);
  if (models.status == 401 || models.status == 403) {
    throw Error("{} wants an API key (--api-key): {}", root_, error_text(models.status, models.body));
  }
  const json list = json::parse(models.body, nullptr, false);
  const bool has_models = models.ok() && list.is_object() && list.contains("data") && list["data"].is_array() &&
                          !list["data"].empty() && list["data"][0].is_object();
  if (has_models) {
    const json owner = list["data"][0].value("owned_by", json());
    const json context = list["data"][0].value("max_model_len", json());
    if (context.is_number_integer()) context_ = context.get<int64_t>();
    const json meta = list["data"][0].value("meta", json());
    const json trained = meta.is_object() ? meta.value("training_context", json()) : json();
    if (trained.is_number_integer()) training_context_ = trained.get<int64_t>();
    reports_progress_ = owner == "bam" || owner == "llamacpp";
  }
  if (options_.model.empty()) {
    if (has_models) options_.model = list["data"][0].value("id", "");
    if (list.is_discarded()) {
      throw Error("{} is no OpenAI-compatible server: {}/models answers HTTP {} without JSON", root_, api_,
                  models.status);
    }
    if (options_.model.empty()) {
      throw Error("{}/models names no model ({}): give one with --model", api_,
                  models.ok() ? "empty list" : error_text(models.status, models.body));
    }
  }
  const HttpResponse version = session_.get(root_ + "/version", 10);
  if (!version.ok()) return;
  const json body = json::parse(version.body, nullptr, false);
  if (body.is_object() && body.contains("version") && body["version"].is_string()) {
    const std::string name =
        body.contains("name") && body["name"].is_string() ? body["name"].get<std::string>() + " " : std::string();
    server_name_ = name + body["version"].get<std::string>();
  }
}

json Target::describe() const {
  json description = {{"url", root_}, {"model", options_.model}};
  if (!server_name_.empty()) description["server"] = server_name_;
  if (training_context_) description["training_context"] = *training_context_;
  return description;
}

json Target::complete(const json& body, Endpoint endpoint, double timeout_s) {
  const HttpResponse response = session_.post(endpoint_url(endpoint), body.dump(), timeout_s);
  if (!response.error.empty()) throw Error("{}: {}", endpoint_url(endpoint), response.error);
  if (!response.ok()) throw Error("{}", error_text(response.status, response.body));
  json parsed = json::parse(response.body, nullptr, false);
  if (!parsed.is_object()) throw Error("{}: the answer is not JSON", endpoint_url(endpoint));
  return parsed;
}

std::optional<double> parse_resident_bytes(std::string_view metrics) {
  constexpr std::string_view kName = "process_resident_memory_bytes";
  size_t at = 0;
  while ((at = metrics.find(kName, at)) != metrics.npos) {
    const bool line_start = at == 0 || metrics[at - 1] == '\n';
    at += kName.size();
    if (!line_start) continue;
    const size_t end = std::min(metrics.find('\n', at), metrics.size());
    std::string_view line = metrics.substr(at, end - at);
    if (line.starts_with('{')) line.remove_prefix(std::min(line.find('}') + 1, line.size()));
    const size_t digits = line.find_first_not_of(' ');
    if (digits == line.npos) continue;
    double value = 0;
    if (std::from_chars(line.data() + digits, line.data() + line.size(), value).ec == std::errc()) {
      return value;
    }
  }
  return std::nullopt;
}

std::optional<double> Target::resident_bytes() {
  const HttpResponse response = session_.get(root_ + "/metrics", 10);
  return response.ok() ? parse_resident_bytes(response.body) : std::nullopt;
}

std::unique_ptr<TokenSource> open_token_source(Target& target, const TargetOptions& options) {
  if (!options.tokenizer.empty()) return std::make_unique<LocalTokens>(options.tokenizer);
  for (const TokenizeShape shape : {TokenizeShape::kVllm, TokenizeShape::kLlamaCpp}) {
    std::string error;
    // llama.cpp answers the other shape with an empty list instead of an error.
    const auto ids = RemoteTokens::try_encode(target, shape, "The grass is green.", &error);
    if (ids && !ids->empty()) return std::make_unique<RemoteTokens>(target, shape);
  }
  return nullptr;
}

double measure_tokens_per_word(Target& target, Endpoint endpoint) {
  constexpr int kRepeats = 20;
  std::string text;
  for (int i = 0; i < kRepeats; ++i) {
    text += std::string(i > 0 ? " " : "") + std::string(PasskeyWording::kFiller);
  }
  json body = {{"model", target.model()}, {"max_tokens", 1}, {"temperature", 0}};
  if (endpoint == Endpoint::kChat) {
    body["messages"] = json::array({{{"role", "user"}, {"content", text}}});
  } else {
    body["prompt"] = text;
  }
  const json reply = target.complete(body, endpoint, 300);
  const auto usage = reply.find("usage");
  if (usage == reply.end() || !usage->is_object() || !usage->contains("prompt_tokens") ||
      !(*usage)["prompt_tokens"].is_number()) {
    throw Error("the server reports no usage: give its tokenizer with --tokenizer");
  }
  const auto words = static_cast<double>(WordVocabulary().encode(text).size());
  return std::max((*usage)["prompt_tokens"].get<double>() / words, 0.1);
}

IdSupport probe_id_prompts(Target& target, const TokenIds& ids) {
  IdSupport support;
  try {
    const json reply =
        target.complete({{"model", target.model()}, {"prompt", ids}, {"max_tokens", 1}, {"temperature", 0}},
                        Endpoint::kCompletions, 120);
    support.accepted = true;
    const auto usage = reply.find("usage");
    if (usage != reply.end() && usage->is_object() && usage->contains("prompt_tokens") &&
        (*usage)["prompt_tokens"].is_number_integer()) {
      support.added_tokens = (*usage)["prompt_tokens"].get<int64_t>() - static_cast<int64_t>(ids.size());
    }
  } catch (const Error& error) {
    support.reason = error.what();
  }
  return support;
}

}  // namespace bam::client
