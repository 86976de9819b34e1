#include "server/api/openai_reply.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/utf8.h"

namespace bam {

namespace {

// Tokens of one step of a text, or of one event of a stream.
constexpr size_t kTokensPerStep = 256;

void append(std::string& out, std::string_view text) { out += text; }

template <typename T>
requires std::is_arithmetic_v<T>
void append_number(std::string& out, T value) { fmt::format_to(std::back_inserter(out), "{}", value); }

// About `bytes` of the text, so that no character is cut; at least one character.
size_t whole_characters(std::string_view text, size_t bytes) {
  size_t size = std::min(bytes, text.size());
  while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) ++size;
  return size;
}

// JSON has no -inf; vLLM's clients expect this number in its place.
void append_logprob(std::string& out, float value) {
  append_number(out, std::isfinite(value) ? std::max(value, -9999.0f) : -9999.0f);
}

void append_bytes(std::string& out, std::string_view text) {
  out += '[';
  for (size_t i = 0; i < text.size(); ++i) {
    if (i > 0) out += ',';
    append_number(out, static_cast<int>(static_cast<unsigned char>(text[i])));
  }
  out += ']';
}

template <typename List, typename IdOf>
void append_ids(std::string& out, std::string_view name, const List& list, IdOf id_of) {
  fmt::format_to(std::back_inserter(out), ",\"{}\":[", name);
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0) out += ',';
    append_number(out, id_of(list[i]));
  }
  out += ']';
}

void append_stop_reason(std::string& out, const StopReason& reason) {
  if (const auto* text = std::get_if<std::string>(&reason)) {
    out += dump_json_string(*text);
  } else if (const auto* id = std::get_if<int32_t>(&reason)) {
    append_number(out, *id);
  } else {
    out += "null";
  }
}

// The parts of a completion's logprobs, one entry each.
using AppendEntry = void (*)(std::string& out, const Tokenizer& tokenizer, const TokenRecord& record,
                             const ReplyOptions& options);

std::string token_name(const Tokenizer& tokenizer, int32_t id, const ReplyOptions& options) {
  return options.names_are_ids ? fmt::format("token_id:{}", id) : token_text(tokenizer, id);
}

void append_name(std::string& out, const Tokenizer& tokenizer, const TokenRecord& record, const ReplyOptions& options) {
  out += dump_json_string(token_name(tokenizer, record.id, options));
}

void append_own_logprob(std::string& out, const Tokenizer&, const TokenRecord& record, const ReplyOptions&) {
  if (record.logprobs) {
    append_logprob(out, record.logprobs->logprob);
  } else {
    out += "null";
  }
}

void append_tops(std::string& out, const Tokenizer& tokenizer, const TokenRecord& record, const ReplyOptions& options) {
  if (!record.logprobs) {
    out += "null";
    return;
  }
  // Two tokens may share a spelling; the more probable one comes first and keeps it.
  std::vector<std::string> names;
  const auto add = [&](int32_t id, float logprob) {
    std::string name = dump_json_string(token_name(tokenizer, id, options));
    if (std::find(names.begin(), names.end(), name) != names.end()) return;
    out += names.empty() ? "{" : ",";
    out += name;
    out += ':';
    append_logprob(out, logprob);
    names.push_back(std::move(name));
  };
  const auto& top = record.logprobs->top;
  const size_t shown = std::min(top.size(), static_cast<size_t>(options.num_top));
  for (size_t i = 0; i < shown; ++i) add(top[i].first, top[i].second);
  add(record.id, record.logprobs->logprob);
  out += '}';
}

void append_offset(std::string& out, const Tokenizer&, const TokenRecord& record, const ReplyOptions&) {
  append_number(out, record.text_offset);
}

// One token of a chat's logprobs. It stands for what it added to the content, so that the list adds up to it: nothing for
// the token that ended it, no blank in front of the first word, and a character of several tokens comes with the last.
void append_content(std::string& out, const Tokenizer& tokenizer, const TokenRecord& record,
                    const ReplyOptions& options) {
  const auto describe = [&](std::string_view name, std::string_view bytes, float logprob) {
    out += "{\"token\":" + dump_json_string(name) + ",\"logprob\":";
    append_logprob(out, logprob);
    out += ",\"bytes\":";
    append_bytes(out, bytes);
  };
  const std::string& whole = tokenizer.token_bytes(record.id);
  const bool partial = !is_valid_utf8(whole);  // its bytes are known, its character is not
  describe(options.names_are_ids ? token_name(tokenizer, record.id, options) : record.text,
           partial ? whole : record.text, record.logprobs->logprob);
  out += ",\"top_logprobs\":[";
  // Alternatives are written as the token itself would have been.
  const bool stripped = whole.starts_with(' ') && record.text == std::string_view(whole).substr(1);
  const auto& top = record.logprobs->top;
  for (size_t i = 0; i < top.size() && i < static_cast<size_t>(options.num_top); ++i) {
    if (i > 0) out += ',';
    const int32_t id = top[i].first;
    const std::string name = token_name(tokenizer, id, options);
    const std::string bytes = tokenizer.is_special(id) ? tokenizer.piece(id) : tokenizer.token_bytes(id);
    const auto shown = [stripped](std::string_view text) {
      return text.substr(stripped && text.starts_with(' ') ? 1 : 0);
    };
    describe(shown(name), shown(bytes), top[i].second);
    out += '}';
  }
  out += "]}";
}

// vLLM: {"15": {"logprob", "rank", "decoded_token"}, …}, the token itself first; null for the first token.
void append_prompt_entry(std::string& out, const Tokenizer& tokenizer, const TokenRecord& record, const ReplyOptions&) {
  if (!record.logprobs) {
    out += "null";
    return;
  }
  const auto add = [&](int32_t id, float logprob, int32_t rank) {
    fmt::format_to(std::back_inserter(out), "\"{}\":{{\"logprob\":", id);
    append_logprob(out, logprob);
    fmt::format_to(std::back_inserter(out), ",\"rank\":{},\"decoded_token\":{}}}", rank,
                   dump_json_string(token_text(tokenizer, id)));
  };
  out += '{';
  add(record.id, record.logprobs->logprob, record.logprobs->rank);
  for (size_t i = 0; i < record.logprobs->top.size(); ++i) {
    const auto& [id, logprob] = record.logprobs->top[i];
    if (id == record.id) continue;
    out += ',';
    add(id, logprob, static_cast<int32_t>(i) + 1);
  }
  out += '}';
}

// The parts of a text in order, each made in bounded steps.
class Parts {
 public:
  void text(std::string part) {
    steps_.push_back([part = std::move(part)](std::string& out) {
      out += part;
      return false;
    });
  }
  // The inside of a JSON string.
  void escaped(std::string_view part) {
    steps_.push_back([part](std::string& out) mutable {
      const size_t size = whole_characters(part, kPieceBytes);
      const std::string quoted = dump_json_string(part.substr(0, size));
      out.append(quoted, 1, quoted.size() - 2);
      part.remove_prefix(size);
      return !part.empty();
    });
  }
  // Entries with commas between them; `first`: nothing of the same list stands in front.
  void entries(const Tokenizer& tokenizer, TokenRecords tokens, const ReplyOptions& options, AppendEntry append_entry,
               bool first) {
    if (tokens.empty()) return;
    steps_.push_back([&tokenizer, tokens, options, append_entry, first](std::string& out) mutable {
      const size_t count = std::min(tokens.size(), kTokensPerStep);
      for (const TokenRecord& record : tokens.first(count)) {
        if (append_entry == append_content && !record.logprobs) continue;  // a chat's list has no holes
        if (!std::exchange(first, false)) out += ',';
        append_entry(out, tokenizer, record, options);
      }
      tokens = tokens.subspan(count);
      return !tokens.empty();
    });
  }
  template <typename IdOf>
  void ids(size_t count, IdOf id_of) {
    steps_.push_back([count, id_of, at = size_t{0}](std::string& out) mutable {
      const size_t end = std::min(count, at + 16 * kTokensPerStep);
      for (; at < end; ++at) {
        if (at > 0) out += ',';
        append_number(out, id_of(at));
      }
      return at < count;
    });
  }

  TextSource source() && {
    return [steps = std::move(steps_)](std::string& out) mutable {
      while (!steps.empty() && out.size() < kPieceBytes) {
        if (!steps.front()(out)) steps.pop_front();
      }
      return !steps.empty();
    };
  }

 private:
  std::deque<TextSource> steps_;
};

void add_logprobs(Parts& parts, const Tokenizer& tokenizer, ApiKind kind, const ReplyOptions& options,
                  TokenRecords echoed, TokenRecords tokens) {
  if (!options.logprobs) return parts.text("null");
  if (kind == ApiKind::kChat) {
    parts.text(R"({"content":[)");
    parts.entries(tokenizer, tokens, options, append_content, true);
    return parts.text(R"(],"refusal":null})");
  }
  const auto list = [&](const char* head, AppendEntry entry) {
    parts.text(head);
    parts.entries(tokenizer, echoed, options, entry, true);
    parts.entries(tokenizer, tokens, options, entry, echoed.empty());
  };
  list(R"({"tokens":[)", append_name);
  list(R"(],"token_logprobs":[)", append_own_logprob);
  list(R"(],"top_logprobs":[)", append_tops);
  list(R"(],"text_offset":[)", append_offset);
  parts.text("]}");
}

void add_tool_calls(Parts& parts, std::span<const ToolCallDelta> calls) {
  if (calls.empty()) return;
  for (const ToolCallDelta& call : calls) {
    parts.text(fmt::format(R"({}{{"id":{},"type":"function","function":{{"name":{},"arguments":")",
                           call.index == 0 ? R"(,"tool_calls":[)" : ",", dump_json_string(call.id),
                           dump_json_string(call.name)));
    parts.escaped(call.arguments);
    parts.text("\"}}");
  }
  parts.text("]");
}

// What is known about the prompt: vLLM has it in each choice of a completion, and once for a chat.
void add_prompt(Parts& parts, const Tokenizer& tokenizer, const ReplyOptions& options, const ChoiceReply& choice) {
  if (choice.prompt_logprobs) {
    parts.text(",\"prompt_logprobs\":[");
    parts.entries(tokenizer, *choice.prompt_logprobs, options, append_prompt_entry, true);
    parts.text("]");
  }
  if (options.token_ids && choice.prompt_ids) {
    parts.text(",\"prompt_token_ids\":[");
    parts.ids(choice.prompt_ids->size(), [ids = choice.prompt_ids](size_t i) { return (*ids)[i]; });
    parts.text("]");
  }
}

void add_choice(Parts& parts, const Tokenizer& tokenizer, const ReplyMeta& meta, const ReplyOptions& options,
                const ChoiceReply& choice) {
  const bool chat = meta.kind == ApiKind::kChat;
  parts.text(fmt::format("{}{{\"index\":{},{}", choice.index > 0 ? "," : "", choice.index,
                         chat ? R"("message":{"role":"assistant","content":)" : R"("text":)"));
  if (choice.tool_calls.empty() || !choice.text.empty()) {
    parts.text("\"");
    parts.escaped(choice.echo);
    parts.escaped(choice.text);
    parts.text("\"");
  } else {
    parts.text("null");
  }
  if (chat) {
    parts.text(R"(,"refusal":null)");
    add_tool_calls(parts, choice.tool_calls);
    parts.text("}");
  }
  parts.text(R"(,"logprobs":)");
  add_logprobs(parts, tokenizer, meta.kind, options, choice.echo_tokens, choice.tokens);
  std::string ending = fmt::format(",\"finish_reason\":\"{}\",\"stop_reason\":", choice.finish_reason);
  append_stop_reason(ending, choice.stop_reason);
  parts.text(std::move(ending));
  if (options.token_ids) {
    parts.text(",\"token_ids\":[");
    parts.ids(choice.tokens.size(), [tokens = choice.tokens](size_t i) { return tokens[i].id; });
    parts.text("]");
  }
  if (!chat) add_prompt(parts, tokenizer, options, choice);
  parts.text("}");
}

}  // namespace

Json usage_json(const Usage& usage) {
  return {
      {"prompt_tokens", usage.prompt_tokens},
      {"completion_tokens", usage.completion_tokens},
      {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
      {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
      {"completion_tokens_details",
       {{"accepted_prediction_tokens", usage.accepted_drafts}, {"rejected_prediction_tokens", usage.rejected_drafts}}}};
}

void append_logprobs(std::string& out, const Tokenizer& tokenizer, ApiKind kind, TokenRecords tokens,
                     const ReplyOptions& options) {
  Parts parts;
  add_logprobs(parts, tokenizer, kind, options, {}, tokens);
  const TextSource source = std::move(parts).source();
  std::string text;
  for (bool more = true; more; text.clear()) {
    more = source(text);
    out += text;
  }
}

TextSource reply_text(const Tokenizer& tokenizer, const ReplyMeta& meta, const ReplyOptions& options,
                      const std::vector<ChoiceReply>& choices, const Usage& usage) {
  Parts parts;
  parts.text(fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{},"system_fingerprint":{},"choices":[)",
                         dump_json_string(meta.id), meta.kind == ApiKind::kChat ? "chat.completion" : "text_completion",
                         meta.created, dump_json_string(meta.model), dump_json_string(meta.system_fingerprint)));
  for (const ChoiceReply& choice : choices) add_choice(parts, tokenizer, meta, options, choice);
  parts.text("],\"usage\":" + dump_json(usage_json(usage)));
  if (meta.kind == ApiKind::kChat && !choices.empty()) add_prompt(parts, tokenizer, options, choices.front());
  parts.text("}");
  return std::move(parts).source();
}

ChunkWriter::ChunkWriter(const Tokenizer& tokenizer, const ReplyMeta& meta, ReplyOptions options, bool include_usage)
    : tokenizer_(tokenizer), kind_(meta.kind), options_(options), include_usage_(include_usage) {
  head_ = fmt::format(R"(data: {{"id":{},"object":"{}","created":{},"model":{},"system_fingerprint":{},"choices":)",
                      dump_json_string(meta.id), kind_ == ApiKind::kChat ? "chat.completion.chunk" : "text_completion",
                      meta.created, dump_json_string(meta.model), dump_json_string(meta.system_fingerprint));
}

void ChunkWriter::append_tail(std::string& out, const Usage* usage) const {
  if (usage) {
    out += ",\"usage\":" + dump_json(usage_json(*usage));
  } else if (include_usage_) {
    out += ",\"usage\":null";
  }
  out += "}\n\n";
}

std::string ChunkWriter::role(int32_t index, const Usage* usage) const {
  std::string out = head_;
  out += fmt::format(R"([{{"index":{},"delta":{{"role":"assistant","content":""}},"logprobs":null,)"
                     R"("finish_reason":null}}])",
                     index);
  append_tail(out, usage);
  return out;
}

void ChunkWriter::append_tool_call(std::string& out, int32_t index, const ToolCallDelta& call,
                                   const Usage* usage) const {
  out += head_;
  fmt::format_to(std::back_inserter(out), R"([{{"index":{},"delta":{{"tool_calls":[{{"index":{},)", index, call.index);
  if (!call.name.empty()) {
    fmt::format_to(std::back_inserter(out), R"("id":{},"type":"function","function":{{"name":{},"arguments":)",
                   dump_json_string(call.id), dump_json_string(call.name));
  } else {
    out += R"("function":{"arguments":)";
  }
  out += dump_json_string(call.arguments) + R"(}}]},"logprobs":null,"finish_reason":null}])";
  append_tail(out, usage);
}

void ChunkWriter::append_delta(std::string& out, int32_t index, std::string_view text, TokenRecords tokens,
                               bool with_ids, const Usage* usage, const std::vector<int32_t>* prompt_ids) const {
  out += head_;
  fmt::format_to(std::back_inserter(out), R"([{{"index":{},)", index);
  append(out, kind_ == ApiKind::kChat ? R"("delta":{"content":)" : R"("text":)");
  out += dump_json_string(text);
  append(out, kind_ == ApiKind::kChat ? R"(},"logprobs":)" : R"(,"logprobs":)");
  if (options_.logprobs) {
    append_logprobs(out, tokenizer_, kind_, tokens, options_);
  } else {
    out += "null";
  }
  out += R"(,"finish_reason":null)";
  if (kind_ == ApiKind::kCompletion) out += R"(,"stop_reason":null)";
  if (with_ids) append_ids(out, "token_ids", tokens, [](const TokenRecord& record) { return record.id; });
  // vLLM: in each choice of a completion, once beside the choices of a chat.
  const auto append_prompt = [&] {
    if (prompt_ids) append_ids(out, "prompt_token_ids", *prompt_ids, [](int32_t id) { return id; });
  };
  if (kind_ == ApiKind::kCompletion) append_prompt();
  out += "}]";
  if (kind_ == ApiKind::kChat && index == 0) append_prompt();
  append_tail(out, usage);
}

std::string ChunkWriter::delta(int32_t index, const ChoiceDelta& delta, const Usage* usage,
                               const std::vector<int32_t>* prompt_ids) const {
  std::string out;
  TokenRecords rest(delta.tokens);
  std::string_view text = delta.text;
  const bool only_calls = text.empty() && rest.empty() && !prompt_ids && !delta.tool_calls.empty();
  for (bool more = !only_calls; more; more = !rest.empty()) {
    const TokenRecords now = rest.first(std::min(rest.size(), kTokensPerStep));
    rest = rest.subspan(now.size());
    append_delta(out, index, text, now, options_.token_ids, usage, prompt_ids);
    text = {};
    prompt_ids = nullptr;
  }
  for (const ToolCallDelta& call : delta.tool_calls) append_tool_call(out, index, call, usage);
  return out;
}

TextSource ChunkWriter::echo(int32_t index, std::string_view text, TokenRecords tokens,
                             std::optional<Usage> usage) const {
  return [this, index, text, tokens, usage, characters = int64_t{0}](std::string& out) mutable {
    const TokenRecords now = tokens.first(std::min(tokens.size(), kTokensPerStep));
    tokens = tokens.subspan(now.size());
    // Up to where the next token's text begins; without tokens, a piece of any length.
    size_t size = text.size();
    if (!tokens.empty()) {
      for (size = 0; size < text.size() && characters < tokens.front().text_offset; ++characters) {
        size += whole_characters(text.substr(size), 1);
      }
    } else if (now.empty()) {
      size = whole_characters(text, kPieceBytes);
    }
    append_delta(out, index, text.substr(0, size), now, false, usage ? &*usage : nullptr, nullptr);
    text.remove_prefix(size);
    return !tokens.empty() || !text.empty();
  };
}

std::string ChunkWriter::finish(int32_t index, const char* reason, const StopReason& stop_reason,
                                const Usage* usage) const {
  std::string out = head_;
  out += fmt::format(R"([{{"index":{},{},"logprobs":null,"finish_reason":"{}","stop_reason":)", index,
                     kind_ == ApiKind::kChat ? R"("delta":{})" : R"("text":"")", reason);
  append_stop_reason(out, stop_reason);
  out += "}]";
  append_tail(out, usage);
  return out;
}

std::string ChunkWriter::progress(const ProgressEvent& progress, const Usage* usage) const {
  const Json json{{"total", progress.total},
                  {"cache", progress.cached},
                  {"processed", progress.processed},
                  {"time_ms", std::round(progress.elapsed_ms * 10) / 10},
                  {"eta_ms", std::round(progress.eta_ms * 10) / 10}};
  std::string out = head_ + "[],\"prompt_progress\":" + dump_json(json);
  append_tail(out, usage);
  return out;
}

std::string ChunkWriter::usage(const Usage& usage) const {
  std::string out = head_ + "[]";
  append_tail(out, &usage);
  return out;
}

std::string ChunkWriter::error(const ApiError& error) { return "data: " + error.to_json() + "\n\n"; }

}  // namespace bam
