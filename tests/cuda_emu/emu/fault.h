// What the emulator throws when a kernel or the host code does what a device would punish or, worse, silently accept.
#pragma once

#include <stdexcept>
#include <string>

namespace cuda_emu {

class Fault : public std::runtime_error {
 public:
  explicit Fault(const std::string& what) : std::runtime_error("cuda emulation: " + what) {}
};

}  // namespace cuda_emu
