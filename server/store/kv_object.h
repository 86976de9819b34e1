// Pages of a prefix as one object, named by what is in it.
//
//   name    SHA-256 over the identity of model, tokenizer, arithmetic and page layout, the salt, all tokens of the prefix
//           up to the object's end, and which of its pages these are. Who knows neither salt nor tokens cannot ask for it;
//           whose engine computes other bits asks for another one.
//   object  header: magic, the name, size and checksum of the pages, checksum of the header; then the raw pages
//
// A prefix is cut into stretches of a fixed number of tokens. A stretch has the pages that every longer prefix needs, those
// of groups with an unbounded reach. The pages of bounded groups are needed near the end of a prefix only: they are the
// tail of the prefixes that end with a stretch. Both are cut into parts of a few MiB, the last one smaller.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace bam {

struct KvFileFormat;

using ObjectName = std::array<uint8_t, 32>;
std::string to_hex(const ObjectName& name);

enum class ObjectKind : uint8_t { kStretch, kTail };

// The names of the objects of one prompt.
class PrefixNames {
 public:
  // part_bytes is part of the names: other parts are other objects.
  PrefixNames(const KvFileFormat& format, int64_t stretch_tokens, uint64_t part_bytes, const std::string& salt,
              std::span<const int32_t> tokens);
  int64_t num_stretches() const { return static_cast<int64_t>(ends_.size()); }
  // The `part`-th object of stretch `index`, or of the tail of the prefix that ends with it.
  ObjectName name(ObjectKind kind, int64_t index, int64_t part) const;

 private:
  std::vector<ObjectName> ends_;  // [stretches] hash of everything up to the end of the stretch
};

inline constexpr size_t kObjectHeaderBytes = 64;

// Writes the header before the pages that lie behind it in `object`.
void seal_object(const ObjectName& name, std::span<std::byte> object);
// The pages, or what is wrong with the object.
Result<std::span<const std::byte>> open_object(const ObjectName& name, size_t payload_bytes,
                                               std::span<const std::byte> object);

}  // namespace bam
