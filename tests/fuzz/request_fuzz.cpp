// Request bodies from anybody. The first byte chooses the dialect. Whatever becomes a request is inside every limit.
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "server/api/json_body.h"
#include "server/api/openai_api.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto body = bam::parse_json_object(text);
  if (!body.ok()) {
    require(body.error().status >= 400 && body.error().status < 500 && !body.error().message.empty());
    require(bam::Json::accept(body.error().to_json()));
    return 0;
  }
  require(body->is_object());
  const auto kind = data[0] % 2 ? bam::ApiKind::kChat : bam::ApiKind::kCompletion;
  const auto request = bam::parse_generation_request(*body, kind, {});
  if (!request.ok()) {
    require(request.error().status >= 400 && request.error().status < 600);
    require(bam::Json::accept(request.error().to_json()));
    return 0;
  }
  const bam::GenerationRequest& r = *request;
  namespace limits = bam::limits;
  require(r.prompts.size() <= limits::kPrompts && r.messages.size() <= limits::kMessages);
  require(r.engine.n >= 1 && r.engine.n <= limits::kChoices && r.stop.size() <= limits::kStopStrings);
  for (const std::string& stop : r.stop) require(!stop.empty() && stop.size() <= limits::kStopStringBytes);
  require(r.engine.sampling.num_logprobs <= limits::kLogprobs && r.engine.cache_salt.size() <= limits::kCacheSaltBytes);
  require(std::isfinite(r.engine.sampling.temperature) && r.engine.sampling.temperature >= 0);
  const bam::SamplingParams& sampling = r.engine.sampling;
  require(sampling.top_p >= 0 && sampling.top_p <= 1 && sampling.min_p >= 0 && sampling.min_p <= 1);
  require(std::isfinite(r.engine.sampling.repetition_penalty) && r.engine.sampling.repetition_penalty > 0);
  require(r.request_id.empty() || bam::is_valid_request_id(r.request_id));
  require(!r.max_tokens || (*r.max_tokens >= 0 && *r.max_tokens <= limits::kMaxTokens));
  require(!r.engine.timeout || r.engine.timeout->count() > 0);
  return 0;
}
