#include <cmath>

#include <fmt/format.h>

#include "models/head_report.h"
#include "server/api/handlers.h"
#include "server/api/json_body.h"

namespace bam {

namespace {

constexpr int64_t kMaxAttentionTokens = 2048;

const char* form_name(PriorForm form) { return form == PriorForm::kScaleOutside ? "scale_outside" : "scale_inside"; }

}  // namespace

void handle_prior(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  const ModelConfig& config = model.engine.model_config();
  const auto picture = model.engine.picture();
  Json heads = Json::array();
  const auto& reports = model.engine.heads();
  for (size_t i = 0; i < reports.size(); ++i) {
    const HeadReport& head = reports[i];
    const AttentionCounters counters = i < picture->attention.size() ? picture->attention[i] : AttentionCounters{};
    heads.push_back({{"layer", head.layer},
                     {"head", head.head},
                     {"alpha", head.alpha},
                     {"beta", head.beta},
                     {"theta_mu", head.theta_mu},
                     {"mu", 2 * std::sinh(head.theta_mu)},
                     {"seq_scale", head.seq_scale},
                     {"class", head_class(config, head)},
                     {"reach", head.reach < 0 ? Json() : Json(head.reach)},
                     {"logit_bound", head.logit_bound},
                     {"tiles_visited", counters.visited},
                     {"tiles_skipped", counters.skipped},
                     {"bound_tests", counters.bound_tests},
                     {"left_out_bound", counters.left_out}});
  }
  call->reply_json(dump_json({{"position_encoding", position_encoding_name(config.position_encoding)},
                                  {"prior_form", form_name(config.prior_form)},
                                  {"prior_eps", config.prior_eps},
                                  {"ssmax", config.ssmax},
                                  {"ssmax_prior", config.ssmax_prior},
                                  {"head_dim", config.head_dim},
                                  {"num_layers", config.num_layers},
                                  {"num_heads", config.num_heads},
                                  {"num_kv_heads", config.num_kv_heads},
                                  {"max_model_len", model.engine.config().max_model_len},
                                  {"heads", std::move(heads)}}));
}

void handle_attention(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  const ModelConfig& config = model.engine.model_config();
  auto body = parse_json_object(call->body);
  if (!body) return call->reply(body.error());
  FieldReader fields(*body);
  std::vector<int32_t> tokens;
  if (const Json* ids = fields.array("tokens", kMaxAttentionTokens)) {
    if (auto list = read_token_ids(fields, "tokens", *ids)) tokens = *std::move(list);
  } else if (auto text = fields.text("prompt", 1 << 20)) {
    tokens = model.tokenizer.encode(*text, fields.boolean("add_special_tokens").value_or(true), true);
  }
  if (fields.ok() && tokens.empty()) fields.fail("prompt", "'prompt' or 'tokens' is missing or empty.");
  if (fields.ok() && static_cast<int64_t>(tokens.size()) > kMaxAttentionTokens) {
    fields.fail("prompt",
                fmt::format("the prompt has {} tokens; at most {} are shown.", tokens.size(), kMaxAttentionTokens));
  }
  for (const int32_t id : tokens) {
    if (id >= config.vocab_size) fields.fail("tokens", fmt::format("'tokens': {} is no token id.", id));
  }
  const int64_t last = static_cast<int64_t>(tokens.size()) - 1;
  const int64_t layer = fields.integer("layer", 0, config.num_layers - 1).value_or(0);
  const int64_t head = fields.integer("head", 0, config.num_heads - 1).value_or(0);
  const int64_t position = fields.ok() ? fields.integer("position", 0, last).value_or(last) : 0;
  if (!fields.ok()) return call->reply(ApiError::invalid(fields.error()));
  const auto row = model.engine.attention_row(tokens, static_cast<int>(layer), static_cast<int>(head), position);
  if (!row) return call->reply(ApiError::invalid(row.error().what()));
  call->reply_json(dump_json(
      {{"layer", layer}, {"head", head}, {"position", position}, {"tokens", tokens}, {"probabilities", *row}}));
}

void handle_passkey(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  if (!model.passkey_selftest) {
    return call->reply(ApiError::not_built("This server was built without the passkey self test."));
  }
  model.passkey_selftest(context, std::move(call));
}

}  // namespace bam
