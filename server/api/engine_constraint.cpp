#include "server/api/engine_constraint.h"

namespace bam {

namespace {

class EngineConstraint final : public TokenConstraint {
 public:
  explicit EngineConstraint(std::unique_ptr<Constraint> position) : position_(std::move(position)) {}

  void allowed_tokens(std::span<uint32_t> allowed) override { position_->allowed_tokens(allowed); }
  void accept(int32_t token) override { position_->accept(token); }
  bool finished() const override { return position_->finished(); }
  std::string_view failure() const override { return position_->failure(); }
  uint64_t work() const override { return position_->work(); }
  bool mask_known() const override { return position_->mask_known(); }
  std::unique_ptr<TokenConstraint> clone_initial() const override {
    return std::make_unique<EngineConstraint>(position_->clone_initial());
  }

 private:
  std::unique_ptr<Constraint> position_;
};

}  // namespace

ConstraintVocabulary constraint_vocabulary(const Tokenizer& tokenizer, std::vector<int32_t> eos_ids) {
  std::vector<std::string> bytes(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) bytes[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  }
  return ConstraintVocabulary(std::move(bytes), std::move(eos_ids));
}

std::shared_ptr<const TokenConstraint> engine_constraint(const Constraint& prototype) {
  return std::make_shared<EngineConstraint>(prototype.clone_initial());
}

}  // namespace bam
