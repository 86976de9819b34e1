// A compiled normalisation map that passes the check must be safe to walk with any text: the library does so without
// looking at bounds. Input: one byte n, n bytes of text, the map.
#include <sentencepiece_processor.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "models/normalization_map.h"

namespace {

std::string field(char tag, std::string_view content) {
  std::string out(1, tag);
  for (size_t n = content.size();; n >>= 7) {
    out.push_back(static_cast<char>((n & 0x7f) | (n > 0x7f ? 0x80 : 0)));
    if (n <= 0x7f) break;
  }
  return out.append(content);
}

// <unk>, <s>, </s> and one letter, with this map.
std::string model(std::string_view map) {
  std::string out;
  out += field('\x0a', field('\x0a', "<unk>") + std::string("\x18\x02", 2));
  out += field('\x0a', field('\x0a', "<s>") + std::string("\x18\x03", 2));
  out += field('\x0a', field('\x0a', "</s>") + std::string("\x18\x03", 2));
  out += field('\x0a', field('\x0a', "a"));
  out += field('\x1a', field('\x12', map));
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size - 1 < data[0]) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, data[0]);
  const std::string_view map(text.data() + text.size(), size - 1 - text.size());
  if (map.empty() || !bam::normalization_map_fault(map).empty()) return 0;
  sentencepiece::SentencePieceProcessor processor;
  if (!processor.LoadFromSerializedProto(model(map)).ok()) return 0;
  std::vector<int> ids;
  if (!processor.Encode(text, &ids).ok()) std::abort();
  return 0;
}
