#pragma once

#include "base/json.h"

namespace bam {

// Empties a document of bounded depth. Its destructor needs memory, as much as the largest array takes, and a process that
// has none left would end there; an empty one needs nothing.
void discard(Json& value) noexcept;

// Does so at the end of a block, whatever ends it.
class DiscardAtEnd {
 public:
  explicit DiscardAtEnd(Json& value) : value_(value) {}
  ~DiscardAtEnd() { discard(value_); }
  DiscardAtEnd(const DiscardAtEnd&) = delete;

 private:
  Json& value_;
};

}  // namespace bam
