#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/grammar/automaton.h"
#include "server/grammar/lazy_dfa.h"
#include "server/grammar/vocabulary.h"

namespace bam::constraints {

// What one sequence may cost, in units of LazyDfa::work() (about 10 ns each). A mask of a usual grammar takes 10,000 when
// it is new and nothing afterwards; a constraint made to explode is ended by these limits before it holds up others.
inline constexpr uint64_t kMaxStepWork = 1'000'000;    // for one token
inline constexpr uint64_t kMaxBurstWork = 16'000'000;  // for all tokens, and with every token comes
inline constexpr uint64_t kMaxWorkPerToken = 100'000;

// One compiled constraint with its cache of automaton configurations and token masks, shared by all
// its clones. Thread-safe. When the cache is full a new one is started; a clone brings its own
// configuration along at its next call, and the old cache goes away with the last clone that still
// points to it.
class Machine {
 public:
  // Throws Error when the automaton cannot produce any text with this vocabulary, or not within the limits of work.
  Machine(const AutomatonBuilder& builder, std::shared_ptr<const TokenTrie> trie);

  struct Cache;
  // Where one sequence is.
  struct Cursor {
    std::shared_ptr<Cache> cache;
    LazyDfa::ConfigId config = LazyDfa::kDead;
    bool ended = false;      // EOS, or a token that was not allowed, was accepted
    uint64_t work = 0;       // done for this sequence; what other clones left in the cache is free
    uint64_t step_work = 0;  // of it, since the last token
    uint64_t num_tokens = 0;
    std::string failure;  // why nothing is allowed any more
  };

  Cursor start() const;
  void allowed_tokens(Cursor& cursor, std::span<uint32_t> allowed) const;
  void accept(Cursor& cursor, int32_t token) const;
  bool finished(const Cursor& cursor) const;
  // allowed_tokens() would find its answer in the cache.
  bool mask_known(const Cursor& cursor) const;

  const Automaton& automaton() const { return automaton_; }
  size_t cache_bytes() const;

 private:
  using Mask = std::vector<uint32_t>;
  // Runs `what(LazyDfa&)` on the cursor's account; false: the limits are exceeded and the cursor has failed.
  template <typename Work>
  bool charge(Cursor& cursor, Work what) const;
  const Mask* mask_of(Cursor& cursor) const;  // null: the cursor has failed
  void fill_mask(LazyDfa& dfa, LazyDfa::ConfigId config, Mask& mask) const;
  void join_current_cache(Cursor& cursor) const;
  void renew_if_full(Cursor& cursor) const;

  const Automaton automaton_;
  const std::shared_ptr<const TokenTrie> trie_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<Cache> cache_;
};

}  // namespace bam::constraints

namespace bam {

// One position in a Machine: where one sequence is. One thread at a time.
class Constraint {
 public:
  explicit Constraint(std::shared_ptr<const constraints::Machine> machine)
      : machine_(std::move(machine)), cursor_(machine_->start()) {}

  // Sets bit t of `allowed` (cleared by the caller) for every token that may come next, EOS ids where the text may end.
  void allowed_tokens(std::span<uint32_t> allowed) { machine_->allowed_tokens(cursor_, allowed); }
  // Moves on with a token that was allowed.
  void accept(int32_t token) { machine_->accept(cursor_, token); }
  // True when nothing but the end may follow.
  bool finished() const { return machine_->finished(cursor_); }
  // Not empty: following the constraint takes more work than one sequence may cause. Nothing is allowed any more.
  const std::string& failure() const { return cursor_.failure; }
  uint64_t work() const { return cursor_.work; }
  bool mask_known() const { return machine_->mask_known(cursor_); }
  // Another position, at the beginning.
  std::unique_ptr<Constraint> clone_initial() const { return std::make_unique<Constraint>(machine_); }
  const constraints::Machine& machine() const { return *machine_; }

 private:
  std::shared_ptr<const constraints::Machine> machine_;
  constraints::Machine::Cursor cursor_;
};

}  // namespace bam
