#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"

namespace bam {

// Every element type of the format; a BAM model itself uses F32, F16 and BF16.
enum class TensorType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64
};
std::string_view tensor_type_name(TensorType type);  // as spelled in files: "BF16"
size_t tensor_type_bytes(TensorType type);
std::optional<TensorType> tensor_type_from_name(std::string_view name);

struct TensorInfo {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<uint64_t> shape;  // empty: one element
  uint64_t begin = 0, end = 0;  // bytes, relative to the end of the header
};

// A checked header:   | N: u64 little-endian | N bytes of JSON | tensor data, no holes |
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the header's order
  std::map<std::string, std::string> metadata;
  std::unordered_map<std::string, size_t> index;  // name -> position in `tensors`
  uint64_t data_start = 0;                        // 8 + N

  const TensorInfo* find(const std::string& name) const;
};

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr size_t kMaxTensorRank = 64;

// Checks every rule of the format against a whole file's bytes. The error names rule and tensor, not the file.
// After success, data_start + end <= file.size() for every tensor.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file);

// An open file with views into its mapping. Immutable.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);  // throws Error naming the path

  const std::filesystem::path& path() const { return file_.path(); }
  const SafetensorsHeader& header() const { return header_; }
  uint64_t file_bytes() const { return file_.size(); }
  std::span<const std::byte> header_bytes() const { return file_.bytes().first(header_.data_start); }
  // Not aligned in general; valid while this object lives.
  std::span<const std::byte> data(const TensorInfo& tensor) const {
    return file_.bytes().subspan(header_.data_start + tensor.begin, tensor.end - tensor.begin);
  }
  bool holds(std::span<const std::byte> part) const { return file_.holds(part); }
  bool changed() const { return file_.changed(); }
  // Its memory goes back to the system until it is touched again.
  void release(std::span<const std::byte> part) const { file_.release(part); }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

// model.safetensors.index.json: which shard holds which tensor. Checks that every shard is a plain file name.
Result<std::map<std::string, std::string>> parse_safetensors_index(std::string_view json_text);

// The tensors of a checkpoint folder, from model.safetensors or, when there is none, from the shards of the index.
class SafetensorsCheckpoint {
 public:
  // Throws Error naming file and tensor. Every tensor is found in exactly the shard that the index names, and no shard
  // holds a tensor that the index does not name.
  explicit SafetensorsCheckpoint(const std::filesystem::path& folder);

  struct Entry {
    const SafetensorsFile* file;
    const TensorInfo* tensor;
  };
  const std::map<std::string, Entry>& tensors() const { return tensors_; }
  const std::vector<std::shared_ptr<SafetensorsFile>>& files() const { return files_; }

 private:
  void open_shards(const std::filesystem::path& folder, const std::filesystem::path& index_path);

  std::vector<std::shared_ptr<SafetensorsFile>> files_;  // ordered by name
  std::map<std::string, Entry> tensors_;
};

}  // namespace bam
