#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"

namespace bam {

enum class SnapshotFault : uint8_t {
  kRefused,  // the name, the settings or the file are at fault: trying again is no use
  kFailed,   // the disk or the machine failed
  kBusy,     // not now
};

class SnapshotError : public Error {
 public:
  template <typename... Args>
  explicit SnapshotError(SnapshotFault fault, fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)), fault_(fault) {}
  SnapshotFault fault() const { return fault_; }

 private:
  SnapshotFault fault_;
};

using SnapshotResult = Result<std::string, SnapshotError>;

}  // namespace bam
