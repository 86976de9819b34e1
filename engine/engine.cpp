#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <new>
#include <span>
#include <thread>
#include <unordered_set>
#include <variant>

#include "base/check.h"
#include "base/latest.h"
#include "base/log.h"
#include "engine/admission.h"
#include "engine/engine_core.h"
#include "engine/engine_setup.h"
#include "engine/pace.h"
#include "engine/snapshot.h"

namespace bam {

namespace {

constexpr auto kPublishInterval = std::chrono::milliseconds(50);
constexpr double kMinHealthySeconds = 10;
constexpr double kRetryMargin = 1.2;

struct SubmitMessage {
  Request request;
  std::shared_ptr<EventSink> sink;
  Clock::time_point submitted_at;
};
struct ControlMessage {
  enum class What : uint8_t { kCancel, kCancelAll, kStop, kPause, kResume, kRelease };
  What what;
  std::string id;
  int32_t choice = 0;
};
using TaskMessage = std::packaged_task<void(EngineCore&)>;
using Message = std::variant<SubmitMessage, ControlMessage, TaskMessage>;

struct Published {
  EnginePicture picture;
  LoadSummary load;
  Clock::time_point at;
  uint64_t steps = 0;  // so far
};

}  // namespace

struct Engine::Impl final : EngineCore::Observer {
  Impl(std::unique_ptr<BamModel> owned_model, EngineConfig config, uint64_t tokenizer_fingerprint, TimeSource& source,
       GroupSource* group)
      : Impl(std::move(owned_model), tokenizer_fingerprint, source,
             set_up_engine(*owned_model, std::move(config), tokenizer_fingerprint, group)) {}
  Impl(std::unique_ptr<BamModel>&& owned_model, uint64_t tokenizer_fingerprint, TimeSource& source, EngineSetup setup)
      : time(source),
        model(std::move(owned_model)),
        plan(setup.plan),
        model_config(model->config()),
        heads(std::move(setup.heads)),
        core(*model, plan.config, std::move(setup.runner), setup.sizes, stats, time, *this),
        pages(snapshot_identity(*model, setup.reach, tokenizer_fingerprint), core.kv(), core.runner(), plan.layout,
              [this](const std::function<void()>& work) { run_between_steps([&](EngineCore&) { work(); }); }),
        snapshots(plan.config.kv_dir, pages) {
    log::debug("{}", describe(plan));
    publish_now(time.now());
    thread = std::thread([this] { run(); });
  }

  ~Impl() override {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    wake.notify_all();
    thread.join();
  }

  // --- any thread ---
  SubmitResult submit(Request request, std::shared_ptr<EventSink> sink);
  SubmitResult enqueue(Request request, std::shared_ptr<EventSink> sink);
  SubmitResult queue_full(std::string message, QueueForecast::Goal goal, const Published& picture,
                          std::span<const ForecastSequence> arrivals) const;
  // False, with nothing sent, if the message is about a request that is not live.
  bool control(ControlMessage message);
  double seconds_since(Clock::time_point then) const {
    return std::chrono::duration<double>(time.now() - then).count();
  }
  // Waits for it; throws what it throws, and SnapshotError when the engine has stopped.
  void run_between_steps(std::function<void(EngineCore&)> work);
  SnapshotResult published_after(SnapshotResult result);

  // --- engine thread ---
  void run();
  bool take_inbox();
  void handle(Message& message);
  void mark_progress();
  void publish(Clock::time_point now);
  void publish_now(Clock::time_point now);
  void note_pace(Clock::time_point now);
  void note_device();
  void tell_kv_events();
  void before_events() override { count_queue(0, 0); }
  void on_done(const std::string& id) override {
    const std::lock_guard lock(mutex);
    live_ids.erase(id);
  }
  // Takes over the core's count of waiting requests; `requests` of those in the inbox are in the core now.
  void count_queue(int64_t requests, int64_t tokens) {
    const std::lock_guard lock(mutex);
    inbox_requests -= requests;
    inbox_tokens -= tokens;
    core_requests = core.num_queued();
    core_tokens = core.num_queued_tokens();
  }

  TimeSource& time;
  EngineStats stats;
  std::unique_ptr<BamModel> model;
  const KvPlan plan;
  const ModelConfig model_config;
  const std::vector<HeadReport> heads;

  std::mutex mutex;  // the inbox and what submit() must know at once
  std::condition_variable wake, idle;
  std::vector<Message> inbox;
  std::unordered_set<std::string> live_ids;
  std::vector<ForecastSequence> arrivals;  // submitted since the picture that is published now
  // Requests not scheduled yet: those the core has, as of the last events that went out, and those on their way to it.
  int64_t core_requests = 0, core_tokens = 0, inbox_requests = 0, inbox_tokens = 0;
  bool busy = false;  // the engine thread has work or is delivering events
  bool draining = false;
  bool stopping = false;
  std::string device_lost;  // why nothing can be computed any more
  std::function<void(const std::string&)> on_device_lost;
  std::function<void(std::vector<KvEvent>)> on_kv_events;  // engine thread only, like its log
  KvEventLog kv_events;

  EngineCore core;  // engine thread only, like all up to `published`
  PrefixPages pages;
  SnapshotStore snapshots;
  std::vector<Message> messages;
  Clock::time_point published_at{};
  size_t num_seen = 0;  // of `arrivals`, how many the core has
  Pace pace;
  Clock::time_point busy_since{};

  Latest<Published> published;
  // Health: when the current stretch of work last made progress; 0 while idle. Steady-clock ticks.
  std::atomic<Clock::rep> progress_at{0};
  std::atomic<double> expected_step_ms{0};
  std::atomic<bool> lost{false};  // the device
  std::atomic<bool> group_ready{true};
  std::thread thread;  // last: starts when everything else is there
};

SubmitResult Engine::Impl::queue_full(std::string message, QueueForecast::Goal goal, const Published& picture,
                                      std::span<const ForecastSequence> arrivals) const {
  // Who comes a little late is let in; who comes early is refused once more.
  const double ms = kRetryMargin * picture.load.queue.ms_until(goal, arrivals);
  const double seconds = 1e-3 * ms - seconds_since(picture.at);
  return {SubmitStatus::kQueueFull, std::move(message), std::clamp(seconds, 0.1, 3600.0)};
}

SubmitResult Engine::Impl::submit(Request request, std::shared_ptr<EventSink> sink) {
  BAM_CHECK(sink != nullptr);
  if (std::string why = never_fits(request, plan, model_config); !why.empty()) {
    return {SubmitStatus::kInvalid, std::move(why), 0};
  }
  try {
    return enqueue(std::move(request), std::move(sink));
  } catch (const std::bad_alloc&) {
    return {SubmitStatus::kNoMemory, "the server is out of memory", 1};
  }
}

SubmitResult Engine::Impl::enqueue(Request request, std::shared_ptr<EventSink> sink) {
  const int64_t tokens = static_cast<int64_t>(request.prompt.size());
  const EngineConfig& config = plan.config;
  std::string full;
  QueueForecast::Goal goal;
  std::vector<ForecastSequence> late;
  std::shared_ptr<const Published> picture;
  {
    const std::lock_guard lock(mutex);
    if (!device_lost.empty()) return {SubmitStatus::kDraining, "the server restarts: " + device_lost, 0};
    if (draining || stopping) return {SubmitStatus::kDraining, "the server is shutting down", 0};
    if (live_ids.contains(request.id)) {
      return {SubmitStatus::kDuplicateId, fmt::format("a request with the id {} is still running", request.id), 0};
    }
    const int64_t num_queued = core_requests + inbox_requests, num_queued_tokens = core_tokens + inbox_tokens;
    goal.requests = num_queued + 1 - config.max_queue;
    goal.tokens = num_queued_tokens + tokens - config.max_queued_tokens;
    if (goal.requests > 0) {
      full = fmt::format("{} requests are waiting, the limit is {}", num_queued, config.max_queue);
    } else if (num_queued > 0 && goal.tokens > 0) {
      full = fmt::format("{} prompt tokens are waiting; {} more would exceed the limit of {}", num_queued_tokens,
                         tokens, config.max_queued_tokens);
    } else {
      if (inbox.size() == inbox.capacity()) inbox.reserve(2 * inbox.size() + 16);
      arrivals.push_back(forecast_arrival(request, plan));
      try {
        live_ids.insert(request.id);
      } catch (...) {
        arrivals.pop_back();
        throw;
      }
      // No memory is needed from here on.
      ++inbox_requests;
      inbox_tokens += tokens;
      inbox.emplace_back(SubmitMessage{std::move(request), std::move(sink), time.now()});
    }
    if (!full.empty()) {
      late = arrivals;
      picture = published.load();
    }
  }
  if (!full.empty()) return queue_full(std::move(full), goal, *picture, late);
  wake.notify_one();
  return {};
}

void Engine::Impl::run_between_steps(std::function<void(EngineCore&)> work) {
  const auto stopped = [] { return SnapshotError(SnapshotFault::kBusy, "the engine has stopped"); };
  TaskMessage task([work = std::move(work)](EngineCore& c) {
    try {
      work(c);
    } catch (const DeviceLost& e) {
      c.lose_device(e.what());
      throw;
    } catch (const PeerLost& e) {
      c.lose_group(e.what());
      throw;
    }
  });
  std::future<void> done = task.get_future();
  {
    const std::lock_guard lock(mutex);
    if (stopping) throw stopped();
    inbox.emplace_back(std::move(task));
  }
  wake.notify_one();
  try {
    done.get();
  } catch (const std::future_error&) {
    throw stopped();
  }
}

// Waits for something to do; false when the engine is to stop.
bool Engine::Impl::take_inbox() {
  messages.clear();
  std::unique_lock lock(mutex);
  const bool nothing_to_do = !core.has_work();
  if (nothing_to_do || !core.ready()) {
    progress_at.store(0, std::memory_order_relaxed);
    if (nothing_to_do) {
      busy = false;
      idle.notify_all();
    }
    // Of requests that are paused, or of ranks.
    const auto until = std::min(core.next_deadline(), core.next_watch(time.now()));
    while (!stopping && inbox.empty() && time.now() < until) time.wait(wake, lock, until);
    busy_since = time.now();
  }
  if (stopping) return false;
  busy = true;
  messages.swap(inbox);
  return true;
}

void Engine::Impl::mark_progress() {
  progress_at.store(time.now().time_since_epoch().count(), std::memory_order_relaxed);
}

void Engine::Impl::handle(Message& message) {
  mark_progress();  // one that hangs is noticed
  if (auto* submit = std::get_if<SubmitMessage>(&message)) {
    const int64_t tokens = static_cast<int64_t>(submit->request.prompt.size());
    core.add(std::move(submit->request), std::move(submit->sink), submit->submitted_at);
    count_queue(1, tokens);
    ++num_seen;
  } else if (const auto* m = std::get_if<ControlMessage>(&message)) {
    switch (m->what) {
      case ControlMessage::What::kCancel: return core.cancel(m->id);
      case ControlMessage::What::kCancelAll: return core.cancel_all();
      case ControlMessage::What::kStop: return core.stop(m->id, m->choice);
      case ControlMessage::What::kPause: return core.pause(m->id);
      case ControlMessage::What::kResume: return core.resume(m->id);
      case ControlMessage::What::kRelease: return core.release(m->id);
    }
  } else {
    std::get<TaskMessage>(message)(core);
  }
}

void Engine::Impl::run() {
  while (take_inbox()) {
    for (Message& message : messages) handle(message);
    core.watch();
    group_ready.store(core.ready(), std::memory_order_relaxed);
    core.expire(time.now());
    if (!core.device_lost().empty()) core.fail_all();
    if (!core.has_work()) {
      publish(time.now());
      note_device();
      tell_kv_events();
      continue;
    }
    if (core.step()) mark_progress();
    expected_step_ms.store(core.expected_step_ms(), std::memory_order_relaxed);
    const auto end = time.now();
    if (end - published_at >= kPublishInterval || !core.has_work()) publish(end);
    note_device();
    tell_kv_events();
  }
  // Sinks of requests that were never looked at must hear of their end too. submit() adds nothing while stopping.
  {
    const std::lock_guard lock(mutex);
    messages.swap(inbox);
  }
  for (Message& message : messages) {
    if (std::holds_alternative<SubmitMessage>(message)) handle(message);
  }
  core.cancel_all();
  messages.clear();  // tasks: their callers get an error
  const std::lock_guard lock(mutex);
  busy = false;
  idle.notify_all();
}

void Engine::Impl::tell_kv_events() {
  if (on_kv_events && !kv_events.empty()) on_kv_events(kv_events.take());
}

// Tells the world, once, that the device is lost.
void Engine::Impl::note_device() {
  if (core.device_lost().empty()) return;
  std::function<void(const std::string&)> callback;
  {
    const std::lock_guard lock(mutex);
    if (!device_lost.empty()) return;
    device_lost = core.device_lost();
    callback = on_device_lost;
  }
  lost.store(true, std::memory_order_relaxed);
  if (callback) callback(core.device_lost());
}

// Compares the time since the last picture with what was predicted for as many steps.
void Engine::Impl::note_pace(Clock::time_point now) {
  const auto last = published.load();
  const uint64_t steps = stats.steps.load(std::memory_order_relaxed);
  if (steps == last->steps || last->load.queue.running.empty()) return;
  const double real_ms = std::chrono::duration<double, std::milli>(now - std::max(last->at, busy_since)).count();
  pace.note(real_ms, static_cast<double>(steps - last->steps) * last->load.queue.step_ms());
}

void Engine::Impl::publish(Clock::time_point now) {
  try {
    publish_now(now);
  } catch (const std::bad_alloc&) {  // the last picture stays for a while
  }
}

void Engine::Impl::publish_now(Clock::time_point now) {
  published_at = now;
  Published picture{core.picture(now), core.load(now), now, stats.steps.load(std::memory_order_relaxed)};
  if (published.load()) note_pace(now);
  picture.load.queue.pace = pace.ratio();
  const std::lock_guard lock(mutex);
  arrivals.erase(arrivals.begin(), arrivals.begin() + static_cast<std::ptrdiff_t>(num_seen));
  num_seen = 0;
  published.store(std::make_shared<const Published>(std::move(picture)));
}

Engine::Engine(std::unique_ptr<BamModel> model, EngineConfig config, uint64_t tokenizer_fingerprint, TimeSource& time,
               GroupSource* group)
    : impl_(std::make_unique<Impl>(std::move(model), std::move(config), tokenizer_fingerprint, time, group)) {}

Engine::~Engine() = default;

SubmitResult Engine::submit(Request request, std::shared_ptr<EventSink> sink) {
  return impl_->submit(std::move(request), std::move(sink));
}

bool Engine::Impl::control(ControlMessage message) {
  try {
    const std::lock_guard lock(mutex);
    if (message.what != ControlMessage::What::kCancelAll && !live_ids.contains(message.id)) return false;
    inbox.emplace_back(std::move(message));
  } catch (const std::bad_alloc&) {
    return false;
  }
  wake.notify_one();
  return true;
}

bool Engine::cancel(const std::string& id) { return impl_->control({ControlMessage::What::kCancel, id}); }
void Engine::cancel_all() { impl_->control({ControlMessage::What::kCancelAll, {}}); }
bool Engine::stop(const std::string& id, int32_t choice) {
  return impl_->control({ControlMessage::What::kStop, id, choice});
}
bool Engine::pause(const std::string& id) { return impl_->control({ControlMessage::What::kPause, id}); }
bool Engine::resume(const std::string& id) { return impl_->control({ControlMessage::What::kResume, id}); }
bool Engine::release(const std::string& id) { return impl_->control({ControlMessage::What::kRelease, id}); }

void Engine::use_prefix_store(PrefixStore* store) {
  impl_->run_between_steps([store](EngineCore& core) { core.use_store(store); });
}
PrefixPages& Engine::prefix_pages() { return impl_->pages; }
std::shared_ptr<PrefixStoreStats> Engine::prefix_store_stats() { return impl_->stats.store; }

bool Engine::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(impl_->mutex);
  impl_->draining = true;
  const auto until = impl_->time.now() + timeout;
  while (!impl_->live_ids.empty() || impl_->busy) {
    if (impl_->time.now() >= until) return false;
    impl_->time.wait(impl_->idle, lock, until);
  }
  return true;
}

const EngineConfig& Engine::config() const { return impl_->plan.config; }
const ModelConfig& Engine::model_config() const { return impl_->model_config; }
const std::vector<HeadReport>& Engine::heads() const { return impl_->heads; }
int64_t Engine::capacity_tokens() const { return impl_->plan.capacity_tokens(); }
const EngineStats& Engine::stats() const { return impl_->stats; }

std::shared_ptr<const EnginePicture> Engine::picture() const {
  auto result = std::make_shared<EnginePicture>(impl_->published.load()->picture);
  const Clock::rep progress = impl_->progress_at.load(std::memory_order_relaxed);
  if (progress != 0) result->last_step_age_s = impl_->seconds_since(Clock::time_point(Clock::duration(progress)));
  return result;
}

void Engine::on_kv_events(std::function<void(std::vector<KvEvent>)> callback) {
  impl_->run_between_steps([this, &callback](EngineCore& core) {
    impl_->on_kv_events = std::move(callback);
    core.kv().record_events(&impl_->kv_events);
  });
}

void Engine::on_device_lost(std::function<void(const std::string& what)> callback) {
  const std::lock_guard lock(impl_->mutex);
  impl_->on_device_lost = std::move(callback);
}

bool Engine::healthy() const {
  if (impl_->lost.load(std::memory_order_relaxed)) return false;
  const Clock::rep progress = impl_->progress_at.load(std::memory_order_relaxed);
  if (progress == 0) return true;
  const double usual_s =
      1e-3 * std::max(impl_->expected_step_ms.load(std::memory_order_relaxed), impl_->plan.config.step_target_ms);
  return impl_->seconds_since(Clock::time_point(Clock::duration(progress))) <
         std::max(kMinHealthySeconds, 20 * usual_s);
}

bool Engine::ready() const { return impl_->group_ready.load(std::memory_order_relaxed); }

double Engine::predict_ttft_s(int64_t prompt_tokens) const {
  return 1e-3 * impl_->published.load()->load.predict_ttft_ms(prompt_tokens);
}

// The caller may look at once.
SnapshotResult Engine::Impl::published_after(SnapshotResult result) {
  try {
    run_between_steps([this](EngineCore&) { publish(time.now()); });
  } catch (const SnapshotError&) {  // stopped: nobody looks
  }
  return result;
}

SnapshotResult Engine::save_snapshot(const std::string& name, const std::vector<int32_t>& tokens,
                                     const std::string& cache_salt) {
  return impl_->published_after(impl_->snapshots.save(name, tokens, cache_salt));
}

SnapshotResult Engine::restore_snapshot(const std::string& name) {
  return impl_->published_after(impl_->snapshots.restore(name));
}

}  // namespace bam
