#include "server/http/sse_stream.h"

#include "base/log.h"
#include "server/api/openai_reply.h"
#include "server/http/http_context.h"

namespace bam {

namespace {

// TLS wraps every write of up to 16 KiB into a record; the counter then runs ahead of what was queued.
constexpr size_t kTlsRecordBytes = 16 * 1024;
constexpr size_t kTlsOverheadBytes = 22;
// How often a full stream looks whether its reader has caught up.
constexpr double kDrainPollSeconds = 0.01;

// Bytes on the wire of one chunk: hex length, CRLF, data, CRLF. HTTP/1.0 has no chunks.
size_t framed_size(size_t size, bool chunked, bool tls) {
  size_t digits = 1;
  for (size_t rest = size >> 4; rest > 0; rest >>= 4) ++digits;
  const size_t plain = chunked ? digits + 2 + size + 2 : size;
  return tls ? plain + (plain / kTlsRecordBytes + 1) * kTlsOverheadBytes : plain;
}

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

}  // namespace

bool SendMeter::advance(size_t sent) {
  const size_t moved = sent - last_sent_;
  last_sent_ = sent;
  unsent_ -= std::min(unsent_, moved);
  return moved > 0;
}

void SendMeter::queued(size_t size, size_t sent) {
  const size_t moved = sent - last_sent_;
  last_sent_ = sent;
  // Bytes leave in order: if as many left as were just queued, nothing older can be waiting, and small errors of the
  // estimate end here.
  unsent_ = moved >= size ? 0 : unsent_ + size - moved;
}

SseStream::SseStream(HttpContext& context, std::shared_ptr<Exchange> exchange, Callbacks callbacks)
    : context_(context),
      exchange_(std::move(exchange)),
      callbacks_(std::move(callbacks)),
      next_ping_(Clock::now() + seconds(context.config.ping_interval_s)) {
  context_.metrics.open_streams.fetch_add(1, std::memory_order_relaxed);
}

SseStream::~SseStream() { context_.metrics.open_streams.fetch_sub(1, std::memory_order_relaxed); }

void SseStream::open(const Head& head) {
  pings_ = head.content_type.starts_with("text/event-stream");
  auto self = shared_from_this();
  timer_ = exchange_->loop()->runEvery(1.0, [weak = weak_from_this()] {
    if (auto stream = weak.lock()) stream->tick();
  });
  exchange_->begin_body(head, [self](drogon::ResponseStreamPtr stream) { self->attach(std::move(stream)); });
}

void SseStream::attach(drogon::ResponseStreamPtr stream) {
  stream_ = std::move(stream);
  if (const auto tcp = exchange_->connection()->tcp().lock()) meter_ = SendMeter(tcp->bytesSent());
  if (!backlog_.empty()) write(std::exchange(backlog_, {}));
  if (closing_) close();
}

void SseStream::send(std::string bytes) {
  if (closing_) return;
  if (stream_) {
    write(bytes);
  } else {
    backlog_ += bytes;
  }
  update_pressure();
}

void SseStream::write(const std::string& events) {
  const auto tcp = exchange_->connection()->tcp().lock();
  if (!tcp) return;
  measure();
  stream_->send(events);
  meter_.queued(framed_size(events.size(), !exchange_->is_http10(), tcp->isSSLConnection()), tcp->bytesSent());
}

void SseStream::measure() {
  const auto tcp = exchange_->connection()->tcp().lock();
  if (tcp && stream_ && (meter_.advance(tcp->bytesSent()) || meter_.unsent() == 0)) last_progress_ = Clock::now();
}

void SseStream::update_pressure() {
  const size_t limit = context_.config.max_unsent_bytes, unsent = meter_.unsent() + backlog_.size();
  if (!full_ && unsent > limit) {
    full_ = true;
    drain_timer_ = exchange_->loop()->runEvery(kDrainPollSeconds, [weak = weak_from_this()] {
      const auto stream = weak.lock();
      if (!stream) return;
      stream->measure();
      stream->update_pressure();
    });
  } else if (full_ && unsent <= limit / 2) {
    full_ = false;
    exchange_->loop()->invalidateTimer(drain_timer_);
  } else {
    return;
  }
  if (callbacks_.on_pressure) callbacks_.on_pressure(full_);
}

void SseStream::tick() {
  measure();
  const auto now = Clock::now();
  if (now - last_progress_ > seconds(context_.config.stall_timeout_s)) {
    if (const auto on_stalled = std::exchange(callbacks_.on_stalled, nullptr)) {
      log::debug("ending stream {}: the client does not read", exchange_->request_id);
      context_.metrics.slow_readers.fetch_add(1, std::memory_order_relaxed);
      on_stalled();
    }
    return;
  }
  if (now >= next_ping_) {
    next_ping_ += seconds(context_.config.ping_interval_s);
    if (pings_ && !full_) send(ChunkWriter::ping());  // whoever has bytes waiting needs no sign of life
  }
}

void SseStream::close() {
  closing_ = true;
  callbacks_ = {};
  exchange_->loop()->invalidateTimer(timer_);
  if (full_) exchange_->loop()->invalidateTimer(drain_timer_);
  full_ = false;
  if (!stream_) return;
  stream_.reset();  // its destructor sends the last chunk
  exchange_->stream_done(meter_.unsent());
}

// Without the last chunk: the connection ends before the body does.
void SseStream::abort() {
  if (const auto tcp = exchange_->connection()->tcp().lock()) tcp->forceClose();
  close();
}

}  // namespace bam
