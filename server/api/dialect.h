// The seam for APIs beside OpenAI's completions and chat. A dialect translates its body into the fields of one of these
// two, so that there is one parser and one set of limits, and writes the reply from the same events.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/call.h"
#include "server/api/choice_decoder.h"
#include "server/api/reply_writer.h"
#include "server/api/server_context.h"

namespace bam {

struct Dialect {
  std::string id_prefix;  // of reply ids
  // Called when the request was accepted, with its id.
  std::function<std::unique_ptr<ReplyWriter>(const ReplyMeta& meta)> make_writer;
  Pooling pooling = Pooling::kNone;
  std::optional<AttentionLook> look = {};
  bool keeps_stream = false;  // the last event repeats the reply
  // (field of completions or chat, the dialect's name of it), for errors.
  std::vector<std::pair<std::string, std::string>> renamed;

  ApiError in_own_words(ApiError error) const;
};

// On a worker: `body` has the fields of completions or chat.
void start_dialect(ServerContext& context, CallPtr call, const Json& body, ApiKind kind, Dialect dialect);

// Moves a member out of a JSON object; null where there is none.
Json take(Json& object, const char* key);
// Moves a member to another name, unless it is absent or null.
void rename(Json& object, const char* from, const char* to);

// `name` is what the dialect calls it. Refused when the body has one already: neither may be dropped.
std::optional<ApiError> set_response_format(Json& body, Json format, const std::string& name);

// 2026-01-31T12:00:00Z
std::string utc_time(int64_t unix_seconds);

// "event: TYPE\ndata: {…}\n\n"
std::string named_event(std::string_view type, const Json& data);

// Reads a body, or answers why it cannot.
std::optional<Json> read_body(Call& call);

// A message in parts, as dialects that split it have it: texts and calls in the order of the text.
struct ReplyPart {
  std::string text;                   // of a text
  std::optional<ToolCallDelta> call;  // of a call, whole
};
std::vector<ReplyPart> parts_of(const ChoiceReply& choice);
// [{token, bytes, logprob, top_logprobs}], each with its id for llama.cpp's clients.
Json logprobs_of(const Tokenizer& tokenizer, TokenRecords tokens, size_t num_top, bool with_ids = false);
// The arguments as an object; {} where they were cut off.
Json arguments_of(const ToolCallDelta& call);

}  // namespace bam
