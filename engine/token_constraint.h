#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace bam {

// Restricts which token may come next. One object per sequence, used by one thread at a time. The engine never looks
// inside: grammars are compiled elsewhere. Masks are made while a step waits for them, so what a call may cost is
// bounded: an implementation counts its work per token and per sequence, gives up beyond its limits and says so in
// failure(). That ends the request it belongs to, and no other.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Sets bit t of `allowed` ((vocab + 31) / 32 words, cleared by the caller) for every token that may come next.
  // EOS ids are set when the text may end here. At least one bit is set as long as only allowed tokens were accepted
  // and failure() is empty.
  virtual void allowed_tokens(std::span<uint32_t> allowed) = 0;
  // Moves on with a token that was allowed.
  virtual void accept(int32_t token) = 0;
  // Why no token is allowed any more although only allowed ones were accepted, in words for the client that name the
  // constraint; empty: it works.
  virtual std::string_view failure() const { return {}; }
  // What all calls have cost so far, in units of about 10 ns: counted, not measured.
  virtual uint64_t work() const { return 0; }
  // The next mask is at hand and costs no work.
  virtual bool mask_known() const { return true; }
  // True when nothing but the end may follow.
  virtual bool finished() const = 0;
  // A fresh copy in the initial state, for the other choices of n > 1 and after preemption.
  virtual std::unique_ptr<TokenConstraint> clone_initial() const = 0;
};

}  // namespace bam
