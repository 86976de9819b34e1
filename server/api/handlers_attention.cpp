// POST /v1/attention: where the last row of a prompt looks, in every head or in one. The prompt is that of a completion or of a
// chat, and goes through the same queue, prefix cache and limits.
#include <fmt/format.h>

#include "models/model_config.h"
#include "server/api/attention_reply.h"
#include "server/api/dialect.h"
#include "server/api/field_table.h"
#include "server/api/handlers.h"

namespace bam {

namespace {

struct AttentionRequest {
  AttentionLook look;
  int64_t context = 8;
};

void read_spans(FieldReader& in, const std::string& key, AttentionRequest& out) {
  const Json* list = in.array(key, AttentionLook::kMaxSpans);
  if (!list) return;
  for (const Json& span : *list) {
    const bool pair = span.is_array() && span.size() == 2 && span[0].is_number_integer() && span[1].is_number_integer();
    if (!pair) return in.fail(key, "'spans' is a list of [begin, end).");
    out.look.spans.emplace_back(span[0].get<int64_t>(), span[1].get<int64_t>());
  }
}

// clang-format off
const FieldTable<AttentionRequest>& attention_fields() {
  using Kinds = FieldKinds<AttentionRequest>;
  const auto optional = [](int64_t max, auto get) {
    return FieldKind<AttentionRequest>{{{"type", "integer"}, {"minimum", 0}, {"maximum", max}},
      [max, get](FieldReader& in, const std::string& key, AttentionRequest& out) {
        if (const auto value = in.integer(key, 0, max)) get(out) = static_cast<std::remove_reference_t<decltype(get(out))>>(*value);
      }};
  };
  const Json ids = {{"type", "array"}, {"minItems", 1}, {"items", {{"type", "integer"}, {"minimum", 0}, {"maximum", INT32_MAX}}}};
  const Json text = {{"type", "string"}, {"minLength", 1}};
  const Json messages = {{"type", "array"}, {"minItems", 1}, {"items", {{"$ref", "#/components/schemas/Message"}}}};
  const Json span = {{"type", "array"}, {"minItems", 2}, {"maxItems", 2}, {"items", {{"type", "integer"}, {"minimum", 0}, {"maximum", INT32_MAX}}}};
  static const FieldTable<AttentionRequest> fields = {
      {"prompt", 1, Kinds::ignored({{"anyOf", {text, ids}}}), "a text or token ids"},
      {"tokens", 1, Kinds::ignored(ids), "or token ids by this name"},
      {"messages", 1, Kinds::ignored(messages), "or a chat; other fields of completions and chat that concern the prompt are taken, too"},
      {"add_special_tokens", 1, Kinds::ignored({{"type", "boolean"}}), "of a text: put BOS as the checkpoint asks; default true"},
      {"cache_salt", 1, Kinds::ignored({{"type", "string"}, {"maxLength", 256}}), "as it was with the request that put the prompt into the prefix cache"},
      {"position", 1, optional(INT32_MAX, BAM_MEMBER(look.position)), "the token that looks; default the last one"},
      {"layer", 1, optional(INT32_MAX, BAM_MEMBER(look.layer)), "only this layer; default all"},
      {"head", 1, optional(INT32_MAX, BAM_MEMBER(look.head)), "only this head of each layer; default all"},
      {"from", 1, Kinds::integer(0, INT32_MAX, BAM_MEMBER(look.from)), "the first key of the range that is shown"},
      {"to", 1, optional(INT32_MAX, BAM_MEMBER(look.to)), "the key behind the range; default behind the query"},
      {"bins", 1, Kinds::integer(1, AttentionLook::kMaxBins, BAM_MEMBER(look.bins)), "the range is cut into at most so many equal parts; as many as it has keys give one number per key"},
      {"peaks", 1, Kinds::integer(0, AttentionLook::kMaxPeaks, BAM_MEMBER(look.peaks)), "keys with the largest weights in the range, per head"},
      {"spans", 1, Kinds::custom({{"type", "array"}, {"maxItems", AttentionLook::kMaxSpans}, {"items", span}}, read_spans), "pairs [begin, end): the weight of all keys in each"},
      {"context", 1, Kinds::integer(0, 64, BAM_MEMBER(context)), "tokens that are spelled on either side of a peak and of the query"},
  };
  return fields;
}
// clang-format on

class AttentionWriter final : public WholeReplyWriter {
 public:
  AttentionWriter(const Tokenizer& tokenizer, const ReplyMeta& meta, int64_t context)
      : tokenizer_(tokenizer), meta_(meta), context_(context) {}

  // Head by head: with thousands of them a reply has megabytes.
  TextSource reply(std::vector<ChoiceReply> choices, const Usage& usage) override {
    return [this, choice = choices.front(), usage, next = size_t{0}](std::string& out) mutable {
      const AttentionReport& report = choice.attention ? *choice.attention : cancelled_;
      if (next == 0) append_attention_begin(out, meta_.id, meta_.model, report);
      for (; next < report.heads.size(); ++next) {
        if (out.size() > kPieceBytes) return true;
        if (next > 0) out += ',';
        append_attention_head(out, report.heads[next]);
      }
      append_attention_tokens(out, tokenizer_, report, *choice.prompt_ids, context_);
      fmt::format_to(
          std::back_inserter(out),
          R"(,"usage":{{"prompt_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}}}}}})",
          usage.prompt_tokens, usage.prompt_tokens, usage.cached_tokens);
      return false;
    };
  }

 private:
  const Tokenizer& tokenizer_;
  const ReplyMeta meta_;
  const int64_t context_;
  const AttentionReport cancelled_{.position = -1};  // nothing was seen
};

}  // namespace

Json attention_schema() {
  Json schema = fields_schema(attention_fields(), ~0u);
  schema.erase("required");
  schema["anyOf"] = Json::array();
  for (const char* one : {"prompt", "tokens", "messages"}) schema["anyOf"].push_back({{"required", {one}}});
  return schema;
}

void handle_attention(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  auto body = read_body(*call);
  if (!body) return;
  AttentionRequest request;
  FieldReader in(*body);
  read_fields(in, attention_fields(), ~0u, request);
  const int given = in.has("prompt") + in.has("tokens") + in.has("messages");
  if (in.ok() && given != 1) in.fail("prompt", "One of 'prompt', 'tokens' and 'messages' is needed.");
  const Json* prompt = in.raw("prompt");
  if (in.ok() && prompt && prompt->is_array() && !prompt->empty() && !prompt->front().is_number()) {
    in.fail("prompt", "'prompt' is one text or one list of token ids.");
  }
  if (!in.ok()) return call->reply(ApiError::invalid(in.error()));
  for (const char* key : {"position", "layer", "head", "from", "to", "bins", "peaks", "spans", "context", "stream", "n",
                          "echo", "logprobs", "top_logprobs", "prompt_logprobs", "max_completion_tokens"}) {
    body->erase(key);
  }
  rename(*body, "tokens", "prompt");
  (*body)["max_tokens"] = 1;  // of which nothing is generated: it is a look
  (*body)["return_token_ids"] = true;
  if (request.look.position >= 0) {
    (*body)["truncate_prompt_tokens"] = request.look.position + 1;
    (*body)["truncation_side"] = "right";
  }
  const ApiKind kind = body->contains("messages") ? ApiKind::kChat : ApiKind::kCompletion;
  start_dialect(context, std::move(call), *body, kind,
                {.id_prefix = "attn-",
                 .make_writer =
                     [&model, context = request.context](const ReplyMeta& meta) {
                       return std::make_unique<AttentionWriter>(model.tokenizer, meta, context);
                     },
                 .look = std::move(request.look)});
}

}  // namespace bam
