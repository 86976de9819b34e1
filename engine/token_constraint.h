#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace bam {

// Restricts which token may come next. One object per sequence, used by the engine thread only. The engine never looks
// inside: grammars are compiled elsewhere.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Sets bit t of `allowed` ((vocab + 31) / 32 words, cleared by the caller) for every token that may come next.
  // EOS ids are set when the text may end here. At least one bit is set as long as only allowed tokens were accepted.
  virtual void allowed_tokens(std::span<uint32_t> allowed) = 0;
  // Moves on with a token that was allowed.
  virtual void accept(int32_t token) = 0;
  // True when nothing but the end may follow.
  virtual bool finished() const = 0;
  // A fresh copy in the initial state, for the other choices of n > 1 and after preemption.
  virtual std::unique_ptr<TokenConstraint> clone_initial() const = 0;
};

}  // namespace bam
