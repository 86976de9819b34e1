#include "engine/admission.h"

#include <algorithm>

#include <fmt/format.h>

#include "models/model_config.h"

namespace bam {

std::string never_fits(const Request& request, const KvPlan& plan, const ModelConfig& model) {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t completion = request.sampling.max_tokens;
  if (prompt == 0) return "the prompt is empty";
  if (request.n < 1 || completion < 0) return "n must be at least 1 and max_tokens at least 0";
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= model.vocab_size) {
      return fmt::format("token id {} is outside the vocabulary of {} tokens", token, model.vocab_size);
    }
  }
  const int64_t limit = plan.config.max_model_len;
  if (prompt > limit || completion > limit - prompt) {
    return fmt::format(
        "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the "
        "prompt, {} for the completion). Please reduce the length of the prompt or of the completion.",
        limit, prompt + completion, prompt, completion);
  }
  if (request.look) {
    if (completion != 0 || request.n != 1) return "a look at attention generates nothing";
    if (std::string wrong = check_look(*request.look, model, prompt); !wrong.empty()) return wrong;
  }
  const int64_t pages = plan.geometry.pages_for(prompt + completion);
  if (pages > plan.num_pages) {
    return fmt::format(
        "{} tokens ({} in the prompt, {} for the completion) need {} KV pages, but the whole cache has {}",
        prompt + completion, prompt, completion, pages, plan.num_pages);
  }
  return {};
}

ForecastSequence forecast_arrival(const Request& request, const KvPlan& plan) {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t max_len = std::min(prompt + request.sampling.max_tokens, plan.config.max_model_len);
  ForecastSequence f = forecast_of(request, max_len, 0);
  f.arrival = UINT64_MAX;  // after all that have a number
  f.pages = plan.geometry.pages_for(std::min(prompt + 1, max_len));
  return f;
}

}  // namespace bam
