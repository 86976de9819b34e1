#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/token_constraint.h"
#include "server/constraints/automaton.h"
#include "server/constraints/lazy_dfa.h"
#include "server/constraints/vocabulary.h"

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

// The engine's view of a Machine: one position in it.
class MachineConstraint final : public TokenConstraint {
 public:
  explicit MachineConstraint(std::shared_ptr<const Machine> machine)
      : machine_(std::move(machine)), cursor_(machine_->start()) {}
  void allowed_tokens(std::span<uint32_t> allowed) override { machine_->allowed_tokens(cursor_, allowed); }
  void accept(int32_t token) override { machine_->accept(cursor_, token); }
  bool finished() const override { return machine_->finished(cursor_); }
  std::unique_ptr<TokenConstraint> clone_initial() const override {
    return std::make_unique<MachineConstraint>(machine_);
  }
  const Machine& machine() const { return *machine_; }

 private:
  std::shared_ptr<const Machine> machine_;
  Machine::Cursor cursor_;
};

}  // namespace bam::constraints
