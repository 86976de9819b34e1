#include "models/sentencepiece_model.h"

#include "models/normalization_map.h"

namespace bam {
namespace {

// One field of a protocol buffer message.
struct Field {
  uint32_t number = 0;
  uint64_t varint = 0;     // wire type 0
  std::string_view bytes;  // wire type 2
};

// Walks over the fields of a message; stops at its end or at the first malformed byte.
class WireReader {
 public:
  explicit WireReader(std::string_view message) : rest_(message) {}

  bool next(Field& field) {
    if (rest_.empty()) return false;
    uint64_t tag = 0;
    if (!varint(tag) || tag >> 3 == 0 || tag >> 32 != 0) return fail();
    field = Field{static_cast<uint32_t>(tag >> 3), 0, {}};
    switch (tag & 7) {
      case 0: return varint(field.varint) || fail();
      case 1: return take(8, field.bytes) || fail();
      case 2: {
        uint64_t length = 0;
        return (varint(length) && take(length, field.bytes)) || fail();
      }
      case 5: return take(4, field.bytes) || fail();
      default: return fail();
    }
  }

  bool malformed() const { return malformed_; }

 private:
  bool fail() {
    malformed_ = true;
    return false;
  }

  bool varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const uint8_t byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool take(uint64_t length, std::string_view& bytes) {
    if (length > rest_.size()) return false;
    bytes = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }

  std::string_view rest_;
  bool malformed_ = false;
};

// Calls `handle(field)` for every field; false when the message is malformed.
template <typename Handler>
bool for_each_field(std::string_view message, Handler handle) {
  WireReader reader(message);
  Field field;
  while (reader.next(field)) handle(field);
  return !reader.malformed();
}

// The field numbers below are those of sentencepiece_model.proto.

bool read_piece(std::string_view message, SentencePieceModel& model) {
  SentencePieceModel::Piece piece;
  const bool ok = for_each_field(message, [&](const Field& field) {
    if (field.number == 1) piece.text = field.bytes;
    if (field.number == 3) piece.type = static_cast<SentencePieceModel::PieceType>(field.varint);
  });
  const auto type = static_cast<uint8_t>(piece.type);
  model.pieces.push_back(piece);
  return ok && type >= 1 && type <= 6;
}

bool read_trainer_spec(std::string_view message, SentencePieceModel& model) {
  return for_each_field(message, [&](const Field& field) {
    if (field.number == 3) model.algorithm = static_cast<SentencePieceModel::Algorithm>(field.varint);
    if (field.number == 24) model.whitespace_as_suffix = field.varint != 0;
    if (field.number == 35) model.byte_fallback = field.varint != 0;
    if (field.number == 44) model.unknown_surface = std::string(field.bytes);
  });
}

bool read_normalizer_spec(std::string_view message, SentencePieceModel& model) {
  return for_each_field(message, [&](const Field& field) {
    if (field.number == 2) model.normalization_map = field.bytes;
    if (field.number == 3) model.add_dummy_prefix = field.varint != 0;
    if (field.number == 4) model.remove_extra_whitespaces = field.varint != 0;
    if (field.number == 5) model.escape_whitespaces = field.varint != 0;
  });
}

bool read_denormalizer_spec(std::string_view message, SentencePieceModel& model) {
  return for_each_field(message, [&](const Field& field) {
    if (field.number == 2) model.has_denormalization_map = !field.bytes.empty();
  });
}

// What the library takes for granted of a piece; empty: nothing is wrong.
std::string_view piece_fault(const SentencePieceModel::Piece& piece, SentencePieceModel::Algorithm algorithm) {
  using Type = SentencePieceModel::PieceType;
  if (piece.text.empty()) return "a piece is empty";
  // It builds tries of these, and its tries end the process for it.
  const bool in_trie = piece.type == Type::kUserDefined || algorithm != SentencePieceModel::Algorithm::kBpe;
  if (in_trie && piece.text.find('\0') != std::string_view::npos) return "a piece holds a NUL byte";
  if (piece.type != Type::kByte) return {};
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
  const bool fits = piece.text.size() == 6 && piece.text.starts_with("<0x") && piece.text.ends_with('>') &&
                    is_hex(piece.text[3]) && is_hex(piece.text[4]);
  return fits ? "" : "a byte piece is not spelled <0xHH>";
}

}  // namespace

Result<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes) {
  SentencePieceModel model;
  bool parts_ok = true;
  const bool ok = for_each_field(bytes, [&](const Field& field) {
    switch (field.number) {
      case 1: parts_ok &= read_piece(field.bytes, model); break;
      case 2: parts_ok &= read_trainer_spec(field.bytes, model); break;
      case 3: parts_ok &= read_normalizer_spec(field.bytes, model); break;
      case 5: parts_ok &= read_denormalizer_spec(field.bytes, model); break;
      default: break;
    }
  });
  if (!ok || !parts_ok || model.pieces.empty()) return Error("not a sentencepiece model");
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (const std::string_view fault = piece_fault(piece, model.algorithm); !fault.empty()) {
      return Error("not a usable sentencepiece model: {}", fault);
    }
  }
  if (model.whitespace_as_suffix) {
    return Error("models trained with treat_whitespace_as_suffix are not supported");
  }
  if (const std::string_view fault = normalization_map_fault(model.normalization_map); !fault.empty()) {
    return Error("the normalisation map is broken: {}", fault);
  }
  if (model.has_denormalization_map) return Error("models with denormalisation rules are not supported");
  return model;
}

std::string without_dummy_prefix(std::string_view bytes) {
  // Joining two serialised messages merges them, and the later value of a field wins:
  // field 3 (normalizer_spec), 2 bytes long: field 3 (add_dummy_prefix) = 0.
  return std::string(bytes) + std::string("\x1a\x02\x18\x00", 4);
}

}  // namespace bam
