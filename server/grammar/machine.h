#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "server/grammar/automaton.h"
#include "server/grammar/lazy_dfa.h"
#include "server/grammar/vocabulary.h"

namespace bam::constraints {

// One compiled constraint with its cache of automaton configurations and token masks, shared by all
// its clones. Thread-safe. When the cache is full a new one is started; a clone brings its own
// configuration along at its next call, and the old cache goes away with the last clone that still
// points to it.
class Machine {
 public:
  // Throws Error when the automaton cannot produce any text with this vocabulary.
  Machine(const AutomatonBuilder& builder, std::shared_ptr<const TokenTrie> trie);

  struct Cache;
  // Where one sequence is.
  struct Cursor {
    std::shared_ptr<Cache> cache;
    LazyDfa::ConfigId config = LazyDfa::kDead;
    bool ended = false;  // EOS, or a token that was not allowed, was accepted
  };

  Cursor start() const;
  void allowed_tokens(Cursor& cursor, std::span<uint32_t> allowed) const;
  void accept(Cursor& cursor, int32_t token) const;
  bool finished(const Cursor& cursor) const;

  const Automaton& automaton() const { return automaton_; }
  size_t cache_bytes() const;

 private:
  using Mask = std::vector<uint32_t>;
  const Mask& mask_of(Cursor& cursor) const;
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
  // Another position, at the beginning.
  std::unique_ptr<Constraint> clone_initial() const { return std::make_unique<Constraint>(machine_); }
  const constraints::Machine& machine() const { return *machine_; }

 private:
  std::shared_ptr<const constraints::Machine> machine_;
  constraints::Machine::Cursor cursor_;
};

}  // namespace bam
