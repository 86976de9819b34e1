// A pipeline of ranks that are threads: real models of layer ranges, real engine, real worker loops.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/stage_worker.h"
#include "models/stage_split.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/mixed_requests.h"
#include "tests/engine/transport_tap.h"
#include "transport/transport.h"

namespace bam::testing {

// Six layers, some of whose heads are near-sighted.
inline CheckpointSpec layered_spec(int64_t layers = 6) {
  CheckpointSpec spec = mixed_reach_spec();
  spec.config.num_layers = layers;
  return spec;
}

inline std::vector<StageRange> even_split(int layers, int stages) {
  std::vector<StageRange> split;
  for (int s = 0, first = 0; s < stages; ++s) {
    const int end = layers * (s + 1) / stages;
    split.push_back({first, end - first});
    first = end;
  }
  return split;
}

struct WorkerOptions {
  std::filesystem::path checkpoint;
  StageRange range;
  EngineConfig config;
  uint64_t tokenizer = 7;
  std::string isa = "auto";
  DType weight_dtype = DType::kF32;
  int threads = 1;
  int64_t max_rows = 512, max_logit_rows = 64;
  std::function<std::unique_ptr<Backend>()> backend;  // not given: the CPU's

  std::unique_ptr<Backend> make_backend() const {
    return backend ? backend() : make_cpu_backend({.num_threads = threads, .isa = isa});
  }
};

inline std::unique_ptr<BamModel> load_stage(Backend& backend, const WorkerOptions& o) {
  ModelConfig config = load_model_config(o.checkpoint);
  ModelOptions options;
  options.weight_dtype = o.weight_dtype;
  options.max_rows = o.max_rows;
  options.max_logit_rows = o.max_logit_rows;
  options.stage = o.range;
  CheckpointWeights weights = load_weights(o.checkpoint, config);
  return std::make_unique<BamModel>(backend, std::move(config), std::move(weights), options);
}

// One rank > 0 on a thread of its own; what it threw is kept.
class Worker {
 public:
  Worker(WorkerOptions options, GroupSource& source)
      : thread_([this, options = std::move(options), &source](const std::stop_token& stop) {
          try {
            const auto backend = options.make_backend();
            const auto model = load_stage(*backend, options);
            run_stage_worker(*model, options.config, options.tokenizer, source, stop);
          } catch (const std::exception& e) {
            error_ = e.what();
          }
        }) {}
  // What it ended with; empty: it was told to.
  std::string join() {
    if (thread_.joinable()) thread_.join();
    return error_;
  }
  void stop() { thread_.request_stop(); }

 private:
  std::string error_;
  std::jthread thread_;
};

// All of them at once, in a random order.
inline std::vector<Outcome> run_all(Engine& engine, const std::vector<Request>& requests, uint32_t seed = 1) {
  std::mt19937 rng(seed);
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), rng);
  std::vector<std::shared_ptr<CollectingSink>> sinks(requests.size());
  for (const size_t i : order) {
    sinks[i] = std::make_shared<CollectingSink>(requests[i].n);
    const SubmitResult result = engine.submit(requests[i], sinks[i]);
    EXPECT_EQ(result.status, SubmitStatus::kAccepted) << result.message;
  }
  std::vector<Outcome> outcomes;
  for (const auto& sink : sinks) outcomes.push_back(sink->wait());
  return outcomes;
}

// Nothing is used any more, and nothing is missing.
inline void expect_conserved(Engine& engine) {
  EXPECT_TRUE(engine.drain(testing::kPatience));
  const auto picture = engine.picture();
  for (const StagePicture& stage : picture->stages) {
    EXPECT_EQ(stage.pages_used, 0);
    EXPECT_EQ(stage.pages_free + stage.pages_cached, stage.pages_total);
  }
}

// Rank 0 is the engine; the rest are workers.
class Pipeline {
 public:
  using Wrap = std::function<std::unique_ptr<GroupSource>(std::unique_ptr<GroupSource>)>;
  using Devices = std::function<std::unique_ptr<Backend>(int rank)>;

  Pipeline(const std::filesystem::path& checkpoint, EngineConfig config, int stages, TimeSource& time = steady_time(),
           const Wrap& wrap = {}, int threads = 1, Devices devices = {})
      : devices_(std::move(devices)) {
    const int layers = static_cast<int>(load_model_config(checkpoint).num_layers);
    const auto split = even_split(layers, stages);
    options_ = {.checkpoint = checkpoint, .range = split.front(), .config = config, .threads = threads};
    backend_ = of_rank(0).make_backend();
    if (stages == 1) {
      engine_ = std::make_unique<Engine>(load_stage(*backend_, options_), config, 7, time);
      return;
    }
    sources_ = make_local_sources(stages);
    for (auto& source : sources_) {
      if (wrap) source = wrap(std::move(source));
    }
    workers_.resize(static_cast<size_t>(stages));
    split_ = split;
    for (int rank = 1; rank < stages; ++rank) start(rank);
    engine_ = std::make_unique<Engine>(load_stage(*backend_, options_), config, 7, time, sources_.front().get());
  }
  ~Pipeline() {
    engine_.reset();
    for (auto& worker : workers_) {
      if (worker) worker->stop();
    }
  }

  Engine& engine() { return *engine_; }
  GroupSource& source(int rank) { return *sources_[static_cast<size_t>(rank)]; }
  Worker& worker(int rank) { return *workers_[static_cast<size_t>(rank)]; }
  void start(int rank) {
    WorkerOptions options = of_rank(rank);
    options.range = split_[static_cast<size_t>(rank)];
    workers_[static_cast<size_t>(rank)] = std::make_unique<Worker>(options, source(rank));
  }
  // Ends the engine and hears what the workers say.
  std::vector<std::string> shut_down() {
    engine_.reset();
    std::vector<std::string> errors;
    for (size_t rank = 1; rank < workers_.size(); ++rank) errors.push_back(workers_[rank]->join());
    return errors;
  }

 private:
  WorkerOptions of_rank(int rank) const {
    WorkerOptions options = options_;
    if (devices_) options.backend = [this, rank] { return devices_(rank); };
    return options;
  }

  const Devices devices_;
  WorkerOptions options_;
  std::vector<StageRange> split_;
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<GroupSource>> sources_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<Engine> engine_;
};

// One checkpoint and one mix of requests for all tests of a suite.
class PipelineSuite : public ::testing::Test {
 protected:
  static const std::filesystem::path& checkpoint() {
    static const TempDir dir;
    static const bool written = (write_checkpoint(layered_spec(), dir.path()), true);
    (void)written;
    return dir.path();
  }
  static const std::vector<Request>& requests() {
    static const std::vector<Request> requests = mixed_requests();
    return requests;
  }
  // What one process says, without anything that could change it.
  static std::vector<Outcome> said_by_one(EngineConfig config, const std::vector<Request>& asked = requests()) {
    config.prefix_cache = config.drafts = config.device_sampling = false;
    config.kv_memory_bytes = 64 << 20;
    Pipeline one(checkpoint(), config, 1);
    return run_all(one.engine(), asked);
  }
  static void expect_all(const std::vector<Outcome>& expected, const std::vector<Outcome>& got,
                         const std::vector<Request>& asked = requests()) {
    ASSERT_EQ(expected.size(), got.size());
    for (size_t i = 0; i < got.size(); ++i) expect_same(asked[i], expected[i], got[i]);
  }
  static Pipeline::Wrap tapped(Tap& tap) {
    return
        [&tap](std::unique_ptr<GroupSource> source) { return std::make_unique<TappedSource>(std::move(source), tap); };
  }
};

}  // namespace bam::testing
