#include "models/bpe_splitter.h"

#include "base/utf8.h"

namespace bam {
namespace {

constexpr char32_t kSpaceSymbol = 0x2581;  // how sentencepiece writes a space

// One character off the front of `text`; ill-formed pieces (which no valid text contains) read as U+FFFD.
char32_t take_character(std::string_view& text) {
  const Utf8Step step = next_utf8(text);
  text.remove_prefix(step.length);
  if (step.kind != Utf8Step::Kind::kValid) return 0xfffd;
  return step.code_point == kSpaceSymbol ? U' ' : step.code_point;
}

}  // namespace

BpeSplitter::BpeSplitter(const SentencePieceModel& model) : byte_fallback_(model.byte_fallback) {
  using PieceType = SentencePieceModel::PieceType;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (piece.text.empty() || piece.type == PieceType::kControl || piece.type == PieceType::kByte ||
        piece.type == PieceType::kUnknown) {
      continue;  // never matched in text
    }
    std::string_view rest = piece.text;
    char32_t left = take_character(rest);
    if (rest.empty() && piece.type != PieceType::kUnused) characters_.insert(left);
    while (!rest.empty()) {
      const char32_t right = take_character(rest);
      if (left < 128 && right < 128) {
        ascii_pairs_.set(left * 128 + right);
      } else {
        pairs_.insert(uint64_t{left} << 32 | right);
      }
      left = right;
    }
  }
}

bool BpeSplitter::joined(char32_t left, char32_t right) const {
  if (left < 128 && right < 128) return ascii_pairs_.test(left * 128 + right);
  return pairs_.contains(uint64_t{left} << 32 | right);
}

// Without byte fallback sentencepiece reports a run of unknown characters as one <unk>, so such a run must stay whole.
bool BpeSplitter::may_cut_before(char32_t right) const { return byte_fallback_ || characters_.contains(right); }

size_t BpeSplitter::first_part(std::string_view text) const {
  std::string_view rest = text;
  char32_t left = take_character(rest);
  while (!rest.empty()) {
    const size_t position = text.size() - rest.size();
    const char32_t right = take_character(rest);
    if (!joined(left, right) && may_cut_before(right)) return position;
    left = right;
  }
  return text.size();
}

}  // namespace bam
