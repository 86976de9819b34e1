// Where n tokens in a row stood before. A table of fixed size that newer n-grams overwrite: adding and finding take
// constant time, and the memory is known in advance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

namespace bam {

class NgramIndex {
 public:
  static constexpr int64_t kMaxSlots = int64_t{1} << 20;  // 4 MiB

  // length: n. expected: tokens that will be added; texts with more than kMaxSlots forget some of their n-grams.
  NgramIndex(int length, int64_t expected);

  int length() const { return length_; }
  size_t bytes() const { return (mask_ + 1) * sizeof(uint32_t); }
  // Adds the n-grams that `tokens` has between `begin` (at the first call) and `end`, at most `limit` of them; returns
  // how many. Each call has the same tokens, or more. An n-gram without a token behind it is not added yet.
  int64_t extend(std::span<const int32_t> tokens, int64_t begin, int64_t end, int64_t limit);
  // The token behind the newest n-gram that equals the last n of `tokens`; -1: there is none. Unless it was forgotten.
  int64_t find(std::span<const int32_t> tokens) const;

 private:
  size_t slot_of(const int32_t* ngram) const;

  int length_;
  uint64_t mask_;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<uint32_t[], Free> slots_;  // [mask_ + 1] position behind the n-gram; 0: none. Zeroed by the kernel
  int64_t next_ = 0;                         // the position behind the n-gram to add next
};

}  // namespace bam
