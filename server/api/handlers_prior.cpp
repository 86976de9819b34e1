#include <cmath>

#include <fmt/format.h>

#include "models/head_report.h"
#include "server/api/handlers.h"
#include "server/api/json_body.h"

namespace bam {

namespace {

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

void handle_passkey(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  if (!model.passkey_selftest) {
    return call->reply(ApiError::not_built("This server was built without the passkey self test."));
  }
  model.passkey_selftest(context, std::move(call));
}

}  // namespace bam
