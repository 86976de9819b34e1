#include "tests/ptx/device.h"

#include <cuda_emu.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "tests/cuda_emu/emu/config.h"
#include "tests/cuda_emu/emu/fault.h"

namespace ptx {

using cuda_emu::Fault;

// <digits>_GLOBAL__N_<anything>, where the digits say how much follows them.
std::string common_name(const std::string& mangled) {
  const std::string marker = "_GLOBAL__N_";
  std::string result;
  size_t at = 0;
  for (size_t found; (found = mangled.find(marker, at)) != std::string::npos;) {
    size_t digits = found;
    while (digits > at && mangled[digits - 1] >= '0' && mangled[digits - 1] <= '9') --digits;
    if (digits == found) break;
    result += mangled.substr(at, digits - at) + "12_GLOBAL__N_1";
    at = found + static_cast<size_t>(std::stoi(mangled.substr(digits, found - digits)));
  }
  return result + mangled.substr(std::min(at, mangled.size()));
}

Device::Device(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".ptx") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    add(std::make_unique<Module>(text.str(), file.filename()));
  }
  if (modules_.empty()) throw std::runtime_error("no PTX in " + folder.string());
}

Device::~Device() {
  if (installed_) cuda_emu::executor() = nullptr;
}

void Device::add(std::unique_ptr<Module> module) {
  if (architecture_ != 0 && architecture_ != module->target()) {
    throw std::runtime_error("PTX of two architectures in one folder");
  }
  architecture_ = module->target();
  for (const std::string& entry : module->entries()) kernels_[common_name(entry)] = {module.get(), entry};
  modules_.push_back(std::move(module));
}

void Device::replace(std::unique_ptr<Module> module) { add(std::move(module)); }

void Device::install() {
  installed_ = true;
  cuda_emu::executor() = [this](const std::string& name, const cuda_emu::LaunchShape& shape,
                                const std::vector<uint8_t>& params) {
    const auto it = kernels_.find(common_name(name));
    if (it == kernels_.end()) throw Fault("no PTX of kernel " + name);
    Launch launch;
    launch.shape.grid = {shape.grid.x, shape.grid.y, shape.grid.z};
    launch.shape.block = {shape.block.x, shape.block.y, shape.block.z};
    launch.dynamic_shared = shape.shared_bytes;
    launch.params = params;
    launch.seed = cuda_emu::config().seed == 0 ? 0 : cuda_emu::config().seed + launches_;
    launch.shared_limit = cuda_emu::config().shared_per_block_optin();
    ++launches_;
    machine_.run(*it->second.module, it->second.module->function(it->second.name), launch);
  };
}

}  // namespace ptx
