#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace bam {

// The parts of a sentencepiece model file that the library keeps to itself: how it normalises text and what kind each
// piece is. Field defaults are those of sentencepiece_model.proto.
struct SentencePieceModel {
  enum class PieceType : uint8_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  enum class Algorithm : uint8_t { kUnigram = 1, kBpe, kWord, kChar };

  struct Piece {
    std::string_view text;  // points into the parsed bytes
    PieceType type = PieceType::kNormal;
  };
  std::vector<Piece> pieces;

  Algorithm algorithm = Algorithm::kUnigram;
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  std::string unknown_surface = " \xe2\x81\x87 ";  // what <unk> looks like in decoded text

  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  std::string_view normalization_map;  // points into the parsed bytes, checked; empty: text is taken as it is
  bool has_denormalization_map = false;
};

// `bytes`: a whole tokenizer.model. The error says what is wrong, without naming a file.
Result<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes);

// The same model with normalizer_spec.add_dummy_prefix = false: text that continues another text gets no space in
// front.
std::string without_dummy_prefix(std::string_view bytes);

}  // namespace bam
