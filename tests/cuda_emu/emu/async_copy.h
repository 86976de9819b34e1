// cp.async of one thread. The destination is poisoned when a copy is issued and gets its data only when the thread
// waits for the copy's group: the latest moment that the hardware allows, so that a missing wait shows.
#pragma once

#include <cstddef>
#include <vector>

namespace cuda_emu {

class AsyncCopies {
 public:
  void issue(void* shared, const void* global, int bytes, int source_bytes);
  void commit();
  // Completes groups, oldest first, until at most `pending` are left.
  void wait(int pending);
  void clear();

 private:
  struct Copy {
    void* to;
    const void* from;
    int bytes;
    int source_bytes;
  };
  std::vector<Copy> copies_;        // oldest first
  std::vector<size_t> group_ends_;  // indices into copies_
};

}  // namespace cuda_emu
