#include "app/local_stages.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <system_error>

#include "app/model_setup.h"
#include "base/error.h"
#include "engine/capacity.h"
#include "kernels/device.h"

namespace bam {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kFolderPrefix = "bam-stages-";

// A server that was killed could not remove its folder: the next one does.
void remove_stale_folders() {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::temp_directory_path(), error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kFolderPrefix)) continue;
    pid_t pid = 0;
    const char* end = name.data() + name.size();
    const auto [stop, status] = std::from_chars(name.data() + kFolderPrefix.size(), end, pid);
    if (status != std::errc() || stop != end || pid <= 0) continue;
    if (kill(pid, 0) != 0 && errno == ESRCH) fs::remove_all(entry.path(), error);
  }
}

// Rows go from GPU to GPU: each rank has one of its own, from rank 0's on.
std::string device_of(const ModelSettings& model, int rank) {
  int first = 0;
  const bool own_gpu = model.stages.transport.ends_with("+nccl") && model.device.starts_with("cuda");
  return own_gpu && parse_device(model.device, first) ? fmt::format("cuda:{}", first + rank) : model.device;
}

// The flags of one worker: what was set for rank 0, and what all share.
std::vector<std::string> worker_arguments(ServeConfig config, int rank) {
  config.model.device = device_of(config.model, rank);
  std::vector<std::string> arguments;
  const auto set = [&](const std::string& name, const std::string& value) {
    arguments.push_back("--" + name + "=" + value);
  };
  for (const ServeOption& option : serve_options()) {
    if (!option.model && !option.stage) continue;
    const std::string value = option.show(config);
    if (value != option.fallback) set(option.name, value);
  }
  set("stage-rank", std::to_string(rank));
  return arguments;
}

}  // namespace

bool wants_local_stages(const StageSettings& stages) {
  return stages.count > 1 && stages.transport.starts_with("gloo") && stages.rendezvous.empty();
}

LocalStages::LocalStages(ServeConfig& config) {
  ModelSettings& model = config.model;
  const auto count = static_cast<int>(model.stages.count);
  remove_stale_folders();
  folder_ = fs::temp_directory_path() / fmt::format("{}{}", kFolderPrefix, getpid());
  fs::create_directories(folder_);
  fs::permissions(folder_, fs::perms::owner_all);
  model.stages.rendezvous = "file:" + folder_.string();
  model.stages.address = "127.0.0.1";
  {
    const auto backend = make_backend(model);
    if (model.engine.kv_memory_bytes == 0) model.engine.kv_memory_bytes = auto_kv_bytes(backend->free_memory_bytes());
    model.threads = std::max(1, backend->num_threads() / count);
  }
  model.engine.kv_memory_bytes /= static_cast<uint64_t>(count);
  std::vector<std::vector<std::string>> arguments;
  for (int rank = 1; rank < count; ++rank) arguments.push_back(worker_arguments(config, rank));
  processes_ = std::make_unique<StageProcesses>(std::move(arguments));
}

LocalStages::~LocalStages() {
  processes_.reset();
  std::error_code error;
  fs::remove_all(folder_, error);
}

}  // namespace bam
