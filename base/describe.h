#pragma once

#include <exception>
#include <new>
#include <string>
#include <system_error>

namespace bam {

// What an exception says to a user.
inline std::string describe(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {  // from std::thread
    return "cannot start a thread: look at `ulimit -u` and at the container's limit of processes";
  }
  return error.what();
}

}  // namespace bam
