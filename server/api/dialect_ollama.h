#pragma once

#include <optional>

#include "base/json.h"
#include "server/api/api_error.h"

namespace bam {

// What all of Ollama's requests have: names of models, options, formats.
std::optional<ApiError> translate_ollama(Json& body);

}  // namespace bam
