// A look at attention as JSON, head by head: what /v1/attention answers and `bam inspect --look` prints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/attention_walk.h"

namespace bam {

class Tokenizer;

// {"object": "attention", … "heads": [
void append_attention_begin(std::string& out, const std::string& id, const std::string& model,
                            const AttentionReport& report);
void append_attention_head(std::string& out, const HeadAttention& head);
// ], "tokens": {position: text}: of the query, the peaks and so many around each, and of the whole range if it is short.
void append_attention_tokens(std::string& out, const Tokenizer& tokenizer, const AttentionReport& report,
                             const std::vector<int32_t>& ids, int64_t context);

}  // namespace bam
