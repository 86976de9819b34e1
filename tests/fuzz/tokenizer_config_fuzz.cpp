// The first byte chooses how the rest is read: 0 tokenizer_config.json, 1 tokenizer.model's own fields.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "models/bpe_splitter.h"
#include "models/sentencepiece_model.h"
#include "models/tokenizer_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 1) {
    const auto model = bam::parse_sentencepiece_model(rest);
    if (model) bam::BpeSplitter splitter(*model);
    return 0;
  }
  try {
    bam::parse_tokenizer_config(rest, "tokenizer_config.json");
  } catch (const bam::Error&) {
  }
  return 0;
}
