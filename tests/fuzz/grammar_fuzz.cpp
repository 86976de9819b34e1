// Grammars from anywhere, in both notations: compiling one, and generating under it, must neither crash nor take long, and
// a token that the mask allows must leave something allowed, or the constraint says why not.
#include <cstdlib>
#include <string>
#include <vector>

#include "server/grammar/constraint.h"

namespace {

constexpr int32_t kEos = 256;

const bam::ConstraintVocabulary& vocabulary() {
  static const bam::ConstraintVocabulary vocabulary = [] {
    std::vector<std::string> tokens;
    for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
    tokens.emplace_back();
    for (const char* piece : {"ab", "abc", "aa", "12", "  ", "\n\n", "((", "))", "é"}) tokens.emplace_back(piece);
    return bam::ConstraintVocabulary(tokens, {kEos});
  }();
  return vocabulary;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  uint32_t choice = data[0];
  const auto compiled =
      bam::compile_grammar(std::string(reinterpret_cast<const char*>(data + 1), size - 1), vocabulary());
  if (!compiled.ok()) return 0;
  const auto constraint = (*compiled)->clone_initial();
  for (int step = 0; step < 20 && !constraint->finished(); ++step) {
    std::vector<uint32_t> mask(9, 0);
    constraint->allowed_tokens(mask);
    std::vector<int32_t> allowed;
    for (int32_t t = 0; t < 266; ++t) {
      if (mask[static_cast<size_t>(t) / 32] >> (t % 32) & 1) allowed.push_back(t);
    }
    if (allowed.empty() && constraint->failure().empty()) std::abort();
    if (allowed.empty()) break;
    choice = choice * 1664525 + 1013904223;
    constraint->accept(allowed[(choice >> 8) % allowed.size()]);
  }
  return 0;
}
