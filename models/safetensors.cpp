#include "models/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "base/json.h"
#include "base/utf8.h"

namespace bam {
namespace {

struct TypeRow {
  TensorType type;
  std::string_view name;
  size_t bytes;
};

// In the order of the enum.
constexpr std::array<TypeRow, 15> kTypes = {{{TensorType::kBool, "BOOL", 1},
                                             {TensorType::kU8, "U8", 1},
                                             {TensorType::kI8, "I8", 1},
                                             {TensorType::kF8E4M3, "F8_E4M3", 1},
                                             {TensorType::kF8E5M2, "F8_E5M2", 1},
                                             {TensorType::kI16, "I16", 2},
                                             {TensorType::kU16, "U16", 2},
                                             {TensorType::kF16, "F16", 2},
                                             {TensorType::kBF16, "BF16", 2},
                                             {TensorType::kI32, "I32", 4},
                                             {TensorType::kU32, "U32", 4},
                                             {TensorType::kF32, "F32", 4},
                                             {TensorType::kF64, "F64", 8},
                                             {TensorType::kI64, "I64", 8},
                                             {TensorType::kU64, "U64", 8}}};

const TypeRow& type_row(TensorType type) { return kTypes[static_cast<size_t>(type)]; }

// A state machine over the JSON events of a header. The format has three levels and no free-form part, so every event
// that does not fit the current state is an error; nothing nests deeper and nothing unknown is stored.
class HeaderReader {
 public:
  using json = nlohmann::json;

  explicit HeaderReader(SafetensorsHeader& header) : header_(header) {}

  bool start_object(size_t) {
    switch (state_) {
      case State::kDocument: state_ = State::kTop; return true;
      case State::kMetadataValue: state_ = State::kMetadata; return true;
      case State::kTensorValue: state_ = State::kTensor; return true;
      default: return mismatch();
    }
  }

  bool key(std::string& name) {
    switch (state_) {
      case State::kTop: return top_key(name);
      case State::kMetadata:
        if (header_.metadata.contains(name)) return duplicate(name, "__metadata__");
        metadata_key_ = name;
        state_ = State::kMetadataString;
        return true;
      default: return tensor_key(name);
    }
  }

  bool end_object() {
    if (state_ == State::kTensor && !finish_tensor()) return false;
    state_ = state_ == State::kTop ? State::kDone : State::kTop;
    return true;
  }

  bool start_array(size_t) {
    if (state_ == State::kShape) {
      state_ = State::kShapeItems;
    } else if (state_ == State::kOffsets) {
      state_ = State::kOffsetItems;
    } else {
      return mismatch();
    }
    return true;
  }

  bool end_array() {
    if (state_ == State::kOffsetItems && num_offsets_ != 2) return mismatch();
    state_ = State::kTensor;
    return true;
  }

  bool number_unsigned(json::number_unsigned_t value) {
    if (state_ == State::kShapeItems) {
      if (tensor().shape.size() == kMaxTensorRank) {
        return fail(fmt::format("{}: more than {} dimensions", label(), kMaxTensorRank));
      }
      tensor().shape.push_back(value);
      return true;
    }
    if (state_ != State::kOffsetItems || num_offsets_ == 2) return mismatch();
    (num_offsets_++ == 0 ? tensor().begin : tensor().end) = value;
    return true;
  }

  bool string(std::string& value) {
    if (state_ == State::kMetadataString) {
      header_.metadata.emplace(std::move(metadata_key_), std::move(value));
      state_ = State::kMetadata;
      return true;
    }
    if (state_ != State::kType) return mismatch();
    const std::optional<TensorType> type = tensor_type_from_name(value);
    if (!type) return fail(fmt::format("{}: unknown dtype '{}'", label(), printable(value, 40)));
    tensor().type = *type;
    state_ = State::kTensor;
    return true;
  }

  bool null() { return mismatch(); }
  bool boolean(bool) { return mismatch(); }
  bool number_integer(json::number_integer_t) { return mismatch(); }
  bool number_float(json::number_float_t, const std::string&) { return mismatch(); }
  bool binary(json::binary_t&) { return mismatch(); }
  bool parse_error(size_t, const std::string&, const json::exception& error) {
    return fail("header is not valid JSON: " + describe_json_error(error));
  }

  const std::string& failure() const { return failure_; }

 private:
  enum class State {
    kDocument,
    kTop,
    kDone,  // around, in and after the header object
    kMetadataValue,
    kMetadata,
    kMetadataString,  // "__metadata__": {key: string}
    kTensorValue,
    kTensor,
    kType,
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetItems,
  };

  TensorInfo& tensor() { return header_.tensors.back(); }
  std::string label() { return fmt::format("tensor '{}'", printable(tensor().name)); }

  bool fail(std::string message) {
    if (failure_.empty()) failure_ = std::move(message);
    return false;
  }
  bool duplicate(const std::string& name, const std::string& where) {
    return fail(fmt::format("key '{}' appears twice in {}", printable(name), where));
  }

  bool mismatch() {
    switch (state_) {
      case State::kMetadataValue: return fail("__metadata__ must be an object");
      case State::kMetadataString:
        return fail(fmt::format("__metadata__ key '{}' must be a string", printable(metadata_key_)));
      case State::kTensorValue: return fail(label() + " must be an object");
      case State::kType: return fail(label() + ": dtype must be a string");
      case State::kShape:
      case State::kShapeItems: return fail(label() + ": shape must be an array of unsigned integers");
      case State::kOffsets:
      case State::kOffsetItems: return fail(label() + ": data_offsets must be two unsigned integers");
      default: return fail("header must be a JSON object");
    }
  }

  bool top_key(const std::string& name) {
    if (name == "__metadata__") {
      if (has_metadata_) return duplicate(name, "the header");
      has_metadata_ = true;
      state_ = State::kMetadataValue;
      return true;
    }
    if (!header_.index.emplace(name, header_.tensors.size()).second) return duplicate(name, "the header");
    header_.tensors.emplace_back().name = name;
    has_type_ = has_shape_ = has_offsets_ = false;
    num_offsets_ = 0;
    state_ = State::kTensorValue;
    return true;
  }

  bool tensor_key(const std::string& name) {
    bool* seen = nullptr;
    if (name == "dtype") {
      seen = &has_type_;
      state_ = State::kType;
    } else if (name == "shape") {
      seen = &has_shape_;
      state_ = State::kShape;
    } else if (name == "data_offsets") {
      seen = &has_offsets_;
      state_ = State::kOffsets;
    } else {
      return fail(fmt::format("{}: unknown key '{}'", label(), printable(name, 40)));
    }
    if (*seen) return duplicate(name, label());
    *seen = true;
    return true;
  }

  bool finish_tensor() {
    if (!has_type_) return fail(label() + ": dtype is missing");
    if (!has_shape_) return fail(label() + ": shape is missing");
    if (!has_offsets_) return fail(label() + ": data_offsets are missing");
    return true;
  }

  SafetensorsHeader& header_;
  State state_ = State::kDocument;
  std::string metadata_key_;
  bool has_metadata_ = false;
  bool has_type_ = false, has_shape_ = false, has_offsets_ = false;
  int num_offsets_ = 0;
  std::string failure_;
};

// Bytes of a tensor, or nothing when the product does not fit in 64 bits.
std::optional<uint64_t> checked_size(const TensorInfo& tensor) {
  uint64_t size = tensor_type_bytes(tensor.type);
  for (const uint64_t dimension : tensor.shape) {
    if (__builtin_mul_overflow(size, dimension, &size)) return std::nullopt;
  }
  return size;
}

// No hole, no overlap, nothing after the last tensor. Empty when all is well.
std::string check_layout(const SafetensorsHeader& header, uint64_t data_bytes) {
  std::vector<size_t> order(header.tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const TensorInfo &x = header.tensors[a], &y = header.tensors[b];
    return x.begin != y.begin ? x.begin < y.begin : x.end < y.end;
  });
  uint64_t expected_begin = 0;
  for (const size_t position : order) {
    const TensorInfo& tensor = header.tensors[position];
    const auto label = [&tensor] { return fmt::format("tensor '{}'", printable(tensor.name)); };
    if (tensor.begin > tensor.end) {
      return fmt::format("{}: data_offsets [{}, {}] run backwards", label(), tensor.begin, tensor.end);
    }
    const std::optional<uint64_t> size = checked_size(tensor);
    if (!size) return label() + ": the size of its shape overflows 64 bits";
    if (*size != tensor.end - tensor.begin) {
      return fmt::format("{}: shape and dtype need {} bytes, data_offsets span {}", label(), *size,
                         tensor.end - tensor.begin);
    }
    if (tensor.begin != expected_begin) {
      return fmt::format("{}: data begins at {}, {} the previous tensor's end {}", label(), tensor.begin,
                         tensor.begin > expected_begin ? "leaving a hole after" : "overlapping", expected_begin);
    }
    expected_begin = tensor.end;
  }
  if (expected_begin != data_bytes) {
    return fmt::format("tensors end at byte {} of the data, but the file has {} data bytes{}", expected_begin,
                       data_bytes, expected_begin > data_bytes ? " (truncated file?)" : "");
  }
  return {};
}

}  // namespace

std::string_view tensor_type_name(TensorType type) { return type_row(type).name; }
size_t tensor_type_bytes(TensorType type) { return type_row(type).bytes; }

std::optional<TensorType> tensor_type_from_name(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

const TensorInfo* SafetensorsHeader::find(const std::string& name) const {
  const auto found = index.find(name);
  return found == index.end() ? nullptr : &tensors[found->second];
}

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file) {
  constexpr uint64_t kPrefix = sizeof(uint64_t);
  if (file.size() < kPrefix) return Error("file of {} bytes is too short for a safetensors header", file.size());
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kPrefix; ++i) header_bytes |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return Error("header length {} is above the limit of {}", header_bytes, kMaxSafetensorsHeaderBytes);
  }
  if (header_bytes > file.size() - kPrefix) {
    return Error("header length {} goes past the end of the file ({} bytes)", header_bytes, file.size());
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kPrefix, header_bytes);
  if (!text.starts_with('{')) return Error("header must be a JSON object that starts with '{'");
  // nlohmann takes a NUL byte for the end of the text and would ignore what follows.
  if (text.find('\0') != std::string_view::npos) return Error("header is not valid JSON: contains a NUL byte");

  SafetensorsHeader header;
  HeaderReader reader(header);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) return Error(reader.failure());
  header.data_start = kPrefix + header_bytes;
  const std::string problem = check_layout(header, file.size() - header.data_start);
  if (!problem.empty()) return Error(problem);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path, MappedFile::Access::kWillNeed) {
  Result<SafetensorsHeader> header = parse_safetensors(file_.bytes());
  if (!header) throw Error("{}: {}", path.string(), header.error().what());
  header_ = std::move(*header);
}

}  // namespace bam
