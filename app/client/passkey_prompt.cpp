#include "app/client/passkey_prompt.h"

#include <algorithm>
#include <cmath>

#include "app/client/rng.h"

namespace bam::client {

std::string make_passkey(uint64_t seed, int64_t length, double depth, int repeat, int digits) {
  const auto depth_ppm = static_cast<uint64_t>(std::llround(depth * 1e6));
  Rng rng = Rng::stream(seed, static_cast<uint64_t>(length), depth_ppm, static_cast<uint64_t>(repeat));
  std::string key;
  for (int i = 0; i < digits; ++i) {
    key.push_back(static_cast<char>('0' + rng.uniform_int(i == 0 ? 1 : 0, 9)));
  }
  return key;
}

std::string fill_in(std::string_view wording, std::string_view name, std::string_view value) {
  std::string text(wording);
  for (size_t at = 0; (at = text.find(name, at)) != text.npos; at += value.size()) {
    text.replace(at, name.size(), value);
  }
  return text;
}

PromptParts passkey_parts(const PieceEncoder& encoder, double depth, std::string_view key) {
  PromptParts parts;
  parts.head = encoder.first(PasskeyWording::kTask);
  parts.inserts.push_back({encoder.next(fill_in(PasskeyWording::kLine, "{key}", key)), depth});
  parts.tail = encoder.next(PasskeyWording::kQuestion);
  return parts;
}

int64_t passkey_max_tokens(const PieceEncoder& encoder, std::string_view key) {
  // Some tokenizers give the space before the digits a token of its own.
  return static_cast<int64_t>(std::max(encoder.next(key).size(), key.size())) + 2;
}

PasskeyPrompt make_passkey_prompt(const PieceEncoder& encoder, int64_t length, double depth, std::string_view key) {
  AssembledPrompt assembled =
      assemble_prompt(passkey_parts(encoder, depth, key), {encoder.next(PasskeyWording::kFiller)}, length);
  PasskeyPrompt prompt;
  prompt.ids = std::move(assembled.ids);
  prompt.key = key;
  prompt.line_at = assembled.insert_at[0];
  prompt.max_tokens = passkey_max_tokens(encoder, key);
  return prompt;
}

bool is_passkey_hit(std::string_view answer, std::string_view key) {
  const size_t begin = answer.find_first_of("0123456789");
  return begin != answer.npos && !key.empty() && answer.substr(begin).starts_with(key);
}

}  // namespace bam::client
