// Schemas from anywhere: compiling one, and generating under it, must neither crash nor take long; what is generated to
// its end must be JSON.
#include <cstdlib>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "server/grammar/constraint.h"

namespace {

constexpr int32_t kEos = 256;

const bam::ConstraintVocabulary& vocabulary() {
  static const bam::ConstraintVocabulary vocabulary = [] {
    std::vector<std::string> tokens;
    for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
    tokens.emplace_back();
    for (const char* piece : {"{\"", "\":", "\", \"", "\"}", "]}", "true", "null", "12", "  ", "\n  ", "é"})
      tokens.emplace_back(piece);
    return bam::ConstraintVocabulary(tokens, {kEos});
  }();
  return vocabulary;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  uint32_t choice = data[0];
  const auto compiled =
      bam::compile_json_schema(std::string(reinterpret_cast<const char*>(data + 1), size - 1), vocabulary());
  if (!compiled.ok()) return 0;
  const auto& tokens = vocabulary().trie()->token_bytes;
  const auto constraint = (*compiled)->clone_initial();
  std::string text;
  for (int step = 0; step < 60; ++step) {
    std::vector<uint32_t> mask(9, 0);
    constraint->allowed_tokens(mask);
    std::vector<int32_t> allowed;
    for (size_t t = 0; t < tokens.size(); ++t) {
      if (mask[t / 32] >> (t % 32) & 1) allowed.push_back(static_cast<int32_t>(t));
    }
    if (allowed.empty()) std::abort();
    choice = choice * 1664525 + 1013904223;
    int32_t token = allowed[(choice >> 8) % allowed.size()];
    for (int32_t t : allowed) {
      const bool closes = t == kEos || t == '"' || t == '}' || t == ']';
      if (closes && (step > 20 || choice % 3 == 0)) token = t;
    }
    if (token == kEos) {
      if (nlohmann::json::parse(text, nullptr, false).is_discarded()) std::abort();
      break;
    }
    text += tokens[static_cast<size_t>(token)];
    constraint->accept(token);
  }
  return 0;
}
