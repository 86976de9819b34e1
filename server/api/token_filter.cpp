#include "server/api/token_filter.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace bam {

namespace {

void set_bit(std::span<uint32_t> mask, int32_t token) {
  const auto t = static_cast<size_t>(token);
  if (t / 32 < mask.size()) mask[t / 32] |= 1u << (t % 32);
}

void clear_bit(std::span<uint32_t> mask, int32_t token) {
  const auto t = static_cast<size_t>(token);
  if (t / 32 < mask.size()) mask[t / 32] &= ~(1u << (t % 32));
}

// The end of what was generated, as far as a word may reach back into it.
class Tail {
 public:
  explicit Tail(const BadWords& bad) : bad_(bad) {}

  void push(int32_t token) {
    if (bad_.words().empty() || bad_.tokenizer().is_special(token)) return;  // special ones are no part of the text
    const std::string& bytes = bad_.tokenizer().token_bytes(token);
    if (bytes.empty()) return;
    begins_.push_back(text_.size());
    text_ += bytes;
    if (text_.size() < 4 * bad_.longest()) return;
    const size_t cut = text_.size() - bad_.longest();
    text_.erase(0, cut);
    std::erase_if(begins_, [cut](size_t begin) { return begin < cut; });
    for (size_t& begin : begins_) begin -= cut;
  }

  // Whole tokens that spell it came last.
  bool is(std::string_view text) const {
    return text.empty() || (text_.ends_with(text) && std::ranges::binary_search(begins_, text_.size() - text.size()));
  }

 private:
  const BadWords& bad_;
  std::string text_;
  std::vector<size_t> begins_;  // of its tokens
};

class FilteredConstraint final : public TokenConstraint {
 public:
  FilteredConstraint(std::shared_ptr<const TokenConstraint> grammar, std::shared_ptr<const TokenFilter> filter)
      : prototype_(std::move(grammar)),
        grammar_(prototype_ ? prototype_->clone_initial() : nullptr),
        filter_(std::move(filter)),
        tail_(filter_->bad_words) {}

  void allowed_tokens(std::span<uint32_t> allowed) override {
    if (grammar_) {
      grammar_->allowed_tokens(allowed);
    } else {
      std::fill(allowed.begin(), allowed.end(), ~0u);
    }
    if (!filter_->allowed.empty()) {
      std::vector<uint32_t> listed(allowed.size(), 0);
      for (int32_t token : filter_->allowed) set_bit(listed, token);
      for (size_t i = 0; i < allowed.size(); ++i) allowed[i] &= listed[i];
    }
    for (const BadWords::Word& word : filter_->bad_words.words()) {
      for (const BadWords::Ending& ending : word.endings) {
        if (!tail_.is(std::string_view(word.text).substr(0, ending.begin))) continue;
        for (const int32_t token : ending.tokens) clear_bit(allowed, token);
      }
    }
  }

  void accept(int32_t token) override {
    if (grammar_) grammar_->accept(token);
    tail_.push(token);
  }
  std::string_view failure() const override { return grammar_ ? grammar_->failure() : std::string_view(); }
  uint64_t work() const override { return grammar_ ? grammar_->work() : 0; }
  bool mask_known() const override { return !grammar_ || grammar_->mask_known(); }
  bool finished() const override { return grammar_ && grammar_->finished(); }
  std::unique_ptr<TokenConstraint> clone_initial() const override {
    return std::make_unique<FilteredConstraint>(prototype_, filter_);
  }

 private:
  std::shared_ptr<const TokenConstraint> prototype_;
  std::unique_ptr<TokenConstraint> grammar_;
  std::shared_ptr<const TokenFilter> filter_;
  Tail tail_;
};

}  // namespace

BadWords::BadWords(const Tokenizer& tokenizer, const std::vector<std::string>& words) : tokenizer_(tokenizer) {
  for (const std::string& word : words) {
    words_.push_back({word, {}});
    words_.push_back({" " + word, {}});
  }
  if (words_.empty()) return;
  size_t most = 0;  // bytes of a token
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) most = std::max(most, tokenizer.token_bytes(id).size());
  std::unordered_map<std::string_view, std::vector<std::pair<size_t, size_t>>> rests;  // to (word, where it begins)
  for (size_t i = 0; i < words_.size(); ++i) {
    const std::string_view text = words_[i].text;
    longest_ = std::max(longest_, text.size());
    for (size_t begin = text.size() - std::min(text.size(), most); begin < text.size(); ++begin) {
      rests[text.substr(begin)].emplace_back(i, begin);
    }
  }
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_special(id)) continue;
    const auto found = rests.find(tokenizer.token_bytes(id));
    if (found == rests.end()) continue;
    for (const auto& [word, begin] : found->second) {
      auto& endings = words_[word].endings;
      auto ending = std::ranges::find(endings, begin, &Ending::begin);
      if (ending == endings.end()) ending = endings.insert(ending, {begin, {}});
      ending->tokens.push_back(id);
    }
  }
}

std::shared_ptr<const TokenConstraint> filtered_constraint(std::shared_ptr<const TokenConstraint> grammar,
                                                           TokenFilter filter) {
  return std::make_shared<FilteredConstraint>(std::move(grammar),
                                              std::make_shared<const TokenFilter>(std::move(filter)));
}

}  // namespace bam
