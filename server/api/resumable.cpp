#include "server/api/resumable.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "server/api/live_jobs.h"
#include "server/api/piece_pump.h"
#include "server/api/server_context.h"

namespace bam {

namespace {

constexpr size_t kEventOverhead = sizeof(std::string) + 16;

size_t held(const std::string& event) { return event.size() + kEventOverhead; }

bool is_event_stream(const ReplyStream::Head& head) { return head.content_type.starts_with("text/event-stream"); }

}  // namespace

// One connection that the events go to. Everything but `call` belongs to its thread.
struct ResumableStream::Reader {
  Reader(CallPtr reader_call, bool began) : call(std::move(reader_call)), has_log(began) {}

  void end(bool cut) {
    over = true;
    if (!has_log) {
      call->log.id = call->request_id;
      call->log.method = call->method;
      call->log.path = call->path;
      call->log.status = 200;
      call->log.total_ms = std::chrono::duration<double, std::milli>(Clock::now() - call->started).count();
      call->log.write();
    }
    if (ticket != 0) call->forget(std::exchange(ticket, 0));
    if (cut) {
      stream->abort();
    } else {
      stream->close();
    }
  }

  const CallPtr call;
  const bool has_log;  // the generation writes the line of the one that began it
  std::shared_ptr<ReplyStream> stream;
  uint64_t ticket = 0;
  bool over = false;
};

ResumableStream::ResumableStream(HttpMetrics& metrics, size_t buffer_bytes, CallPtr home, Head head, Callbacks writer)
    : metrics_(metrics),
      buffer_bytes_(buffer_bytes),
      home_(std::move(home)),
      head_(std::move(head)),
      separator_(is_event_stream(head_) ? "\n\n" : "\n"),
      writer_(std::move(writer)) {}

ResumableStream::~ResumableStream() {
  metrics_.resumable_bytes.fetch_sub(static_cast<int64_t>(given_bytes_ + waiting_bytes_), std::memory_order_relaxed);
}

// Lines of NDJSON have no place for a number: their reader counts them.
void ResumableStream::send(std::string events) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    const size_t before = waiting_bytes_;
    for (size_t at = 0, end; at < events.size(); at = end) {
      const size_t found = events.find(separator_, at);
      end = found == std::string::npos ? events.size() : found + separator_.size();
      const uint64_t number = first_ + events_.size();
      const std::string_view event = std::string_view(events).substr(at, end - at);
      events_.push_back(is_event_stream(head_) ? fmt::format("id: {}\n{}", number, event) : std::string(event));
      waiting_bytes_ += held(events_.back());
    }
    metrics_.resumable_bytes.fetch_add(static_cast<int64_t>(waiting_bytes_ - before), std::memory_order_relaxed);
  }
  wake();
  update_pressure();
}

void ResumableStream::close() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  writer_ = {};
  full_ = false;
  wake();
}

void ResumableStream::wake() {
  std::shared_ptr<Reader> reader;
  {
    const std::lock_guard lock(mutex_);
    if (!reader_ || waking_) return;
    waking_ = true;
    reader = reader_;
  }
  reader->call->post([self = shared_from_this(), reader] { self->pump(reader); });
}

// On the reader's thread: gives it what it can take.
void ResumableStream::pump(const std::shared_ptr<Reader>& reader) {
  bool last = false;
  do {
    std::string batch;
    {
      const std::lock_guard lock(mutex_);
      if (reader_ != reader) return;  // another one came, and this one was told
      waking_ = false;
      if (reader->stream->is_full()) break;  // goes on when that has left
      uint64_t to = cursor_;
      while (to < first_ + events_.size() && batch.size() < kPieceBytes) batch += events_[to++ - first_];
      move_cursor(to);
      trim();
      last = ended_ && to == first_ + events_.size();
      if (last) {
        reader_ = nullptr;
        idle_since_ = Clock::now();
      }
    }
    if (batch.empty() && !last) break;
    if (!batch.empty()) reader->stream->send(std::move(batch));
  } while (!last && !reader->over);
  if (last && !reader->over) reader->end(false);
  if (is_full()) home_->post([self = shared_from_this()] { self->update_pressure(); });
}

void ResumableStream::move_cursor(uint64_t to) {
  for (; cursor_ < to; ++cursor_) {
    const size_t bytes = held(events_[cursor_ - first_]);
    waiting_bytes_ -= bytes;
    given_bytes_ += bytes;
  }
  for (; cursor_ > to; --cursor_) {
    const size_t bytes = held(events_[cursor_ - 1 - first_]);
    waiting_bytes_ += bytes;
    given_bytes_ -= bytes;
  }
}

void ResumableStream::trim() {
  while (first_ < cursor_ && given_bytes_ > buffer_bytes_ / 2) {
    const size_t bytes = held(events_.front());
    given_bytes_ -= bytes;
    metrics_.resumable_bytes.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
    events_.pop_front();
    ++first_;
  }
}

// On the writer's thread.
void ResumableStream::update_pressure() {
  bool full = full_;
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    full = waiting_bytes_ > buffer_bytes_ / (full ? 4 : 2);
  }
  if (full_.exchange(full) == full) return;
  if (const auto tell = writer_.on_pressure) tell(full);
}

std::optional<ApiError> ResumableStream::attach(const CallPtr& call, uint64_t from) {
  const auto reader = std::make_shared<Reader>(call, call == home_);
  std::shared_ptr<Reader> before;
  {
    const std::lock_guard lock(mutex_);
    const uint64_t next = first_ + events_.size();
    if (from > next) {
      return ApiError::invalid(fmt::format("'from': the stream has {} events so far, numbered from 0.", next), "from");
    }
    if (from < first_) {
      ApiError error = ApiError::not_found(
          fmt::format("Events before {} are not kept any more (--resume-buffer).", first_), "events_expired");
      error.status = 410;
      return error;
    }
    before = std::exchange(reader_, reader);
    move_cursor(from);
    waking_ = true;
    idle_since_.reset();
  }
  if (before) {
    before->call->post([before] {
      if (!before->over) before->end(true);
    });
  }
  const std::weak_ptr<ResumableStream> weak = weak_from_this();
  const std::weak_ptr<Reader> weak_reader = reader;
  const auto when_alive = [weak, weak_reader](auto action) {
    return [weak, weak_reader, action](auto... arguments) {
      const auto self = weak.lock();
      const auto alive = weak_reader.lock();
      if (self && alive && !alive->over) action(*self, alive, arguments...);
    };
  };
  ReplyStream::Callbacks callbacks;
  callbacks.on_pressure = when_alive([](ResumableStream& self, const std::shared_ptr<Reader>& alive, bool full) {
    if (!full) self.pump(alive);
  });
  callbacks.on_stalled =
      when_alive([](ResumableStream& self, const std::shared_ptr<Reader>& alive) { self.lost(alive, true); });
  reader->stream = call->open_stream(head_, std::move(callbacks));
  reader->ticket = call->on_close(
      when_alive([](ResumableStream& self, const std::shared_ptr<Reader>& alive) { self.lost(alive, false); }));
  pump(reader);
  return std::nullopt;
}

// On the reader's thread: its connection is gone, or is given up.
void ResumableStream::lost(const std::shared_ptr<Reader>& reader, bool cut) {
  {
    const std::lock_guard lock(mutex_);
    if (reader_ == reader) {
      reader_ = nullptr;
      idle_since_ = Clock::now();
    }
  }
  reader->end(cut);
}

std::optional<Clock::time_point> ResumableStream::idle_since() const {
  const std::lock_guard lock(mutex_);
  return idle_since_;
}

bool ResumableStream::is_delivered() const {
  const std::lock_guard lock(mutex_);
  return ended_ && !reader_ && cursor_ == first_ + events_.size();
}

std::optional<ApiError> ResumableStreams::reserve() {
  const std::lock_guard lock(mutex_);
  if (static_cast<int64_t>(entries_.size()) + reserved_ >= config_.max_resumable) {
    const auto read =
        std::find_if(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.stream->is_delivered(); });
    if (read == entries_.end()) {
      ApiError error = ApiError::queue_full(
          fmt::format("{} resumable streams are kept (--max-resumable); ask without 'resumable', or later.",
                      config_.max_resumable),
          config_.resume_timeout_s);
      error.code = "too_many_resumable_streams";
      return error;
    }
    entries_.erase(read);
  }
  ++reserved_;
  count();
  return std::nullopt;
}

void ResumableStreams::release() {
  const std::lock_guard lock(mutex_);
  --reserved_;
}

void ResumableStreams::add(const Call& call, std::shared_ptr<ResumableStream> stream, std::function<void()> abandon) {
  const auto name = [&call](const std::string& id) { return LiveJobs::engine_name(call.caller.tenant, id); };
  const std::lock_guard lock(mutex_);
  --reserved_;
  // Of two with one name the first is over: names of live requests are taken.
  for (const std::string& id : {name(call.reply_id), name(call.request_id)}) {
    if (const auto old = find_named(id); old != entries_.end()) entries_.erase(old);
  }
  entries_.push_back({name(call.reply_id), name(call.request_id), std::move(stream), std::move(abandon)});
  count();
}

std::list<ResumableStreams::Entry>::const_iterator ResumableStreams::find_named(const std::string& name) const {
  return std::find_if(entries_.begin(), entries_.end(),
                      [&name](const Entry& entry) { return entry.id == name || entry.request_id == name; });
}

std::shared_ptr<ResumableStream> ResumableStreams::find(const std::string& tenant, const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto entry = find_named(LiveJobs::engine_name(tenant, name));
  return entry == entries_.end() ? nullptr : entry->stream;
}

bool ResumableStreams::erase(const std::string& tenant, const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto entry = find_named(LiveJobs::engine_name(tenant, name));
  if (entry == entries_.end()) return false;
  entries_.erase(entry);
  count();
  return true;
}

void ResumableStreams::sweep(Clock::time_point now) {
  const auto patience =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(config_.resume_timeout_s));
  std::list<Entry> over;
  {
    const std::lock_guard lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      const auto here = entry++;
      const auto since = here->stream->idle_since();
      if (since && now - *since > patience) over.splice(over.end(), entries_, here);
    }
    count();
  }
  for (const Entry& entry : over) {
    if (!entry.stream->is_delivered()) metrics_.expired_streams.fetch_add(1, std::memory_order_relaxed);
    entry.abandon();
  }
}

void ResumableStreams::clear() {
  std::list<Entry> over;
  {
    const std::lock_guard lock(mutex_);
    over.swap(entries_);
    count();
  }
  for (const Entry& entry : over) entry.abandon();
}

size_t ResumableStreams::num_undelivered() const {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(),
                                           [](const Entry& entry) { return !entry.stream->is_delivered(); }));
}

void ResumableStreams::count() const {
  metrics_.resumable_streams.store(static_cast<int64_t>(entries_.size()), std::memory_order_relaxed);
}

namespace {

// What a generation sees in place of its connection: one that does not close until nobody has read for too long.
class ResumableCall final : public Call {
 public:
  ResumableCall(ServerContext& context, CallPtr inner) : Call(*inner), context_(context), inner_(std::move(inner)) {}
  ~ResumableCall() override {
    if (!opened_) context_.streams.release();
  }

  const std::string& header(const std::string& name) const override { return inner_->header(name); }
  // Who leaves before anything was begun for it has lost nothing.
  bool is_open() const override { return opened_ || inner_->is_open(); }
  void post(std::function<void()> task) override { inner_->post(std::move(task)); }
  uint64_t on_close(std::function<void()> callback) override {
    left_ = std::move(callback);
    return 1;
  }
  void forget(uint64_t) override { left_ = nullptr; }
  void drop_body() override { inner_->drop_body(); }
  using Call::reply;
  void reply(HttpReply reply) override {
    inner_->log = log;
    inner_->request_id = request_id;
    inner_->reply(std::move(reply));
  }

  std::shared_ptr<ReplyStream> open_stream(ReplyStream::Head head, ReplyStream::Callbacks callbacks) override {
    opened_ = true;
    inner_->request_id = request_id;
    head.headers.emplace_back("x-stream-id", reply_id);
    auto stream = std::make_shared<ResumableStream>(context_.metrics, context_.config.resume_buffer_bytes, inner_,
                                                    std::move(head), std::move(callbacks));
    context_.streams.add(*this, stream, [weak = weak_from_this()] {
      if (const auto call = std::static_pointer_cast<ResumableCall>(weak.lock())) {
        call->post([call] {
          if (const auto left = std::exchange(call->left_, nullptr)) left();
        });
      }
    });
    stream->attach(inner_, 0);
    return stream;
  }

 private:
  ServerContext& context_;
  const CallPtr inner_;
  std::function<void()> left_;
  std::atomic<bool> opened_{false};
};

}  // namespace

CallPtr resumable_call(ServerContext& context, CallPtr call) {
  if (const auto error = context.streams.reserve()) {
    call->reply(*error);
    return nullptr;
  }
  return std::make_shared<ResumableCall>(context, std::move(call));
}

}  // namespace bam
