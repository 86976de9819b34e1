#include "kernels/device.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "base/plugin.h"
#include "kernels/plugin.h"

namespace bam {

namespace {

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options) {
  const Plugin plugin("libbam_cuda.so", "CUDA plugin", "`make cuda` builds it", BAM_PLUGIN_ABI);
  char reason[1024] = "";
  std::unique_ptr<Backend> backend(
      plugin.symbol<PluginMakeFunction>(kPluginMakeSymbol)(&options, reason, sizeof reason));
  if (!backend) throw Error("{}", reason);
  return backend;
}

}  // namespace

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
    } catch (const PluginMissing& error) {
      log::debug("--device auto: {}; using the CPU", error.what());
    } catch (const Error& error) {
      log::warn("--device auto: {}; using the CPU", error.what());
    }
  }
  return make_cpu_backend(options);
}

}  // namespace bam
