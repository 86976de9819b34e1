#pragma once

#include "server/api/openai_api.h"

namespace bam {

// Every field with which OpenAI's, vLLM's, SGLang's and llama.cpp's clients restrict the output. What cannot be honoured
// is refused by name, never dropped.
FieldTable<GenerationRequest> constraint_fields();

}  // namespace bam
