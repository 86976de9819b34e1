#include "server/api/server_context.h"

#include "models/model_config.h"
#include "server/api/engine_constraint.h"

namespace bam {

const ConstraintVocabulary& ServingModel::constraint_vocabulary() const {
  std::call_once(vocabulary_once_, [this] {
    vocabulary_ = std::make_unique<ConstraintVocabulary>(
        bam::constraint_vocabulary(tokenizer, engine.model_config().eos_token_ids));
  });
  return *vocabulary_;
}

}  // namespace bam
