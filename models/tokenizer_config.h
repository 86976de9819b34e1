#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bam {

// The keys of tokenizer_config.json that matter here; all are optional and null counts as absent.
struct TokenizerConfig {
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<std::string> bos_token;  // the piece's spelling; files write a string or {"content": string}
  std::optional<std::string> eos_token;
  std::optional<std::string> unk_token;
  std::vector<std::string> special_tokens;  // additional_special_tokens
  struct AddedToken {
    int32_t id;
    std::string content;
    bool special;
  };
  std::vector<AddedToken> added_tokens;  // added_tokens_decoder: {"32000": {"content": string, "special": bool}}
  std::string chat_template;             // files write a string or [{"name", "template"}], of which "default" is taken
};

// Throws Error naming `origin`, the key and the reason. Unknown keys are ignored.
TokenizerConfig parse_tokenizer_config(std::string_view json_text, const std::string& origin);

}  // namespace bam
