// `bam serve --stages N` on one machine: its own workers, found through a folder of its own.
#pragma once

#include <filesystem>
#include <memory>

#include "app/serve_config.h"
#include "app/stage_processes.h"

namespace bam {

// Whether the server starts its workers itself: several stages and nobody said where to meet.
bool wants_local_stages(const StageSettings& stages);

class LocalStages {
 public:
  // Starts them, and changes `config` so that this process is rank 0: cores and KV memory are shared out evenly.
  explicit LocalStages(ServeConfig& config);
  ~LocalStages();

 private:
  std::filesystem::path folder_;
  std::unique_ptr<StageProcesses> processes_;
};

}  // namespace bam
