// Ollama's /api: https://github.com/ollama/ollama/blob/main/docs/api.md
#include <algorithm>
#include <ctime>
#include <utility>

#include <fmt/format.h>

#include "models/model_config.h"
#include "server/api/dialect.h"
#include "server/api/dialect_ollama.h"
#include "server/api/handlers.h"
#include "server/api/prepare.h"

namespace bam {

namespace {

int64_t nanoseconds(Clock::duration time) { return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count(); }

// "demo:latest" is "demo".
void translate_model(Json& body) {
  const auto model = body.find("model");
  if (model == body.end() || !model->is_string()) return;
  std::string& name = model->get_ref<std::string&>();
  if (name.ends_with(":latest")) name.resize(name.size() - std::string_view(":latest").size());
}

// `options` move up, under the names that this server has for them.
std::optional<ApiError> translate_options(Json& body) {
  Json options = take(body, "options");
  if (options.is_null()) return std::nullopt;
  if (!options.is_object()) return ApiError::invalid("'options' must be an object.", "options");
  // How Ollama should run a model is decided here by the server's flags.
  for (const char* key : {"num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "use_mmap",
                          "use_mlock", "numa", "low_vram", "f16_kv", "vocab_only"}) {
    options.erase(key);
  }
  Json limit = take(options, "num_predict");
  // −1 and 0: until the model stops, −2: until the context is full.
  if (limit.is_number() && limit <= 0) {
    limit = Json();
  } else if (!limit.is_null()) {
    body["max_tokens"] = std::move(limit);
  }
  for (const auto& [key, value] : options.items()) {
    if (body.contains(key) && body[key] != value) {
      return ApiError::invalid(fmt::format("'options.{}' and '{}' disagree.", key, key), "options." + key);
    }
    body[key] = value;
  }
  return std::nullopt;
}

std::optional<ApiError> format_from_ollama(Json& body) {
  Json format = take(body, "format");
  if (format.is_null() || format == "") return std::nullopt;
  if (format == "json") return set_response_format(body, {{"type", "json_object"}}, "format");
  if (!format.is_object()) return ApiError::invalid("'format' must be \"json\" or a JSON schema.", "format");
  return set_response_format(body, {{"type", "json_schema"}, {"json_schema", {{"schema", std::move(format)}}}},
                             "format");
}

// Ollama's calls have no ids and no types, and a tool's answer names the tool.
std::optional<ApiError> messages_from_ollama(Json& body) {
  const auto messages = body.find("messages");
  if (messages == body.end() || !messages->is_array()) return std::nullopt;  // the parser says what is wrong
  for (size_t i = 0; i < messages->size(); ++i) {
    Json& message = (*messages)[i];
    if (!message.is_object()) continue;
    if (Json images = take(message, "images"); images.is_array() && !images.empty()) {
      return ApiError::invalid(fmt::format("'messages[{}].images': this model reads text only.", i),
                               fmt::format("messages[{}].images", i));
    }
    message.erase("thinking");
    rename(message, "tool_name", "name");
  }
  return std::nullopt;
}

class OllamaWriter final : public ReplyWriter {
 public:
  // num_top: alternatives of every token's log-probability, if these are asked for.
  OllamaWriter(const Tokenizer& tokenizer, const ReplyMeta& meta, bool chat, std::optional<size_t> num_top)
      : tokenizer_(tokenizer), meta_(meta), chat_(chat), num_top_(num_top), first_(meta.first_token) {}

  const char* stream_type() const override { return "application/x-ndjson"; }
  std::string begin(int32_t, const Usage&) override {
    first_ = Clock::now();
    return {};
  }

  std::string delta(int32_t, const ChoiceDelta& delta, const Usage&, const std::vector<int32_t>*) override {
    std::string out;
    if (!delta.text.empty() || (num_top_ && !delta.tokens.empty())) out += line(content(delta.text, {}, delta.tokens));
    // Arguments are an object here, so a call is told when it is whole.
    for (const ToolCallDelta& call : delta.tool_calls) {
      if (!call.name.empty() && !calling_.name.empty()) out += whole_call();
      if (!call.name.empty()) calling_ = call;
      if (call.name.empty()) calling_.arguments += call.arguments;
    }
    return out;
  }

  std::string finish(int32_t, const char* reason, const StopReason&, const Usage&) override {
    reason_ = reason;
    return calling_.name.empty() ? std::string() : whole_call();
  }
  std::string end(const Usage& usage) override { return line(done(content("", {}, {}), usage)); }
  std::string error(const ApiError& error) override { return ollama_error(error) + "\n"; }

  TextSource reply(std::vector<ChoiceReply> choices, const Usage& usage) override {
    return [this, choice = choices.front(), usage](std::string& out) {
      reason_ = choice.finish_reason;
      out += dump_json(done(content(std::string(choice.text), choice.tool_calls, choice.tokens), usage));
      return false;
    };
  }

 private:
  static std::string line(const Json& json) { return dump_json(json) + "\n"; }
  std::string whole_call() {
    const ToolCallDelta call = std::exchange(calling_, {});
    return line(content("", std::span(&call, 1), {}));
  }

  Json content(std::string text, std::span<const ToolCallDelta> calls, TokenRecords tokens) const {
    Json json = {{"model", meta_.model}, {"created_at", utc_time(meta_.created)}};
    if (!chat_) {
      json["response"] = std::move(text);
    } else {
      json["message"] = {{"role", "assistant"}, {"content", std::move(text)}};
      for (const ToolCallDelta& call : calls) {
        json["message"]["tool_calls"].push_back(
            {{"function", {{"name", call.name}, {"arguments", arguments_of(call)}}}});
      }
    }
    if (num_top_ && !tokens.empty()) json["logprobs"] = logprobs_of(tokenizer_, tokens, *num_top_);
    json["done"] = false;
    return json;
  }
  Json done(Json json, const Usage& usage) const {
    const Clock::time_point now = Clock::now(), first = first_ == Clock::time_point() ? now : first_;
    json["done"] = true;
    json["done_reason"] = reason_ == "length" ? "length" : "stop";
    json["total_duration"] = nanoseconds(now - meta_.started);
    json["load_duration"] = 0;
    json["prompt_eval_count"] = usage.prompt_tokens;
    json["prompt_eval_duration"] = nanoseconds(first - meta_.started);
    json["eval_count"] = usage.completion_tokens;
    json["eval_duration"] = nanoseconds(now - first);
    return json;
  }

  const Tokenizer& tokenizer_;
  const ReplyMeta meta_;
  const bool chat_;
  const std::optional<size_t> num_top_;
  Clock::time_point first_;
  ToolCallDelta calling_;
  std::string reason_;
};

void start_ollama(ServerContext& context, CallPtr call, Json body, ApiKind kind, bool chat) {
  const Tokenizer& tokenizer = context.model.load(std::memory_order_acquire)->tokenizer;
  std::optional<size_t> num_top;
  if (body.value("logprobs", Json()) == true) {
    num_top = static_cast<size_t>(as_integer(body.value("top_logprobs", Json(0)), 0, limits::kLogprobs).value_or(0));
    // Completions have the number in the place of the wish.
    if (kind == ApiKind::kCompletion) body["logprobs"] = body.value("top_logprobs", Json(0));
  } else if (const Json wish = body.value("logprobs", Json()); wish.is_null() || wish == false) {
    body.erase("logprobs");
  }
  if (!num_top || kind == ApiKind::kCompletion) body.erase("top_logprobs");
  start_dialect(context, std::move(call), body, kind,
                {.id_prefix = "ollama-",
                 .make_writer =
                     [&tokenizer, chat, num_top](const ReplyMeta& meta) {
                       return std::make_unique<OllamaWriter>(tokenizer, meta, chat, num_top);
                     },
                 .renamed = {{"max_tokens", "options.num_predict"},
                             {"response_format.json_schema.schema", "format"},
                             {"response_format", "format"}}});
}

// 404 in the words that Ollama's clients know.
std::optional<ApiError> check_name(const ServerContext& context, const Json& body) {
  const Json name = body.value("model", Json());
  if (!name.is_string() || name == "") return std::nullopt;
  if (!check_model(context, name.get<std::string>())) return std::nullopt;
  return ApiError::not_found(fmt::format("model '{}' not found", name.get<std::string>().substr(0, 200)),
                             "model_not_found");
}

// 0, "0", "0s", "0h0m": a time to keep a model loaded that is none.
bool is_no_time(const Json& keep_alive) {
  if (!keep_alive.is_string()) return keep_alive == 0;
  const std::string& text = keep_alive.get_ref<const std::string&>();
  return text.find('0') != std::string::npos && text.find_first_of("123456789-") == std::string::npos;
}

// Ollama's clients load a model by asking for nothing.
void reply_loaded(const ServerContext& context, Call& call, Json body, bool chat) {
  translate_model(body);
  if (const auto error = check_name(context, body)) return call.reply(*error);
  Json json = {{"model", context.config.served_model_names.front()}, {"created_at", utc_time(std::time(nullptr))}};
  if (chat) {
    json["message"] = {{"role", "assistant"}, {"content", ""}};
  } else {
    json["response"] = "";
  }
  json["done"] = true;
  json["done_reason"] = is_no_time(body.value("keep_alive", Json())) ? "unload" : "load";  // it stays all the same
  call.reply_json(dump_json(json));
}

bool asks_nothing(const Json& body, const char* key) {
  const auto it = body.find(key);
  return it == body.end() || it->is_null() || it->empty() || *it == "";
}

Json details(const ServingModel& model) {
  const double millions = static_cast<double>(model.num_parameters) / 1e6;
  return {
      {"parent_model", ""},
      {"format", "safetensors"},
      {"family", "bam"},
      {"families", {"bam"}},
      {"parameter_size", millions >= 1000 ? fmt::format("{:.1f}B", millions / 1000) : fmt::format("{:.1f}M", millions)},
      {"quantization_level", model.weight_dtype}};
}

Json model_entry(const ServingModel& model, const std::string& name) {
  return {{"name", name},
          {"model", name},
          {"modified_at", utc_time(model.created)},
          {"size", model.weight_bytes},
          {"digest", model.system_fingerprint},
          {"details", details(model)}};
}

}  // namespace

std::optional<ApiError> translate_ollama(Json& body) {
  translate_model(body);
  if (auto error = translate_options(body)) return error;
  if (auto error = format_from_ollama(body)) return error;
  if (const Json thinks = take(body, "think"); !thinks.is_null() && thinks != false) {
    return ApiError::invalid("'think' is not supported: BAM models have no thoughts apart from their text.", "think");
  }
  body.erase("keep_alive");
  if (!body.contains("stream") || body["stream"].is_null()) body["stream"] = true;
  if (body.contains("n") && body["n"] != 1) return ApiError::invalid("'n' is not supported here.", "n");
  return std::nullopt;
}

std::string ollama_error(const ApiError& error) { return dump_json({{"error", error.message}}); }

void handle_ollama_chat(ServerContext& context, CallPtr call) {
  auto body = read_body(*call);
  if (!body) return;
  if (asks_nothing(*body, "messages")) return reply_loaded(context, *call, *body, true);
  if (const auto error = translate_ollama(*body)) return call->reply(*error);
  if (const auto error = messages_from_ollama(*body)) return call->reply(*error);
  start_ollama(context, std::move(call), *body, ApiKind::kChat, true);
}

void handle_ollama_generate(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  auto body = read_body(*call);
  if (!body) return;
  if (asks_nothing(*body, "prompt")) return reply_loaded(context, *call, *body, false);
  if (const auto error = translate_ollama(*body)) return call->reply(*error);
  for (const char* key : {"template", "context", "images", "suffix"}) {
    if (const Json value = take(*body, key); !value.is_null() && !value.empty() && value != "") {
      return call->reply(ApiError::invalid(fmt::format("'{}' is not supported.", key), key));
    }
  }
  FieldReader fields(*body);
  const bool raw = fields.boolean("raw").value_or(false);
  const std::string system = fields.text("system", limits::kMaxTokens).value_or("");
  if (!fields.ok()) return call->reply(ApiError::invalid(fields.error()));
  for (const char* key : {"raw", "system"}) body->erase(key);
  if (raw || !model.chat_template) {
    return start_ollama(context, std::move(call), *body, ApiKind::kCompletion, false);
  }
  if (body->contains("messages")) return call->reply(ApiError::invalid("'messages' are for /api/chat.", "messages"));
  Json messages = Json::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  messages.push_back({{"role", "user"}, {"content", take(*body, "prompt")}});
  (*body)["messages"] = std::move(messages);
  start_ollama(context, std::move(call), *body, ApiKind::kChat, false);
}

void handle_ollama_tags(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  Json models = Json::array();
  for (const std::string& name : context.config.served_model_names) models.push_back(model_entry(model, name));
  call->reply_json(dump_json({{"models", std::move(models)}}));
}

void handle_ollama_running(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  Json entry = model_entry(model, context.config.served_model_names.front());
  entry.erase("modified_at");
  entry["expires_at"] = "9999-12-31T23:59:59Z";
  entry["size_vram"] = model.device.starts_with("cpu") ? uint64_t{0} : model.weight_bytes;
  entry["context_length"] = model.engine.config().max_model_len;
  call->reply_json(dump_json({{"models", Json::array({std::move(entry)})}}));
}

void handle_ollama_show(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  auto body = read_body(*call);
  if (!body) return;
  rename(*body, "name", "model");
  translate_model(*body);
  const Json name = body->value("model", Json());
  if (!name.is_string() || name == "") return call->reply(ApiError::invalid("'model' is missing.", "model"));
  if (const auto error = check_name(context, *body)) return call->reply(*error);
  const ModelConfig& config = model.engine.model_config();
  Json capabilities = {"completion", "embedding"};
  if (model.chat_template) capabilities.push_back("tools");
  call->reply_json(dump_json(
      {{"modelfile", fmt::format("FROM {}\n", context.config.served_model_names.front())},
       {"parameters", fmt::format("temperature {:g}\ntop_p {:g}", model.defaults.temperature, model.defaults.top_p)},
       {"template", model.tokenizer.chat_template()},
       {"modified_at", utc_time(model.created)},
       {"details", details(model)},
       {"model_info",
        {{"general.architecture", "bam"},
         {"general.parameter_count", model.num_parameters},
         {"bam.context_length", model.engine.config().max_model_len},
         {"bam.block_count", config.num_layers},
         {"bam.embedding_length", config.hidden_size},
         {"bam.attention.head_count", config.num_heads},
         {"bam.attention.head_count_kv", config.num_kv_heads},
         {"bam.position_encoding", position_encoding_name(config.position_encoding)},
         {"bam.vocab_size", config.vocab_size}}},
       {"capabilities", std::move(capabilities)}}));
}

void handle_ollama_version(ServerContext& context, CallPtr call) {
  call->reply_json(dump_json({{"version", context.version}}));
}

}  // namespace bam
