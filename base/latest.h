#pragma once

#include <memory>
#include <mutex>
#include <utility>

namespace bam {

// The newest version of a value that one thread replaces and others read. (GCC 12's atomic<shared_ptr> releases its
// lock bit without ordering after a load, which the thread sanitizer rightly reports.)
template <typename T>
class Latest {
 public:
  // The old value leaves in the parameter, after the lock.
  void store(std::shared_ptr<const T> value) {
    const std::lock_guard lock(mutex_);
    value_.swap(value);
  }
  std::shared_ptr<const T> load() const {
    const std::lock_guard lock(mutex_);
    return value_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const T> value_;
};

}  // namespace bam
