#include "server/api/openai_reply.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace bam {

namespace {

// JSON has no -inf; vLLM's clients expect this number in its place.
double finite_logprob(float value) { return std::isfinite(value) ? std::max(value, -9999.0f) : -9999.0; }

Json bytes_json(const Tokenizer& tokenizer, int32_t id) {
  Json bytes = Json::array();
  const std::string text = tokenizer.is_special(id) ? tokenizer.piece(id) : tokenizer.token_bytes(id);
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Json stop_reason_json(const StopReason& reason) {
  if (const auto* text = std::get_if<std::string>(&reason)) return *text;
  if (const auto* id = std::get_if<int32_t>(&reason)) return *id;
  return nullptr;
}

Json ids_json(const std::vector<TokenRecord>& tokens, size_t first) {
  Json ids = Json::array();
  for (size_t i = first; i < tokens.size(); ++i) ids.push_back(tokens[i].id);
  return ids;
}

// vLLM: [null, {"15": {"logprob", "rank", "decoded_token"}, …}, …]
Json prompt_logprobs_json(const Tokenizer& tokenizer, const std::vector<TokenRecord>& prompt) {
  Json list = Json::array();
  for (const TokenRecord& record : prompt) {
    if (!record.logprobs) {
      list.push_back(nullptr);
      continue;
    }
    Json entry = Json::object();
    const auto add = [&](int32_t id, float logprob, int32_t rank) {
      entry[std::to_string(id)] = {
          {"logprob", finite_logprob(logprob)}, {"rank", rank}, {"decoded_token", token_text(tokenizer, id)}};
    };
    add(record.id, record.logprobs->logprob, record.logprobs->rank);
    for (size_t i = 0; i < record.logprobs->top.size(); ++i) {
      const auto& [id, logprob] = record.logprobs->top[i];
      if (id != record.id) add(id, logprob, static_cast<int32_t>(i) + 1);
    }
    list.push_back(std::move(entry));
  }
  return list;
}

Json logprobs_json(const Tokenizer& tokenizer, ApiKind kind, const ReplyOptions& options,
                   const std::vector<TokenRecord>& tokens) {
  if (!options.logprobs) return nullptr;
  return kind == ApiKind::kChat ? chat_logprobs(tokenizer, tokens, options.num_top)
                                : legacy_logprobs(tokenizer, tokens, options.num_top);
}

}  // namespace

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

Json legacy_logprobs(const Tokenizer& tokenizer, const std::vector<TokenRecord>& tokens, int32_t num_top) {
  Json names = Json::array(), logprobs = Json::array();
  Json tops = Json::array(), offsets = Json::array();
  for (const TokenRecord& record : tokens) {
    const std::string name = token_text(tokenizer, record.id);
    offsets.push_back(record.text_offset);
    names.push_back(name);
    if (!record.logprobs) {
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    logprobs.push_back(finite_logprob(record.logprobs->logprob));
    Json top = Json::object();
    int32_t count = 0;
    for (const auto& [id, logprob] : record.logprobs->top) {
      if (count++ == num_top) break;
      // Two tokens may share a spelling; the more probable one comes first and keeps it.
      const std::string text = token_text(tokenizer, id);
      if (!top.contains(text)) top[text] = finite_logprob(logprob);
    }
    if (!top.contains(name)) top[name] = finite_logprob(record.logprobs->logprob);
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json chat_logprobs(const Tokenizer& tokenizer, const std::vector<TokenRecord>& tokens, int32_t num_top) {
  Json content = Json::array();
  const auto describe = [&](int32_t id, float logprob) {
    return Json{{"token", token_text(tokenizer, id)},
                {"logprob", finite_logprob(logprob)},
                {"bytes", bytes_json(tokenizer, id)}};
  };
  for (const TokenRecord& record : tokens) {
    if (!record.logprobs) continue;
    Json entry = describe(record.id, record.logprobs->logprob);
    Json top = Json::array();
    for (const auto& [id, logprob] : record.logprobs->top) {
      if (static_cast<int32_t>(top.size()) == num_top) break;
      top.push_back(describe(id, logprob));
    }
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json reply_json(const Tokenizer& tokenizer, const ReplyMeta& meta, const ReplyOptions& options,
                const std::vector<ChoiceReply>& choices, const Usage& usage) {
  const bool chat = meta.kind == ApiKind::kChat;
  Json list = Json::array();
  for (const ChoiceReply& choice : choices) {
    Json entry{{"index", choice.index}};
    if (chat) {
      entry["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    } else {
      entry["text"] = choice.text;
    }
    entry["logprobs"] = logprobs_json(tokenizer, meta.kind, options, choice.tokens);
    entry["finish_reason"] = choice.finish_reason;
    entry["stop_reason"] = stop_reason_json(choice.stop_reason);
    if (choice.prompt_logprobs) {
      entry["prompt_logprobs"] = prompt_logprobs_json(tokenizer, *choice.prompt_logprobs);
    }
    if (options.token_ids) {
      entry["token_ids"] = ids_json(choice.tokens, choice.num_echoed);
      if (choice.prompt_ids) entry["prompt_token_ids"] = *choice.prompt_ids;
    }
    list.push_back(std::move(entry));
  }
  return {{"id", meta.id},
          {"object", chat ? "chat.completion" : "text_completion"},
          {"created", meta.created},
          {"model", meta.model},
          {"system_fingerprint", meta.system_fingerprint},
          {"choices", std::move(list)},
          {"usage", usage_json(usage)}};
}

ChunkWriter::ChunkWriter(const Tokenizer& tokenizer, const ReplyMeta& meta, ReplyOptions options, bool include_usage)
    : tokenizer_(tokenizer), kind_(meta.kind), options_(options), include_usage_(include_usage) {
  head_ = fmt::format(R"(data: {{"id":{},"object":"{}","created":{},"model":{},"system_fingerprint":{},"choices":)",
                      dump_json_string(meta.id), kind_ == ApiKind::kChat ? "chat.completion.chunk" : "text_completion",
                      meta.created, dump_json_string(meta.model), dump_json_string(meta.system_fingerprint));
}

std::string ChunkWriter::wrap(std::string_view choices, const Usage* usage, std::string_view extra) const {
  std::string line = head_;
  line += choices;
  line += extra;
  if (usage) {
    line += ",\"usage\":" + dump_json(usage_json(*usage));
  } else if (include_usage_) {
    line += ",\"usage\":null";
  }
  line += "}\n\n";
  return line;
}

std::string ChunkWriter::role(int32_t index) const {
  return wrap(fmt::format(R"([{{"index":{},"delta":{{"role":"assistant","content":""}},)"
                          R"("logprobs":null,"finish_reason":null}}])",
                          index),
              nullptr);
}

std::string ChunkWriter::delta(int32_t index, const ChoiceDelta& delta, const Usage* usage,
                               const std::vector<int32_t>* prompt_ids) const {
  std::string choice = fmt::format(R"([{{"index":{},)", index);
  choice += kind_ == ApiKind::kChat ? R"("delta":{"content":)" : R"("text":)";
  choice += dump_json_string(delta.text);
  choice += kind_ == ApiKind::kChat ? R"(},"logprobs":)" : R"(,"logprobs":)";
  choice += options_.logprobs ? dump_json(logprobs_json(tokenizer_, kind_, options_, delta.tokens)) : "null";
  choice += R"(,"finish_reason":null)";
  if (kind_ == ApiKind::kCompletion) choice += R"(,"stop_reason":null)";
  if (options_.token_ids) choice += ",\"token_ids\":" + dump_json(ids_json(delta.tokens, 0));
  if (prompt_ids) choice += ",\"prompt_token_ids\":" + dump_json(Json(*prompt_ids));
  choice += "}]";
  return wrap(choice, usage);
}

std::string ChunkWriter::finish(int32_t index, const char* reason, const StopReason& stop_reason,
                                const Usage* usage) const {
  return wrap(fmt::format(R"([{{"index":{},{},"logprobs":null,"finish_reason":"{}","stop_reason":{}}}])", index,
                          kind_ == ApiKind::kChat ? R"("delta":{})" : R"("text":"")", reason,
                          dump_json(stop_reason_json(stop_reason))),
              usage);
}

std::string ChunkWriter::progress(const ProgressEvent& progress) const {
  const Json json{{"total", progress.total},
                  {"cache", progress.cached},
                  {"processed", progress.processed},
                  {"time_ms", std::round(progress.elapsed_ms * 10) / 10},
                  {"eta_ms", std::round(progress.eta_ms * 10) / 10}};
  return wrap("[]", nullptr, ",\"prompt_progress\":" + dump_json(json));
}

std::string ChunkWriter::usage(const Usage& usage) const { return wrap("[]", &usage); }

std::string ChunkWriter::error(const ApiError& error) { return "data: " + error.to_json() + "\n\n"; }

}  // namespace bam
