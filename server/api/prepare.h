// From the typed request to what the engine and the reply need: checks against the model's limits, the constraint,
// token ids. No state of a connection is touched; it runs on a worker.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/choice_decoder.h"
#include "server/api/openai_api.h"
#include "server/api/server_context.h"

namespace bam {

// Only what the reply needs is kept beside the ids.
struct PreparedPrompt {
  std::vector<int32_t> ids;
  std::string text;                  // with echo
  std::vector<TokenRecord> records;  // with prompt_logprobs, or echo with logprobs; the engine's values come later
  int64_t text_length = 0;           // characters, with echo
  int64_t max_tokens = 0;            // to generate
};

// 404 for a name that is not served.
std::optional<ApiError> check_model(const ServerContext& context, const std::optional<std::string>& name);

// Fills request.engine's constraint and timeout, takes the prompts or messages out of the request and gives them back as
// token ids. `log_text` gets the prompts' text when the server logs it.
ApiResult<std::vector<PreparedPrompt>> prepare_prompts(const ServerContext& context, const ServingModel& model,
                                                       const Caller& caller, GenerationRequest& request,
                                                       std::string& log_text);

// The request's constraint leaves no next token: why, in front of it the fields that it was made of.
ApiError constraint_error(const GenerationRequest& request, std::string_view why);

DecodeOptions decode_options(const ServingModel& model, const GenerationRequest& request);

}  // namespace bam
