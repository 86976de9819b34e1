#include "server/store/kv_store.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "base/log.h"
#include "engine/engine.h"
#include "server/store/prefix_transfer.h"

namespace bam {

namespace {

using std::chrono::milliseconds;

constexpr int kReaders = 2;
constexpr size_t kMaxWaiting = 64;                                 // jobs of a kind
constexpr size_t kMaxWaitingTokens = 4'000'000;                    // of all of them
constexpr milliseconds kWritePatience{10'000};                     // for one object
constexpr milliseconds kFinishPatience{5'000};                     // for all that waits when the server ends
constexpr milliseconds kFirstPause{1'000}, kLongestPause{60'000};  // of a place that failed

struct Job {
  std::string id, salt;
  std::vector<int32_t> tokens;
  Clock::time_point deadline;
};

milliseconds to_ms(double seconds) { return milliseconds(static_cast<int64_t>(seconds * 1000)); }

}  // namespace

// What the threads share with the store. One that hangs in a system call outlives it: then the door is shut and nobody
// touches the engine.
class KvStore::Shared {
 public:
  Shared(const KvStoreConfig& config, Engine& engine)
      : config_(config),
        stats_(engine.prefix_store_stats()),
        engine_(&engine),
        pages_(engine.prefix_pages()),
        door_(pages_) {}

  // Engine thread; false: there is no room, or the place is away.
  bool add(std::deque<Job>& queue, const Request& request) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      if (stopping_ || Clock::now() < away_until_ || queue.size() >= kMaxWaiting ||
          waiting_tokens_ + request.prompt.size() > kMaxWaitingTokens) {
        return false;
      }
      queue.push_back({request.id, request.cache_salt, request.prompt, Clock::now() + to_ms(config_.timeout_s)});
      waiting_tokens_ += request.prompt.size();
    } catch (const std::exception&) {
      return false;
    }
    changed_.notify_all();
    return true;
  }

  static void read_jobs(const std::shared_ptr<Shared>& self) {
    self->run(self->lookups, [&](PrefixTransfer& transfer, ObjectStore& store, const Job& job) {
      self->look_up(transfer, store, job);
    });
  }
  static void write_jobs(const std::shared_ptr<Shared>& self) {
    self->run(self->writes, [](PrefixTransfer& transfer, ObjectStore& store, const Job& job) {
      transfer.save(store, job.tokens, job.salt, kWritePatience);
    });
  }

  void begin_thread() {
    const std::lock_guard lock(mutex_);
    ++num_threads_;
  }
  void cancel_thread() {
    const std::lock_guard lock(mutex_);
    --num_threads_;
  }

  // No request is looked up any more; what waits to be written gets a while. False: some thread hangs.
  bool finish() {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    lookups.clear();
    changed_.notify_all();
    const bool ended = changed_.wait_for(lock, kFinishPatience, [&] { return num_threads_ == 0; });
    if (!ended) log::warn("--kv-store: {} does not answer: not waiting for it", config_.place);
    writes.clear();
    lock.unlock();
    door_.shut();
    const std::lock_guard guard(engine_mutex_);
    engine_ = nullptr;
    return ended;
  }

  void fail(const std::string& what) {
    stats_->errors.fetch_add(1, std::memory_order_relaxed);
    pause(what);
  }

  // Nobody asks for a while.
  void pause(const std::string& what) {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    if (now < away_until_) return;
    pause_ = std::clamp(2 * pause_, kFirstPause, kLongestPause);
    away_until_ = now + pause_;
    log::warn("the store of --kv-store is left alone for {:.0f} s: {}", 1e-3 * static_cast<double>(pause_.count()),
              what);
  }

  PrefixStoreStats& stats() { return *stats_; }
  const KvStoreConfig& config() const { return config_; }

  std::deque<Job> lookups, writes;  // guarded by the mutex

 private:
  template <typename Work>
  void run(std::deque<Job>& queue, Work work) {
    std::unique_ptr<ObjectStore> store;
    PrefixTransfer transfer(door_, pages_, {config_.stretch_tokens, config_.part_bytes}, holes_, *stats_);
    for (std::optional<Job> job; (job = take(queue));) {
      try {
        if (!store) store = open_object_store(config_.place, config_.limit_bytes);
        work(transfer, *store, *job);
        const std::lock_guard lock(mutex_);
        pause_ = milliseconds(0);
      } catch (const SnapshotError& e) {  // pages were evicted, there is no room, a rank was lost
        log::debug("--kv-store: {}", e.what());
      } catch (const std::exception& e) {
        fail(e.what());
      }
      release(job->id);
    }
    const std::lock_guard lock(mutex_);
    --num_threads_;
    changed_.notify_all();
  }

  std::optional<Job> take(std::deque<Job>& queue) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopping_ || !queue.empty(); });
    if (queue.empty()) return std::nullopt;
    Job job = std::move(queue.front());
    queue.pop_front();
    waiting_tokens_ -= job.tokens.size();
    return job;
  }

  void look_up(PrefixTransfer& transfer, ObjectStore& store, const Job& job) {
    if (Clock::now() >= job.deadline) return;  // it does not wait any longer
    const int64_t restored = transfer.restore(store, job.tokens, job.salt, job.deadline);
    (restored > 0 ? stats_->hits : stats_->misses).fetch_add(1, std::memory_order_relaxed);
    stats_->restored_tokens.fetch_add(static_cast<uint64_t>(restored), std::memory_order_relaxed);
  }

  void release(const std::string& id) {
    const std::lock_guard guard(engine_mutex_);
    if (engine_) engine_->release(id);
  }

  const KvStoreConfig config_;
  const std::shared_ptr<PrefixStoreStats> stats_;
  std::mutex engine_mutex_;
  Engine* engine_;
  PrefixPages& pages_;
  PrefixDoor door_;
  StoreHoles holes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t waiting_tokens_ = 0;
  int num_threads_ = 0;
  bool stopping_ = false;
  Clock::time_point away_until_{};
  milliseconds pause_{0};
};

KvStore::KvStore(const KvStoreConfig& config, Engine& engine) : engine_(engine) {
  if (!engine.prefix_pages().enabled()) throw UsageError("--kv-store needs --prefix-cache on");
  open_object_store(config.place, config.limit_bytes);  // what is wrong with it is said at once
  shared_ = std::make_shared<Shared>(config, engine);
  const auto start = [this](void (*work)(const std::shared_ptr<Shared>&)) {
    shared_->begin_thread();
    try {
      threads_.emplace_back([work, shared = shared_] { work(shared); });
    } catch (...) {
      shared_->cancel_thread();
      throw;
    }
  };
  try {
    for (int i = 0; i < kReaders; ++i) start(Shared::read_jobs);
    start(Shared::write_jobs);
    engine.use_prefix_store(this);
  } catch (...) {
    stop();
    throw;
  }
}

KvStore::~KvStore() {
  try {
    engine_.use_prefix_store(nullptr);
  } catch (const std::exception&) {  // it has stopped
  }
  stop();
}

void KvStore::stop() {
  const bool ended = shared_->finish();
  for (std::thread& thread : threads_) ended ? thread.join() : thread.detach();
}

bool KvStore::look_up(const Request& request, int64_t num_cached) {
  if (static_cast<int64_t>(request.prompt.size()) - num_cached < shared_->config().min_tokens) return false;
  return shared_->add(shared_->lookups, request);
}

Clock::duration KvStore::patience() const { return to_ms(shared_->config().timeout_s); }

void KvStore::gave_up() {
  shared_->stats().timeouts.fetch_add(1, std::memory_order_relaxed);
  shared_->pause("it did not answer in time");
}

void KvStore::computed(const Request& request) {
  if (static_cast<int64_t>(request.prompt.size()) < shared_->config().min_tokens) return;
  if (!shared_->add(shared_->writes, request)) {
    shared_->stats().dropped_writes.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace bam
