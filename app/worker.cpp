// `bam worker`: the layers of one rank > 0 of a server that `bam serve --stages` leads.
#include <pthread.h>
#include <signal.h>

#include <csignal>
#include <thread>

#include <CLI/CLI.hpp>

#include "app/commands.h"
#include "app/exit_codes.h"
#include "app/model_setup.h"
#include "app/option_flags.h"
#include "base/log.h"
#include "engine/stage_worker.h"
#include "transport/transport.h"

namespace bam {

namespace {

// SIGTERM and SIGINT as a request to stop. The others in the group see this rank leave, and wait for its return.
class StopOnSignal {
 public:
  StopOnSignal() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this] {
      int signal = 0;
      sigwait(&signals_, &signal);
      source_.request_stop();
    });
  }
  ~StopOnSignal() {
    pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }
  std::stop_token token() const { return source_.get_token(); }

 private:
  sigset_t signals_;
  std::stop_source source_;
  std::thread thread_;
};

int work(const ServeConfig& config) {
  const StopOnSignal stop;
  const auto group = make_stage_group(config.model.stages, static_cast<int>(config.model.stages.rank));
  if (group->rank() == 0) throw UsageError("--stage-rank: rank 0 is `bam serve`");
  const StageModel stage = load_stage(config.model, group->rank(), group->size());
  log::info("rank {} of {}: {}", group->rank(), group->size(), stage.description());
  if (stop.token().stop_requested()) return 0;
  const auto lost = [&](const std::exception& e) {
    log::error("{}; ending with exit code {}", e.what(), kDeviceLostExitCode);
    return kDeviceLostExitCode;
  };
  try {
    run_stage_worker(*stage.model, config.model.engine, stage.tokenizer->fingerprint(), *group, stop.token());
  } catch (const PeerLost& e) {
    return lost(e);
  } catch (const DeviceLost& e) {
    return lost(e);
  }
  log::info("rank {}: stopped", group->rank());
  return 0;
}

}  // namespace

int run_worker(int argc, char** argv) {
  CLI::App app("Computes some of the layers of a model that `bam serve --stages` serves.", "bam worker");
  OptionFlags flags(app, [](const ServeOption& option) { return option.model || option.stage; });
  app.footer(
      "Settings of the model must be those of rank 0; --kv-memory and --threads may differ.\n\n"
      "Examples:\n"
      "  bam worker --model ./my-checkpoint --stages 4 --stage-rank 2 \\\n"
      "    --rendezvous redis:10.0.0.1\n"
      "  bam worker --stages 2 --stage-rank 1 --rendezvous file:/mnt/shared/bam");
  return flags.run(app, argc, argv, work);
}

}  // namespace bam
