// The first byte chooses how the rest is read: 0 a whole file, 1 a header (its length is put in front), 2 a shard
// index.
#include <cstdlib>
#include <cstring>
#include <string>

#include "models/safetensors.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void fuzz_file(std::span<const std::byte> file) {
  const auto header = bam::parse_safetensors(file);
  if (!header) {
    require(std::strlen(header.error().what()) > 0);
    return;
  }
  uint64_t total_bytes = 0;
  uint64_t touched = 0;
  for (const bam::TensorInfo& tensor : header->tensors) {
    require(tensor.begin <= tensor.end);
    require(header->find(tensor.name) == &tensor);
    const auto data = file.subspan(header->data_start).subspan(tensor.begin, tensor.end - tensor.begin);
    total_bytes += data.size();
    if (!data.empty()) touched += std::to_integer<uint64_t>(data.front()) + std::to_integer<uint64_t>(data.back());
  }
  require(header->data_start + total_bytes == file.size());
  volatile uint64_t keep = touched;
  (void)keep;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 2) {
    const auto index = bam::parse_safetensors_index(rest);
    if (!index) return 0;
    for (const auto& [tensor, shard] : *index) require(shard.find('/') == std::string::npos && shard != "..");
    return 0;
  }
  std::string file = rest;
  if (data[0] == 1) {
    const uint64_t length = rest.size();
    file.insert(0, reinterpret_cast<const char*>(&length), sizeof(length));
  }
  fuzz_file(std::as_bytes(std::span(file.data(), file.size())));
  return 0;
}
