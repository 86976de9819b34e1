// A device whose kernels are files of PTX: takes the place of the emulation of the sources behind the same runtime.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/ptx/machine.h"

namespace ptx {

// A mangled name with every anonymous namespace spelt the same: compilers give them names of their own.
std::string common_name(const std::string& mangled);

class Device {
 public:
  // All *.ptx of a folder, all for the same architecture.
  explicit Device(const std::filesystem::path& folder);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int architecture() const { return architecture_; }  // 80: sm_80
  // From now on launches of the emulated runtime run here; until this object is gone.
  void install();

  struct Kernel {
    Module* module;
    std::string name;
  };
  // By common name.
  const std::map<std::string, Kernel>& kernels() const { return kernels_; }
  uint64_t launches() const { return launches_; }
  // Another module's kernels take the place of those of the same name.
  void replace(std::unique_ptr<Module> module);

 private:
  void add(std::unique_ptr<Module> module);

  int architecture_ = 0;
  bool installed_ = false;
  uint64_t launches_ = 0;
  std::vector<std::unique_ptr<Module>> modules_;
  std::map<std::string, Kernel> kernels_;
  Machine machine_;
};

}  // namespace ptx
