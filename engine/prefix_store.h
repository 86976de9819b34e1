// Prefixes that other processes have computed, as the engine sees them. Whoever implements it has threads of its own, which
// read and write pages through PrefixPages.
#pragma once

#include <cstdint>

#include "engine/clock.h"
#include "engine/request.h"

namespace bam {

// Called on the engine's thread: must not wait or throw.
class PrefixStore {
 public:
  virtual ~PrefixStore() = default;

  // Whether a request whose first num_cached tokens are cached here is worth a look. True: the store looks, and the
  // request gets no rows until Engine::release(), or for patience() at most.
  virtual bool look_up(const Request& request, int64_t num_cached) = 0;
  virtual Clock::duration patience() const = 0;
  // A request did not wait any longer.
  virtual void gave_up() = 0;
  // The prompt of this request has been computed, and its pages are in the prefix cache.
  virtual void computed(const Request& request) = 0;
};

}  // namespace bam
