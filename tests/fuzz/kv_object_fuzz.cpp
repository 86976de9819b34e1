// Objects of a store that replicas share: whatever lies there is refused or has exactly the bytes that were asked for.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "server/store/kv_object.h"

using namespace bam;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const size_t payload = data[0];
  const std::span<const std::byte> object(reinterpret_cast<const std::byte*>(data + 1), size - 1);
  ObjectName name{};
  if (object.size() >= kObjectHeaderBytes) std::copy_n(data + 1 + 8, name.size(), name.begin());
  const auto opened = open_object(name, payload, object);
  if (opened.ok() && (opened->size() != payload || opened->data() != object.data() + kObjectHeaderBytes)) std::abort();

  // What is sealed opens; with any byte changed it does not.
  if (object.size() < kObjectHeaderBytes) return 0;
  std::vector<std::byte> sealed(object.begin(), object.end());
  seal_object(name, sealed);
  if (!open_object(name, sealed.size() - kObjectHeaderBytes, sealed).ok()) std::abort();
  sealed[data[0] % sealed.size()] ^= std::byte{1};
  if (open_object(name, sealed.size() - kObjectHeaderBytes, sealed).ok()) std::abort();
  return 0;
}
