// Libraries that the program loads when they are asked for: GPU code, transports between machines.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace bam {

// The folder of the running program.
std::string executable_dir();

// Files that are tried for a plugin, in order: $BAM_PLUGIN_DIR alone if it is set; else beside the program, in lib/bam
// of its installation, and wherever the loader looks (a bare name).
std::vector<std::string> plugin_candidates(const std::string& file_name);

// There is no such file. Most machines have no GPU: who did not ask for a plugin need not hear of it.
class PluginMissing : public Error {
 public:
  using Error::Error;
};

// A loaded library; it stays for the life of the process, as objects made by it point into it.
class Plugin {
 public:
  // `what` ("CUDA plugin") and `how_to_get` ("`make cuda` builds it") go into the message of the Error that is thrown if
  // there is none, or if it is of another build than `abi`.
  Plugin(const std::string& file_name, std::string what, const std::string& how_to_get, const std::string& abi);

  template <typename Function>
  Function symbol(const char* name) const {
    return reinterpret_cast<Function>(find(name));
  }

 private:
  void* find(const char* name) const;

  void* library_;
  std::string what_;
};

// What every plugin exports: made by CMake from the version and the headers that cross the border, so that a plugin of
// another build is refused instead of crashing.
using PluginAbiFunction = const char* (*)();
inline constexpr const char* kPluginAbiSymbol = "bam_plugin_abi";

}  // namespace bam
