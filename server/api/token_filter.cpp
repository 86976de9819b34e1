#include "server/api/token_filter.h"

#include <algorithm>

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

class FilteredConstraint final : public TokenConstraint {
 public:
  FilteredConstraint(std::shared_ptr<const TokenConstraint> grammar, std::shared_ptr<const TokenFilter> filter)
      : prototype_(std::move(grammar)),
        grammar_(prototype_ ? prototype_->clone_initial() : nullptr),
        filter_(std::move(filter)) {}

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
    for (const auto& bad : filter_->bad_tokens) {
      if (follows(bad)) clear_bit(allowed, bad.back());
    }
  }

  void accept(int32_t token) override {
    if (grammar_) grammar_->accept(token);
    generated_.push_back(token);
  }
  std::string_view failure() const override { return grammar_ ? grammar_->failure() : std::string_view(); }
  uint64_t work() const override { return grammar_ ? grammar_->work() : 0; }
  bool mask_known() const override { return !grammar_ || grammar_->mask_known(); }
  bool finished() const override { return grammar_ && grammar_->finished(); }
  std::unique_ptr<TokenConstraint> clone_initial() const override {
    return std::make_unique<FilteredConstraint>(prototype_, filter_);
  }

 private:
  // All but the last token have just been generated.
  bool follows(const std::vector<int32_t>& bad) const {
    const size_t before = bad.size() - 1;
    return generated_.size() >= before &&
           std::equal(bad.begin(), bad.end() - 1, generated_.end() - static_cast<std::ptrdiff_t>(before));
  }

  std::shared_ptr<const TokenConstraint> prototype_;
  std::unique_ptr<TokenConstraint> grammar_;
  std::shared_ptr<const TokenFilter> filter_;
  std::vector<int32_t> generated_;
};

// The tokens of the word behind a line break: the spelling that nothing is put before.
std::vector<int32_t> spelled_inside(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> tokens = tokenizer.encode("\n" + text, false);
  const auto is_break = [&](int32_t token) { return tokenizer.token_bytes(token).ends_with('\n'); };
  const auto last = std::find_if(tokens.begin(), tokens.end(), is_break);
  if (last == tokens.end()) return {};
  tokens.erase(tokens.begin(), last + 1);
  std::string spelled;
  for (int32_t token : tokens) spelled += tokenizer.token_bytes(token);
  return spelled == text ? tokens : std::vector<int32_t>();
}

}  // namespace

std::vector<std::vector<int32_t>> spellings(const Tokenizer& tokenizer, const std::string& word) {
  std::vector<std::vector<int32_t>> out;
  for (auto tokens :
       {tokenizer.encode(word, false), spelled_inside(tokenizer, word), spelled_inside(tokenizer, " " + word)}) {
    if (!tokens.empty() && std::find(out.begin(), out.end(), tokens) == out.end()) out.push_back(std::move(tokens));
  }
  return out;
}

std::shared_ptr<const TokenConstraint> filtered_constraint(std::shared_ptr<const TokenConstraint> grammar,
                                                           TokenFilter filter) {
  return std::make_shared<FilteredConstraint>(std::move(grammar),
                                              std::make_shared<const TokenFilter>(std::move(filter)));
}

}  // namespace bam
