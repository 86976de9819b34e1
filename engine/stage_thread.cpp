#include "engine/stage_thread.h"

#include <utility>

#include "engine/clock.h"

namespace bam {

namespace {

using wire::Writer;

}  // namespace

StageThread::StageThread(StageRunner& runner, KvGeometry geometry)
    : runner_(runner), tables_(std::move(geometry)), counters_(runner.model().counters()) {
  blanks_.reserve(kMaxWaiting + 2);
  thread_ = std::thread([this] { loop(); });
}

StageThread::~StageThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StageThread::attach(Transport& transport, DeviceRows* rows) {
  const std::lock_guard lock(mutex_);
  transport_ = &transport;
  rows_ = rows;
  tables_.clear();
}

void StageThread::detach() {
  std::unique_lock lock(mutex_);
  waiting_.clear();
  changed_.wait(lock, [&] { return !computing_; });
  transport_ = nullptr;
  rows_ = nullptr;
}

std::unique_ptr<StageThread::Step> StageThread::blank() {
  const std::lock_guard lock(mutex_);
  if (blanks_.empty()) return std::make_unique<Step>();
  auto step = std::move(blanks_.back());
  blanks_.pop_back();
  return step;
}

void StageThread::issue(std::unique_ptr<Step> step) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(step));
  }
  changed_.notify_all();
}

bool StageThread::accepts() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size() < kMaxWaiting;
}

void StageThread::settle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_.empty() && !computing_; });
}

void StageThread::check() const {
  const std::lock_guard lock(mutex_);
  if (device_lost_) std::rethrow_exception(device_lost_);
}

std::vector<AttentionCounters> StageThread::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void StageThread::loop() {
  std::unique_lock lock(mutex_);
  auto idle_since = Clock::now();
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    std::unique_ptr<Step> step = std::move(waiting_.front());
    waiting_.pop_front();
    computing_ = true;
    lock.unlock();
    std::exception_ptr device_lost;
    std::vector<AttentionCounters> counters;
    try {
      compute(*step, step->others_under_way ? ms_since(idle_since) : 0);
      counters = runner_.model().counters();
    } catch (const DeviceLost&) {
      device_lost = std::current_exception();
    } catch (const std::exception& e) {  // the engine hears of it when it waits for the result
      transport_->abort(e.what());
    }
    idle_since = Clock::now();
    lock.lock();
    computing_ = false;
    if (device_lost) device_lost_ = device_lost;
    if (!counters.empty()) counters_.swap(counters);
    if (blanks_.size() < blanks_.capacity()) blanks_.push_back(std::move(step));
    changed_.notify_all();
  }
}

// The stage's rows, or why there are none: the others wait for either.
void StageThread::compute(Step& step, double waited_ms) {
  const auto start = Clock::now();
  report_ = {};
  const size_t floats = step.tokens.size() * static_cast<size_t>(runner_.model().config().hidden_size);
  try {
    runner_.copy_pages(step.copies);
    tables_.apply(step.plan, sequences_);
    Writer writer(message_, step.head, rows_ != nullptr ? 0 : floats * sizeof(float));
    runner_.run(
        {.tokens = step.tokens,
         .sequences = sequences_,
         .residual_out = rows_ != nullptr ? rows_->outgoing(floats) : reinterpret_cast<float*>(writer.payload().data()),
         .residual_on_device = rows_ != nullptr});
    report_.stage_ms.push_back(ms_since(start));
    report_.wait_ms.push_back(waited_ms);
    write(writer, report_);
  } catch (const DeviceLost&) {
    throw;
  } catch (const PeerLost&) {
    throw;
  } catch (const std::exception& e) {
    report_ = {};
    report_.error = e.what();
    if (report_.error.empty()) report_.error = "unknown";
    Writer writer(message_, step.head);
    write(writer, report_);
  }
  transport_->send_swap(1, Channel::kActivations, message_);
  if (rows_ != nullptr && report_.error.empty()) rows_->send(floats);
}

}  // namespace bam
