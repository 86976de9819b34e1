#include "base/plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <utility>

#include "base/error.h"

namespace bam {

namespace {

void* open_library(const std::string& file_name, const std::string& what, const std::string& how_to_get) {
  std::string tried;
  for (const std::string& candidate : plugin_candidates(file_name)) {
    tried += (tried.empty() ? "" : ", ") + candidate;
    const bool is_path = candidate.find('/') != std::string::npos;
    if (is_path && access(candidate.c_str(), F_OK) != 0) continue;
    if (void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    // A file that is there but does not load is worth a message of its own, e.g. a library that it needs is missing.
    const char* reason = dlerror();
    if (is_path) throw Error("the plugin {} does not load: {}", candidate, reason != nullptr ? reason : "?");
  }
  throw PluginMissing("no {}: {} was not found (tried {}); {}", what, file_name, tried, how_to_get);
}

}  // namespace

std::string executable_dir() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return ".";
  const std::string file(path, static_cast<size_t>(length));
  return file.substr(0, file.rfind('/'));
}

std::vector<std::string> plugin_candidates(const std::string& file_name) {
  if (const char* dir = std::getenv("BAM_PLUGIN_DIR"); dir != nullptr && *dir != '\0') {
    return {fmt::format("{}/{}", dir, file_name)};
  }
  const std::string here = executable_dir();
  return {fmt::format("{}/{}", here, file_name), fmt::format("{}/../lib/bam/{}", here, file_name), file_name};
}

Plugin::Plugin(const std::string& file_name, std::string what, const std::string& how_to_get, const std::string& abi)
    : library_(open_library(file_name, what, how_to_get)), what_(std::move(what)) {
  const std::string its = symbol<PluginAbiFunction>(kPluginAbiSymbol)();
  if (its != abi) throw Error("the {} is of another build ({}) than this program ({})", what_, its, abi);
}

void* Plugin::find(const char* name) const {
  void* symbol = dlsym(library_, name);
  if (symbol == nullptr) throw Error("the {} has no symbol {}: it is not a plugin of bam", what_, name);
  return symbol;
}

}  // namespace bam
