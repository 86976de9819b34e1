#include "app/serve.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <future>
#include <thread>

#include <CLI/CLI.hpp>

#include "app/build_info.h"
#include "app/commands.h"
#include "app/exit_codes.h"
#include "app/local_stages.h"
#include "app/option_flags.h"
#include "app/passkey_selftest.h"
#include "base/describe.h"
#include "base/log.h"
#include "server/api/batch_store.h"
#include "server/http/http_server.h"

namespace bam {

namespace {

// Clients may be many: take all the file descriptors that we are allowed.
void raise_descriptor_limit(int64_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t needed = static_cast<rlim_t>(wanted) + 64;
  if (limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < needed) {
    log::warn("only {} file descriptors are allowed, fewer than --max-connections {} needs", limit.rlim_cur, wanted);
  }
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

// Supervisors signal a process and then its group: what comes within this time is the first signal once more.
constexpr int64_t kSameSignalMs = 1000;
// A model that is still loading when the server ends gets so long to notice; nothing can be lost with it.
constexpr std::chrono::seconds kLoaderPatience{1};

// What the signal handler reads; both are lock-free.
std::atomic<int64_t> g_first_signal_ms{0};
std::atomic<bool> g_finished{false};

int64_t monotonic_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

void abort_on_later_signal(int signal) {
  if (g_finished || monotonic_ms() - g_first_signal_ms < kSameSignalMs) return;
  constexpr char kText[] = "bam serve: another signal: aborting\n";
  [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  _exit(128 + signal);
}

// Loads the model beside the running HTTP server, and ends both in order. Every thread is started and joined by run().
class Service {
 public:
  explicit Service(ServeConfig config) : config_(std::move(config)), context_(config_.server), http_(context_) {
    context_.version = BAM_VERSION;
    context_.props_json = config_.resolved_json();
    if (!config_.server.batch_dir.empty()) context_.batches = std::make_shared<BatchStore>(config_.server.batch_dir);
  }

  int run() {
    raise_descriptor_limit(config_.server.max_connections);
    http_.bind();
    log::info("{}: loading {}", build_line(), config_.model.model);
    log::debug("config: {}", config_.resolved_line());
    if (!is_loopback(config_.server.host) && config_.server.api_keys.empty()) {
      log::warn("--host {} without --api-key: everyone who reaches this machine can use the server",
                config_.server.host);
    }
    std::promise<void> finished;
    std::promise<bool> listening;
    std::promise<void> load_over;
    std::thread loader([&, started = listening.get_future()]() mutable {
      if (started.get()) load();
      load_over.set_value();
    });
    std::thread supervisor;
    try {
      supervisor = std::thread([this, done = finished.get_future()] { supervise(done); });
    } catch (...) {
      listening.set_value(false);
      loader.join();
      throw;
    }
    bool told = false;
    std::string http_error;
    try {
      http_.run([&] {
        log::debug("bound to {}; answers 503 until the model is there", http_.url());
        told = true;
        listening.set_value(true);
      });
    } catch (const std::exception& error) {
      http_error = describe(error);  // the threads must still be joined
    }
    if (!told) listening.set_value(false);
    if (load_over.get_future().wait_for(kLoaderPatience) != std::future_status::ready) {
      log::info("stopped while the model was loading");
      _exit(exit_code_);
    }
    loader.join();
    g_finished = true;
    finished.set_value();
    pthread_kill(supervisor.native_handle(), SIGTERM);  // wakes it from sigwait
    supervisor.join();
    if (context_.batches) context_.batches->stop();
    kv_store_.reset();
    loaded_.reset();
    if (!http_error.empty()) throw Error("{}", http_error);
    if (!load_error_.empty()) {
      std::fprintf(stderr, "bam serve: %s\n", load_error_.c_str());
    } else {
      log::info("stopped");
    }
    return exit_code_;
  }

 private:
  void load() {
    try {
      load_and_announce();
    } catch (const std::exception& error) {
      load_error_ = describe(error);
      exit_code_ = dynamic_cast<const UsageError*>(&error) != nullptr ? 2 : 1;
      http_.quit();
    }
  }

  void load_and_announce() {
    if (wants_local_stages(config_.model.stages)) local_stages_ = std::make_unique<LocalStages>(config_);
    auto loaded = std::make_unique<LoadedModel>(load_model(config_.model));
    loaded_ = std::move(loaded);
    serving_ = make_serving_model(*loaded_);
    if (!config_.kv_events.endpoint.empty()) publish_kv_events();
    if (!config_.kv_store.place.empty()) kv_store_ = std::make_unique<KvStore>(config_.kv_store, *loaded_->engine);
    log::info("{}", loaded_->description());
    log::info("{}", loaded_->running_description());
    loaded_->engine->on_device_lost([this](const std::string&) {
      log::error("ending with exit code {}: only a new process can go on", kDeviceLostExitCode);
      exit_code_ = kDeviceLostExitCode;
      kill(getpid(), SIGTERM);  // the supervising thread drains, as for a signal from outside
    });
    context_.model.store(serving_.get(), std::memory_order_release);
    if (context_.batches) context_.batches->start(context_);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - context_.started).count();
    log::info("ready after {:.1f} s: '{}'{} on {}", seconds, config_.server.served_model_names.front(),
              serving_->chat_template ? "" : ", completions only (" + serving_->chat_template_error + ")", http_.url());
  }

  void publish_kv_events() {
    Engine& engine = *loaded_->engine;
    kv_publisher_ = std::make_unique<KvPublisher>(config_.kv_events, static_cast<int>(engine.config().page_size));
    engine.on_kv_events([this](std::vector<KvEvent> events) { kv_publisher_->publish(std::move(events)); });
  }

  // Waits for the first signal, drains, and stays to hear another one.
  void supervise(const std::future<void>& finished) {
    const sigset_t signals = stop_signals();
    int signal = 0;
    if (sigwait(&signals, &signal) != 0 || g_finished) return;
    g_first_signal_ms = monotonic_ms();
    struct sigaction action {};
    action.sa_handler = abort_on_later_signal;
    sigaction(SIGTERM, &action, nullptr);
    sigaction(SIGINT, &action, nullptr);
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    log::info("signal {}: draining for at most {:.0f} s; another signal aborts", signal,
              config_.server.drain_timeout_s);
    context_.draining = true;
    drain();
    finished.wait();
  }

  // Lets running requests finish, sends out what is still buffered, and stops the event loops.
  void drain() {
    using namespace std::chrono;
    if (context_.batches) context_.batches->stop_taking();
    const auto deadline =
        steady_clock::now() + milliseconds(static_cast<int64_t>(config_.server.drain_timeout_s * 1000));
    if (const ServingModel* model = context_.model.load(std::memory_order_acquire)) {
      const auto left = duration_cast<milliseconds>(deadline - steady_clock::now());
      if (!model->engine.drain(std::max(left, milliseconds(0)))) {
        log::warn("requests were still running after {:.0f} s: ending them", config_.server.drain_timeout_s);
        if (exit_code_ == 0) exit_code_ = 1;
        for (const auto& job : context_.jobs.all()) job->cancel();
      }
    }
    const auto flush_until = std::max(deadline, steady_clock::now() + seconds(1));
    // A client that lost its connection may still come for the rest of its stream.
    const auto is_busy = [this] { return context_.jobs.size() > 0 || context_.streams.num_undelivered() > 0; };
    while (is_busy() && steady_clock::now() < flush_until) std::this_thread::sleep_for(10ms);
    context_.connections.shut_down();
    const auto closed_until = std::min(flush_until, steady_clock::now() + seconds(3));
    wait_until_closed(closed_until);
    stop_work();
    wait_until_closed(closed_until);  // a gateway that has not noticed sends on
    http_.quit();
  }

  void wait_until_closed(std::chrono::steady_clock::time_point until) const {
    while (context_.metrics.open_connections.load(std::memory_order_relaxed) > 0 &&
           std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // The event loops go last: until then workers and the engine may still hand something to them.
  void stop_work() {
    const ServingModel* model = context_.model.load(std::memory_order_acquire);
    if (model) model->engine.cancel_all();  // a worker may be waiting for an answer
    context_.streams.clear();
    context_.pool.stop();
    if (model) model->engine.drain(std::chrono::seconds(5));
  }

  ServeConfig config_;
  std::unique_ptr<LocalStages> local_stages_;  // ends after the engine, which tells the workers that it is over
  std::unique_ptr<KvPublisher> kv_publisher_;  // the engine's thread uses it
  std::unique_ptr<LoadedModel> loaded_;
  std::unique_ptr<KvStore> kv_store_;  // uses the engine
  std::unique_ptr<ServingModel> serving_;
  HttpContext context_;
  HttpServer http_;
  std::string load_error_;
  std::atomic<int> exit_code_{0};
};

}  // namespace

std::unique_ptr<ServingModel> make_serving_model(const LoadedModel& loaded) {
  auto model = std::make_unique<ServingModel>(*loaded.engine, *loaded.tokenizer);
  const std::string& source = loaded.tokenizer->chat_template();
  if (source.empty()) {
    model->chat_template_error = "the checkpoint has no chat template.";
  } else if (auto compiled = ChatTemplate::compile(source)) {
    model->chat_template = *std::move(compiled);
  } else {
    model->chat_template_error =
        fmt::format("the checkpoint's chat template is not usable ({}).", compiled.error().what());
  }
  model->defaults = loaded.defaults;
  model->system_fingerprint = fmt::format("bam-{}-{:016x}", BAM_VERSION, loaded.fingerprint);
  model->checkpoint = loaded.checkpoint.string();
  model->weight_dtype = dtype_name(loaded.weight_dtype);
  model->device = loaded.backend->description();
  model->num_parameters = loaded.num_parameters;
  model->weight_bytes = loaded.weight_bytes;
  model->created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  model->passkey_selftest = run_passkey_selftest;
  return model;
}

int serve(const ServeConfig& config) {
  // Before any thread exists: only the one that waits for these signals may receive them.
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return Service(config).run();
}

int run_serve(int argc, char** argv) {
  CLI::App app("Serves a checkpoint over an OpenAI-compatible HTTP API.", "bam serve");
  OptionFlags flags(app, [](const ServeOption&) { return true; });
  flags.add_model_argument(app);
  app.footer(std::string(kSettingsHelp) +
             "\nExamples:\n"
             "  bam serve demo\n"
             "  bam serve ./my-checkpoint --port 9000 --kv-memory 8GiB\n"
             "  bam serve --host 0.0.0.0 --api-key-file keys.txt --tls-cert cert.pem \\\n"
             "    --tls-key key.pem\n"
             "  curl http://127.0.0.1:8000/v1/completions \\\n"
             "    -d '{\"prompt\": \"Once\", \"max_tokens\": 32}'");
  return flags.run(app, argc, argv, [](const ServeConfig& config) { return serve(config); });
}

}  // namespace bam
