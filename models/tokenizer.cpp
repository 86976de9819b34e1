#include "models/tokenizer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <utility>

#include <sentencepiece_processor.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "models/bpe_splitter.h"
#include "models/sentencepiece_model.h"
#include "models/tokenizer_config.h"

namespace bam {
namespace {

constexpr std::string_view kSpacePiece = "\xe2\x96\x81";  // U+2581, sentencepiece's space
// Parts up to this length are remembered within one encode call; words repeat, longer strings hardly do.
constexpr size_t kMaxCachedPart = 32;
// Below this a text is encoded in one go.
constexpr size_t kMinSplitBytes = 512;

const std::string kEmpty;

// Finds the spellings of special pieces in a text.
class SpecialMatcher {
 public:
  void add(std::string_view spelling, int32_t id) {
    if (spelling.empty() || !ids_.emplace(spelling, id).second) return;
    std::vector<size_t>& lengths = lengths_[static_cast<uint8_t>(spelling[0])];
    if (std::find(lengths.begin(), lengths.end(), spelling.size()) != lengths.end()) return;
    lengths.insert(std::find_if(lengths.begin(), lengths.end(), [&](size_t l) { return l < spelling.size(); }),
                   spelling.size());
  }

  struct Match {
    size_t begin, length;
    int32_t id;
  };
  // The first match at or after `from`, the longest one there; length 0: none.
  Match find(std::string_view text, size_t from) const {
    for (size_t i = from; i < text.size(); ++i) {
      for (const size_t length : lengths_[static_cast<uint8_t>(text[i])]) {
        if (length > text.size() - i) continue;
        const auto found = ids_.find(text.substr(i, length));
        if (found != ids_.end()) return {i, length, found->second};
      }
    }
    return {text.size(), 0, -1};
  }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::array<std::vector<size_t>, 256> lengths_;  // by first byte, longest first
};

// A piece's text with sentencepiece's space signs as spaces.
std::string with_plain_spaces(std::string_view piece) {
  std::string text;
  for (size_t sign; (sign = piece.find(kSpacePiece)) != std::string_view::npos;) {
    text.append(piece.substr(0, sign)).push_back(' ');
    piece.remove_prefix(sign + kSpacePiece.size());
  }
  return text.append(piece);
}

// "<0xAB>" -> 0xAB
char byte_of_piece(const std::string& piece) { return static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)); }

void load_processor(sentencepiece::SentencePieceProcessor& processor, std::string_view bytes,
                    const std::filesystem::path& path) {
  const auto status = processor.LoadFromSerializedProto(bytes);
  if (!status.ok()) throw Error("{}: {}", path.string(), printable(status.message()));
}

}  // namespace

// Text is encoded in two settings: at the start of a text, where sentencepiece puts a space in front ("dummy prefix"),
// and after a special piece, where it must not: "[INST]Hi" is not "[INST] Hi".
struct Tokenizer::Impl {
  sentencepiece::SentencePieceProcessor continuing;  // no dummy prefix
  sentencepiece::SentencePieceProcessor starting;    // the model's own setting; unused when `exact_text`
  bool exact_text = false;  // BPE over the text as it is: a leading space is the dummy prefix, and parts can be cut
  bool adds_dummy_prefix = false;
  BpeSplitter splitter;
  SpecialMatcher specials;

  // Per token.
  std::vector<std::string> pieces, bytes;
  std::vector<bool> special, byte_piece, leading_space;

  // How much leading space decoding drops at the start of a text.
  bool strips_one_space = false;
  bool strips_all_spaces = false;

  int32_t bos_id = -1, eos_id = -1;
  bool add_bos = false, add_eos = false;
  std::string chat_template;
  uint64_t fingerprint = 0;

  void load_model(const std::filesystem::path& path);
  void load_vocabulary(const SentencePieceModel& model);
  void apply_config(const TokenizerConfig& config, const std::string& origin);
  void make_special(int32_t id);
  void add_token(const TokenizerConfig::AddedToken& token, const std::string& origin);
  std::optional<int32_t> find_piece(const std::string& piece) const;
  int32_t require_piece(const std::string& piece, const char* key, const std::string& origin) const;

  bool in_range(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < bytes.size(); }
  void encode_text(std::string_view text, bool at_start, std::vector<int32_t>& ids) const;
  void encode_parts(std::string_view text, std::vector<int32_t>& ids) const;
  static void run(const sentencepiece::SentencePieceProcessor& processor, std::string_view text,
                  std::vector<int32_t>& ids);
};

void Tokenizer::Impl::load_model(const std::filesystem::path& path) {
  const MappedFile file(path);
  const Result<SentencePieceModel> model = parse_sentencepiece_model(file.text());
  if (!model) throw Error("{}: {}", path.string(), model.error().what());
  fingerprint = hash_bytes(file.text());
  exact_text = model->algorithm == SentencePieceModel::Algorithm::kBpe && model->normalization_map.empty() &&
               !model->remove_extra_whitespaces && model->escape_whitespaces;
  adds_dummy_prefix = model->add_dummy_prefix;
  load_processor(continuing, without_dummy_prefix(file.text()), path);
  if (exact_text) {
    splitter = BpeSplitter(*model);
  } else {
    load_processor(starting, file.text(), path);
  }
  strips_all_spaces = model->remove_extra_whitespaces;
  strips_one_space = model->add_dummy_prefix || model->remove_extra_whitespaces;
  load_vocabulary(*model);
}

void Tokenizer::Impl::load_vocabulary(const SentencePieceModel& model) {
  const int32_t size = continuing.GetPieceSize();
  for (int32_t id = 0; id < size; ++id) {
    const std::string& piece = continuing.IdToPiece(id);
    const bool control = continuing.IsControl(id);
    const bool is_byte = continuing.IsByte(id);
    const bool unknown = continuing.IsUnknown(id);
    std::string text;
    if (is_byte) {
      text.assign(1, byte_of_piece(piece));
    } else if (unknown) {
      text = model.unknown_surface;
    } else if (!control) {
      text = with_plain_spaces(piece);
    }
    pieces.push_back(piece);
    bytes.push_back(std::move(text));
    special.push_back(control);
    byte_piece.push_back(is_byte);
    leading_space.push_back(!control && !is_byte && !unknown && piece.starts_with(kSpacePiece));
    const auto type = model.pieces[static_cast<size_t>(id)].type;
    if (control || unknown || type == SentencePieceModel::PieceType::kUserDefined) specials.add(piece, id);
  }
  bos_id = continuing.bos_id();
  eos_id = continuing.eos_id();
}

std::optional<int32_t> Tokenizer::Impl::find_piece(const std::string& piece) const {
  const int32_t id = continuing.PieceToId(piece);
  if (in_range(id) && pieces[static_cast<size_t>(id)] == piece) return id;
  // One that the configuration itself adds.
  const auto added = std::find(pieces.begin() + continuing.GetPieceSize(), pieces.end(), piece);
  if (added == pieces.end()) return std::nullopt;
  return static_cast<int32_t>(added - pieces.begin());
}

int32_t Tokenizer::Impl::require_piece(const std::string& piece, const char* key, const std::string& origin) const {
  if (const auto id = find_piece(piece)) return *id;
  throw Error("{}: key '{}' names '{}', which is not in tokenizer.model", origin, key, printable(piece));
}

// Its text is not part of what is written, and no constraint may ask for it.
void Tokenizer::Impl::make_special(int32_t id) {
  const auto index = static_cast<size_t>(id);
  specials.add(pieces[index], id);
  special[index] = true;
  leading_space[index] = false;
  bytes[index].clear();
}

void Tokenizer::Impl::add_token(const TokenizerConfig::AddedToken& token, const std::string& origin) {
  constexpr size_t kMaxBeyond = 65'536;
  const auto index = static_cast<size_t>(token.id);
  if (index >= static_cast<size_t>(continuing.GetPieceSize()) + kMaxBeyond) {
    throw Error("{}: key 'added_tokens_decoder': {} is far beyond the {} pieces of tokenizer.model", origin, token.id,
                continuing.GetPieceSize());
  }
  for (; bytes.size() <= index; special.push_back(false), byte_piece.push_back(false), leading_space.push_back(false)) {
    pieces.emplace_back();
    bytes.emplace_back();
  }
  if (pieces[index] != token.content) {
    pieces[index] = token.content;
    bytes[index] = token.content;
    byte_piece[index] = leading_space[index] = false;
  }
  specials.add(token.content, token.id);
  if (token.special) make_special(token.id);
}

void Tokenizer::Impl::apply_config(const TokenizerConfig& config, const std::string& origin) {
  for (const TokenizerConfig::AddedToken& token : config.added_tokens) add_token(token, origin);
  // Names without a token cannot be generated or parsed; they change nothing.
  std::vector<std::string> names = config.special_tokens;
  if (config.unk_token) names.push_back(*config.unk_token);
  for (const std::string& name : names) {
    if (const auto id = find_piece(name)) make_special(*id);
  }
  if (config.bos_token) make_special(bos_id = require_piece(*config.bos_token, "bos_token", origin));
  if (config.eos_token) make_special(eos_id = require_piece(*config.eos_token, "eos_token", origin));
  add_bos = bos_id >= 0 && config.add_bos_token.value_or(true);
  add_eos = eos_id >= 0 && config.add_eos_token.value_or(false);
  chat_template = config.chat_template;
}

void Tokenizer::Impl::run(const sentencepiece::SentencePieceProcessor& processor, std::string_view text,
                          std::vector<int32_t>& ids) {
  std::vector<int> part;
  const auto status = processor.Encode(text, &part);
  if (!status.ok()) throw Error("cannot tokenize the text: {}", printable(status.message()));
  ids.insert(ids.end(), part.begin(), part.end());
}

// sentencepiece itself needs seconds for a few megabytes; short parts, each distinct one once, take a fraction of that.
void Tokenizer::Impl::encode_parts(std::string_view text, std::vector<int32_t>& ids) const {
  struct Range {
    size_t begin, end;  // in `ids`, where this part was encoded first
  };
  std::unordered_map<std::string_view, Range> seen;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, splitter.first_part(text));
    text.remove_prefix(part.size());
    const size_t begin = ids.size();
    if (part.size() > kMaxCachedPart) {
      run(continuing, part, ids);
      continue;
    }
    const auto [entry, is_new] = seen.try_emplace(part);
    if (is_new) {
      run(continuing, part, ids);
      entry->second = {begin, ids.size()};
    } else {
      for (size_t i = entry->second.begin; i < entry->second.end; ++i) ids.push_back(ids[i]);
    }
  }
}

void Tokenizer::Impl::encode_text(std::string_view text, bool at_start, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  if (!exact_text) return run(at_start ? starting : continuing, text, ids);
  std::string prefixed;
  if (at_start && adds_dummy_prefix) text = prefixed.append(1, ' ').append(text);
  if (text.size() < kMinSplitBytes) return run(continuing, text, ids);
  encode_parts(text, ids);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

std::unique_ptr<Tokenizer> Tokenizer::load(const std::filesystem::path& checkpoint_dir) {
  auto impl = std::make_unique<Impl>();
  impl->load_model(checkpoint_dir / "tokenizer.model");
  const std::filesystem::path config_path = checkpoint_dir / "tokenizer_config.json";
  std::error_code error;
  TokenizerConfig config;
  if (std::filesystem::exists(config_path, error)) {
    config = parse_tokenizer_config(MappedFile(config_path).text(), config_path.string());
  }
  impl->apply_config(config, config_path.string());
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special, bool parse_special) const {
  std::string clean;
  if (!is_valid_utf8(text)) text = clean = sanitize_utf8(text);
  std::vector<int32_t> ids;
  if (add_special && impl_->add_bos) ids.push_back(impl_->bos_id);
  if (!parse_special) {
    impl_->encode_text(text, true, ids);
  } else {
    for (size_t at = 0; at < text.size();) {
      const SpecialMatcher::Match match = impl_->specials.find(text, at);
      impl_->encode_text(text.substr(at, match.begin - at), at == 0, ids);
      if (match.length > 0) ids.push_back(match.id);
      at = match.begin + match.length;
    }
  }
  if (add_special && impl_->add_eos) ids.push_back(impl_->eos_id);
  return ids;
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids, bool skip_special, bool space_specials) const {
  StreamDetokenizer detokenizer(*this, true, skip_special, space_specials);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.push(id);
  return text += detokenizer.flush();
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->bytes.size()); }
int32_t Tokenizer::bos_id() const { return impl_->bos_id; }
int32_t Tokenizer::eos_id() const { return impl_->eos_id; }
bool Tokenizer::add_bos() const { return impl_->add_bos; }
bool Tokenizer::is_special(int32_t id) const { return impl_->in_range(id) && impl_->special[static_cast<size_t>(id)]; }
const std::string& Tokenizer::token_bytes(int32_t id) const {
  return impl_->in_range(id) ? impl_->bytes[static_cast<size_t>(id)] : kEmpty;
}
std::string Tokenizer::piece(int32_t id) const {
  return impl_->in_range(id) ? impl_->pieces[static_cast<size_t>(id)] : std::string();
}
const std::string& Tokenizer::chat_template() const { return impl_->chat_template; }
std::string Tokenizer::bos_token() const { return piece(impl_->bos_id); }
std::string Tokenizer::eos_token() const { return piece(impl_->eos_id); }
uint64_t Tokenizer::fingerprint() const { return impl_->fingerprint; }

StreamDetokenizer::StreamDetokenizer(const Tokenizer& tokenizer, bool at_text_start, bool skip_special,
                                     bool space_specials)
    : tokenizer_(tokenizer),
      strip_leading_space_(at_text_start && tokenizer.impl_->strips_one_space),
      skip_special_(skip_special),
      space_specials_(space_specials) {}

std::string StreamDetokenizer::push(int32_t id) {
  const Tokenizer::Impl& vocabulary = *tokenizer_.impl_;
  if (!vocabulary.in_range(id)) return {};
  const size_t index = static_cast<size_t>(id);
  if (vocabulary.special[index]) {
    // A special piece ends the character before it, visible or not.
    std::string text = flush();
    if (skip_special_) return text;
    if (space_specials_ && std::exchange(after_special_, true)) text += ' ';
    return text += vocabulary.pieces[index];
  }
  after_special_ = false;
  std::string_view bytes = vocabulary.bytes[index];
  if (strip_leading_space_) {
    const bool space = vocabulary.leading_space[index];
    if (space) bytes.remove_prefix(1);
    strip_leading_space_ = space && bytes.empty() && vocabulary.strips_all_spaces;
  }
  std::string text;
  pending_.append(bytes);
  const size_t held = append_utf8(pending_, text);
  pending_.erase(0, pending_.size() - held);
  return text;
}

std::string StreamDetokenizer::flush() {
  if (pending_.empty()) return {};
  pending_.clear();
  return std::string(kReplacementCharacter);
}

}  // namespace bam
