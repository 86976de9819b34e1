// /v1/embeddings of OpenAI and /api/embed of Ollama: the rows behind the model's final norm, pooled and scaled to length 1.
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "models/model_config.h"
#include "server/api/dialect.h"
#include "server/api/dialect_ollama.h"
#include "server/api/handlers.h"

namespace bam {

namespace {

struct EmbeddingOptions {
  Pooling pooling = Pooling::kMean;
  size_t dimensions = 0;  // 0: all
  bool base64 = false;
};

std::string base64(std::string_view bytes) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const std::string_view group = bytes.substr(i, 3);
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (k < group.size() ? static_cast<unsigned char>(group[k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += k <= group.size() ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// The first dimensions, scaled to length 1.
std::vector<float> unit_vector(std::span<const float> values, size_t dimensions) {
  std::vector<float> unit(values.begin(),
                          dimensions == 0 ? values.end() : values.begin() + static_cast<ptrdiff_t>(dimensions));
  double squares = 0;
  for (const float x : unit) squares += double{x} * x;
  if (squares > 0) {
    for (float& x : unit) x = static_cast<float>(x / std::sqrt(squares));
  }
  return unit;
}

// Four bytes for each number: the client turns them into float32 itself.
Json packed(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return base64(bytes);
}

class EmbeddingWriter : public WholeReplyWriter {
 public:
  TextSource reply(std::vector<ChoiceReply> choices, const Usage& usage) override {
    return [this, choices = std::move(choices), usage](std::string& out) {
      out += dump_json(body(choices, usage));
      return false;
    };
  }

 private:
  virtual Json body(const std::vector<ChoiceReply>& choices, const Usage& usage) const = 0;
};

class OpenAiEmbeddings final : public EmbeddingWriter {
 public:
  OpenAiEmbeddings(const ReplyMeta& meta, EmbeddingOptions options) : meta_(meta), options_(options) {}

 private:
  Json body(const std::vector<ChoiceReply>& choices, const Usage& usage) const override {
    Json data = Json::array();
    for (const ChoiceReply& choice : choices) {
      std::vector<float> vector = unit_vector(choice.embedding, options_.dimensions);
      data.push_back({{"object", "embedding"},
                      {"index", choice.index},
                      {"embedding", options_.base64 ? packed(vector) : Json(vector)}});
    }
    return {{"object", "list"},
            {"data", std::move(data)},
            {"model", meta_.model},
            {"usage", {{"prompt_tokens", usage.prompt_tokens}, {"total_tokens", usage.prompt_tokens}}}};
  }

  const ReplyMeta meta_;
  const EmbeddingOptions options_;
};

// Ollama's first form: one text, one vector.
class OllamaEmbedding final : public EmbeddingWriter {
 public:
  OllamaEmbedding(const ReplyMeta&, EmbeddingOptions options) : options_(options) {}

 private:
  Json body(const std::vector<ChoiceReply>& choices, const Usage&) const override {
    return {{"embedding", unit_vector(choices.front().embedding, options_.dimensions)}};
  }

  const EmbeddingOptions options_;
};

class OllamaEmbeddings final : public EmbeddingWriter {
 public:
  OllamaEmbeddings(const ReplyMeta& meta, EmbeddingOptions options) : meta_(meta), options_(options) {}

 private:
  Json body(const std::vector<ChoiceReply>& choices, const Usage& usage) const override {
    Json vectors = Json::array();
    for (const ChoiceReply& choice : choices) vectors.push_back(unit_vector(choice.embedding, options_.dimensions));
    const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - meta_.started).count();
    return {{"model", meta_.model},
            {"embeddings", std::move(vectors)},
            {"total_duration", time},
            {"load_duration", 0},
            {"prompt_eval_count", usage.prompt_tokens}};
  }

  const ReplyMeta meta_;
  const EmbeddingOptions options_;
};

ApiResult<EmbeddingOptions> read_options(const ServingModel& model, Json& body) {
  EmbeddingOptions options;
  FieldReader in(body);
  static constexpr std::pair<std::string_view, Pooling> kPoolings[] = {{"mean", Pooling::kMean},
                                                                       {"last", Pooling::kLast}};
  static constexpr std::pair<std::string_view, bool> kFormats[] = {{"float", false}, {"base64", true}};
  options.pooling = in.choice<Pooling>("pooling", kPoolings).value_or(Pooling::kMean);
  options.base64 = in.choice<bool>("encoding_format", kFormats).value_or(false);
  options.dimensions =
      static_cast<size_t>(in.integer("dimensions", 1, model.engine.model_config().hidden_size).value_or(0));
  if (in.ok() && !in.has("input")) in.fail("input", "'input' is missing.");
  if (!in.ok()) return ApiError::invalid(in.error());
  rename(body, "input", "prompt");
  for (const char* key :
       {"pooling", "encoding_format", "dimensions", "stream", "max_tokens", "n", "echo", "logprobs", "prompt_logprobs"})
    body.erase(key);
  // The token behind the prompt is computed for nothing but its row.
  body["max_tokens"] = 1;
  return options;
}

template <typename Writer>
void start_embeddings(ServerContext& context, CallPtr call, Json body) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  auto options = read_options(model, body);
  if (!options) return call->reply(options.error());
  start_dialect(
      context, std::move(call), body, ApiKind::kCompletion,
      {.id_prefix = "embd-",
       .make_writer = [options = *options](const ReplyMeta& meta) { return std::make_unique<Writer>(meta, options); },
       .pooling = options->pooling,
       .renamed = {{"prompt", "input"}}});
}

}  // namespace

void handle_embeddings(ServerContext& context, CallPtr call) {
  if (auto body = read_body(*call)) start_embeddings<OpenAiEmbeddings>(context, std::move(call), *std::move(body));
}

void handle_ollama_embed(ServerContext& context, CallPtr call) {
  auto body = read_body(*call);
  if (!body) return;
  if (const auto error = translate_ollama(*body)) return call->reply(*error);
  if (const auto input = body->find("input"); input != body->end() && input->is_array() && input->empty()) {
    // Who asks for nothing wants the model loaded.
    return call->reply_json(dump_json({{"model", context.config.served_model_names.front()},
                                       {"embeddings", Json::array()},
                                       {"total_duration", 0},
                                       {"load_duration", 0},
                                       {"prompt_eval_count", 0}}));
  }
  if (const Json truncate = take(*body, "truncate"); truncate != false) (*body)["truncate_prompt_tokens"] = -1;
  start_embeddings<OllamaEmbeddings>(context, std::move(call), *std::move(body));
}

void handle_ollama_embedding(ServerContext& context, CallPtr call) {
  auto body = read_body(*call);
  if (!body) return;
  if (const auto error = translate_ollama(*body)) return call->reply(*error);
  Json prompt = take(*body, "prompt");
  if (!prompt.is_string()) return call->reply(ApiError::invalid("'prompt' must be a text.", "prompt"));
  if (prompt == "") return call->reply_json(R"({"embedding":[]})");
  (*body)["input"] = std::move(prompt);
  (*body)["truncate_prompt_tokens"] = -1;
  start_embeddings<OllamaEmbedding>(context, std::move(call), *std::move(body));
}

}  // namespace bam
