#include "server/http/sse_stream.h"

#include "base/log.h"
#include "server/api/openai_reply.h"
#include "server/api/server_context.h"

namespace bam {

namespace {

// TLS wraps every write of up to 16 KiB into a record; the counter then runs ahead of what was queued.
constexpr size_t kTlsRecordBytes = 16 * 1024;
constexpr size_t kTlsOverheadBytes = 22;

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

SseStream::SseStream(ServerContext& context, std::shared_ptr<Exchange> exchange, std::function<void()> on_lost)
    : context_(context),
      exchange_(std::move(exchange)),
      on_lost_(std::move(on_lost)),
      next_ping_(Clock::now() + seconds(context.config.ping_interval_s)) {
  context_.metrics.open_streams.fetch_add(1, std::memory_order_relaxed);
}

SseStream::~SseStream() { context_.metrics.open_streams.fetch_sub(1, std::memory_order_relaxed); }

void SseStream::open(const std::vector<std::pair<std::string, std::string>>& headers) {
  auto self = shared_from_this();
  timer_ = exchange_->loop()->runEvery(1.0, [weak = weak_from_this()] {
    if (auto stream = weak.lock()) stream->tick();
  });
  exchange_->open_stream(headers, [self](drogon::ResponseStreamPtr stream) { self->attach(std::move(stream)); });
}

void SseStream::attach(drogon::ResponseStreamPtr stream) {
  if (lost_) return;
  stream_ = std::move(stream);
  if (const auto tcp = exchange_->connection()->tcp().lock()) meter_ = SendMeter(tcp->bytesSent());
  if (!backlog_.empty()) write(std::exchange(backlog_, {}));
  if (closing_) close();
}

void SseStream::send(std::string events) {
  if (lost_ || closing_) return;
  if (stream_) {
    write(events);
  } else {
    backlog_ += events;
  }
  if (meter_.unsent() + backlog_.size() > context_.config.max_unsent_bytes) lose("too far behind");
}

void SseStream::write(const std::string& events) {
  const auto tcp = exchange_->connection()->tcp().lock();
  if (!tcp) return;
  if (meter_.advance(tcp->bytesSent()) || meter_.unsent() == 0) last_progress_ = Clock::now();
  stream_->send(events);
  meter_.queued(framed_size(events.size(), !exchange_->is_http10(), tcp->isSSLConnection()), tcp->bytesSent());
}

void SseStream::tick() {
  if (lost_) return;
  const auto now = Clock::now();
  if (const auto tcp = exchange_->connection()->tcp().lock(); tcp && stream_) {
    if (meter_.advance(tcp->bytesSent()) || meter_.unsent() == 0) last_progress_ = now;
  }
  if (now - last_progress_ > seconds(context_.config.stall_timeout_s)) {
    lose("not reading");
    return;
  }
  if (now >= next_ping_) {
    next_ping_ += seconds(context_.config.ping_interval_s);
    send(ChunkWriter::ping());
  }
}

void SseStream::lose(const char* why) {
  if (lost_) return;
  lost_ = true;
  log::debug("cutting off stream {}: client is {}", exchange_->request_id, why);
  context_.metrics.slow_readers.fetch_add(1, std::memory_order_relaxed);
  exchange_->loop()->invalidateTimer(timer_);
  backlog_ = {};
  stream_.reset();
  // First the reason, then the closing, which would look like a client that left by itself.
  if (auto callback = std::move(on_lost_)) callback();
  if (const auto tcp = exchange_->connection()->tcp().lock()) tcp->forceClose();
}

void SseStream::close() {
  closing_ = true;
  exchange_->loop()->invalidateTimer(timer_);
  on_lost_ = nullptr;
  if (lost_ || !stream_) return;
  stream_.reset();  // its destructor sends the last chunk
  exchange_->stream_done(meter_.unsent());
}

}  // namespace bam
