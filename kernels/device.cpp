#include "kernels/device.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "kernels/plugin.h"

namespace bam {

namespace {

constexpr const char* kCudaPlugin = "libbam_cuda.so";

std::string executable_dir() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return ".";
  const std::string file(path, static_cast<size_t>(length));
  return file.substr(0, file.rfind('/'));
}

// The loaded library; it stays for the life of the process, as backends point into it.
void* open_plugin(const char* file_name) {
  const std::vector<std::string> candidates = plugin_candidates(file_name);
  std::string tried;
  for (const std::string& candidate : candidates) {
    tried += (tried.empty() ? "" : ", ") + candidate;
    const bool is_path = candidate.find('/') != std::string::npos;
    if (is_path && access(candidate.c_str(), F_OK) != 0) continue;
    if (void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    // A file that is there but does not load is worth a message of its own, e.g. a library that it needs is missing.
    const char* reason = dlerror();
    if (is_path) throw Error("the plugin {} does not load: {}", candidate, reason != nullptr ? reason : "?");
  }
  throw Error("no CUDA plugin: {} was not found (tried {}); `make cuda` builds it", file_name, tried);
}

template <typename Function>
Function find_symbol(void* library, const char* name) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) throw Error("the CUDA plugin has no symbol {}: it is not a plugin of bam", name);
  return reinterpret_cast<Function>(symbol);
}

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options) {
  void* library = open_plugin(kCudaPlugin);
  const std::string abi = find_symbol<PluginAbiFunction>(library, kPluginAbiSymbol)();
  if (abi != BAM_PLUGIN_ABI) {
    throw Error("the CUDA plugin is of another build ({}) than this program ({})", abi, BAM_PLUGIN_ABI);
  }
  char reason[1024] = "";
  std::unique_ptr<Backend> backend(
      find_symbol<PluginMakeFunction>(library, kPluginMakeSymbol)(&options, reason, sizeof reason));
  if (!backend) throw Error("{}", reason);
  return backend;
}

}  // namespace

std::vector<std::string> plugin_candidates(const std::string& file_name) {
  if (const char* dir = std::getenv("BAM_PLUGIN_DIR"); dir != nullptr && *dir != '\0') {
    return {fmt::format("{}/{}", dir, file_name)};
  }
  const std::string here = executable_dir();
  return {fmt::format("{}/{}", here, file_name), fmt::format("{}/../lib/bam/{}", here, file_name), file_name};
}

bool parse_device(const std::string& device, int& index) {
  index = 0;
  if (device == "auto" || device == "cpu" || device == "cuda") return true;
  const std::string_view number = std::string_view(device).substr(std::min<size_t>(device.size(), 5));
  if (!device.starts_with("cuda:") || number.empty() || number.size() > 4) return false;
  const auto [end, status] = std::from_chars(number.data(), number.data() + number.size(), index);
  return status == std::errc() && end == number.data() + number.size() && index >= 0;
}

std::unique_ptr<Backend> make_backend(const std::string& device, const BackendOptions& given) {
  BackendOptions options = given;
  if (!parse_device(device, options.device)) {
    throw UsageError("--device: '{}' is not one of auto, cpu, cuda, cuda:N", device);
  }
  if (device.starts_with("cuda")) {
    try {
      return make_cuda_backend(options);
    } catch (const Error& error) {
      throw Error("--device {}: {}", device, error.what());
    }
  }
  if (device == "auto") {
    try {
      return make_cuda_backend(options);
    } catch (const Error& error) {
      log::info("--device auto: {}; using the CPU", error.what());
    }
  }
  return make_cpu_backend(options);
}

}  // namespace bam
