#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace bam {

// sentencepiece with the checkpoint's BOS/EOS rules. Thread-safe: all methods are const after loading.
class Tokenizer {
 public:
  // Reads tokenizer.model and, if present, tokenizer_config.json of a checkpoint folder. Throws Error.
  static std::unique_ptr<Tokenizer> load(const std::filesystem::path& checkpoint_dir);
  ~Tokenizer();

  // add_special: put BOS/EOS as tokenizer_config.json asks. parse_special: control, user-defined and added pieces that
  // stand in the text become their ids, as Hugging Face's tokenizers do it; else they are text. sentencepiece's extra
  // leading space is put at the start of the text only, never after a special piece. Invalid UTF-8 is read as U+FFFD.
  std::vector<int32_t> encode(std::string_view text, bool add_special, bool parse_special = false) const;
  // The whole sequence as text; special tokens are dropped unless asked for, with a blank between two of them on demand.
  // Invalid UTF-8 becomes U+FFFD, ids that do not exist become nothing.
  std::string decode(const std::vector<int32_t>& ids, bool skip_special = true, bool space_specials = false) const;

  int32_t vocab_size() const;
  int32_t bos_id() const;  // -1: none
  int32_t eos_id() const;
  bool add_bos() const;
  bool is_special(int32_t id) const;  // control pieces, and what tokenizer_config.json calls special
  // The bytes this token contributes in the middle of a text ("▁the" -> " the", byte pieces -> one byte).
  const std::string& token_bytes(int32_t id) const;
  std::string piece(int32_t id) const;       // sentencepiece's own spelling
  const std::string& chat_template() const;  // empty: none
  std::string bos_token() const;             // spelled as in the vocabulary, for chat templates
  std::string eos_token() const;
  uint64_t fingerprint() const;  // of tokenizer.model's bytes

 private:
  friend class StreamDetokenizer;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Turns a token stream into text that is always whole UTF-8, token by token. One per generated sequence.
class StreamDetokenizer {
 public:
  // at_text_start: the leading space of the first piece is dropped, as sentencepiece does for a whole text;
  // false when the tokens continue a prompt.
  StreamDetokenizer(const Tokenizer& tokenizer, bool at_text_start, bool skip_special = true,
                    bool space_specials = false);
  // Text that became certain with this token; may be empty.
  std::string push(int32_t id);
  // What was still held back; broken bytes become U+FFFD.
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  bool strip_leading_space_;
  bool skip_special_;
  bool space_specials_;  // a blank between two special pieces that are shown
  bool after_special_ = false;
  std::string pending_;  // bytes of an unfinished UTF-8 character
};

}  // namespace bam
