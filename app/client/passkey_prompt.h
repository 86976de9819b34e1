#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "app/client/prompt_builder.h"

namespace bam::client {

// The BAM paper's passkey task. Pure functions: the command, the server's self test and the tests share them.
struct PasskeyWording {
  static constexpr std::string_view kTask =
      "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
      "about the important information there.";
  static constexpr std::string_view kFiller =
      "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
  static constexpr std::string_view kLine = "The pass key is {key}. Remember it. {key} is the pass key.";
  static constexpr std::string_view kQuestion = "What is the pass key? The pass key is";
};

struct PasskeyPrompt {
  TokenIds ids;            // exactly `length` tokens, no special ones
  std::string key;         // the digits to find
  int64_t line_at = 0;     // token index of the line that holds them
  int64_t max_tokens = 0;  // enough for the digits and a leading space
};

// `digits` digits, the first not zero (as in the paper), fixed by the seed and the cell.
std::string make_passkey(uint64_t seed, int64_t length, double depth, int repeat, int digits = 5);

PromptParts passkey_parts(const PieceEncoder& encoder, double depth, std::string_view key);
int64_t passkey_max_tokens(const PieceEncoder& encoder, std::string_view key);

// depth 0 … 1. Throws Error when `length` does not hold the task itself.
PasskeyPrompt make_passkey_prompt(const PieceEncoder& encoder, int64_t length, double depth, std::string_view key);

// All digits right: the first run of digits in the answer starts with the key.
bool is_passkey_hit(std::string_view answer, std::string_view key);

std::string fill_in(std::string_view wording, std::string_view name, std::string_view value);

}  // namespace bam::client
