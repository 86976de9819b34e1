#include "server/http/connections.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <drogon/utils/Utilities.h>
#include <fmt/format.h>

#include "base/log.h"
#include "server/api/api_error.h"

namespace bam {

namespace {

// A peer that was refused may read its reply for so long; it may be sending a body that nobody wants.
constexpr double kHangUpSeconds = 1;
// While the process ends: time for a reply that is being made, and for what a peer that has just come wants to say.
constexpr double kLeaveSeconds = 2;
// Connections beyond --max-connections for probes, and how long one of them may take.
constexpr int64_t kSpareConnections = 8;
constexpr double kSpareSeconds = 3;
// A large body on a slow line gets more time: this is the slowest rate that is still served.
constexpr double kMinBytesPerSecond = 64 * 1024;

// Requests that are open at a time, from the oldest on. The library closes a connection with 32 of them.
constexpr uint64_t kMaxPipelined = 8;
// Replies that are made but not read: while there are more, nothing else is answered. And what is kept of the requests
// behind them.
constexpr size_t kMaxUnread = 256 * 1024;
constexpr size_t kMaxHeld = RequestFraming::kMaxHeadBytes;
constexpr double kLookAgainSeconds = 0.02;

// The library's reader is a protected member, and only a derived class may name it.
struct ReaderOf : trantor::TcpConnection {
  static trantor::RecvMessageCallback& get(trantor::TcpConnection& tcp) { return tcp.*(&ReaderOf::recvMsgCallback_); }
};

std::string malformed_reply(const FramingError& error) {
  const std::string body = ApiError{.status = error.status, .message = error.message}.to_json();
  return fmt::format(
      "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{}",
      error.status, drogon::statusCodeToString(error.status), body.size(), body);
}

double seconds_between(Connection::TimePoint from, Connection::TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Connection::Connection(const trantor::TcpConnectionPtr& tcp)
    : tcp_(tcp),
      loop_(tcp->getLoop()),
      received_mark_(tcp->bytesReceived()),
      last_received_(received_mark_),
      last_sent_(tcp->bytesSent()),
      last_activity_(std::chrono::steady_clock::now()),
      last_sent_at_(last_activity_) {}

uint64_t Connection::request_begun() {
  ++reading_bodies_;
  open_requests_.insert(next_request_);
  return next_request_++;
}

void Connection::body_complete() {
  if (reading_bodies_ > 0) --reading_bodies_;
  if (reading_bodies_ > 0) return;
  reading_since_.reset();
  if (const auto tcp = tcp_.lock()) received_mark_ = tcp->bytesReceived();
}

void Connection::request_done(uint64_t number, bool refused) {
  open_requests_.erase(number);
  last_activity_ = std::chrono::steady_clock::now();
  // Both wait until the reply has been handed to the library, which happens right after this call.
  if (refused) {
    deaf_ = true;
    loop_->queueInLoop([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->hang_up();
    });
  } else if (open_requests_.empty() && unanswered_) {
    loop_->queueInLoop([weak = weak_from_this()] {
      const auto self = weak.lock();
      if (const auto tcp = self ? self->tcp_.lock() : nullptr) self->answer_malformed(tcp);
    });
  } else if (!held_.empty()) {
    loop_->queueInLoop([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->take_held();
    });
  } else if (leaving_ && open_requests_.empty()) {
    loop_->queueInLoop([weak = tcp_] {
      if (const auto tcp = weak.lock()) tcp->shutdown();
    });
  }
}

void Connection::intercept(const trantor::TcpConnectionPtr& tcp, ConnectionTable& table) {
  library_ = ReaderOf::get(*tcp);
  tcp->setHighWaterMarkCallback(
      [weak = weak_from_this()](const trantor::TcpConnectionPtr& tcp, size_t waiting) {
        if (const auto self = weak.lock()) {
          self->unread_until_ = std::max(self->unread_until_, tcp->bytesSent() + waiting);
        }
      },
      kMaxUnread);
  metrics_ = &table.metrics_;
  tcp->setRecvMsgCallback([weak = weak_from_this()](const trantor::TcpConnectionPtr& tcp, trantor::MsgBuffer* buffer) {
    const auto self = weak.lock();
    if (self && !self->deaf_) self->on_bytes(tcp, {buffer->peek(), buffer->readableBytes()});
    buffer->retrieveAll();
  });
}

bool Connection::must_wait(const trantor::TcpConnection& tcp) const {
  if (!framing_.is_between_requests()) return false;
  if (tcp.bytesSent() < unread_until_) return true;
  return !open_requests_.empty() && next_request_ - *open_requests_.begin() >= kMaxPipelined;
}

void Connection::on_bytes(const trantor::TcpConnectionPtr& tcp, std::string_view bytes) {
  if (!held_.empty()) return hold(tcp, bytes);
  while (!bytes.empty() && !deaf_) {
    if (must_wait(*tcp)) return hold(tcp, bytes);
    take(tcp, bytes);
  }
}

// Whoever asks on and on without reading the answers is cut off.
void Connection::hold(const trantor::TcpConnectionPtr& tcp, std::string_view bytes) {
  if (bytes.size() > kMaxHeld - held_.size()) {
    log::debug("closing connection of {}: requests without an end, and their replies are not read",
               tcp->peerAddr().toIpPort());
    held_ = {};
    deaf_ = true;
    return tcp->forceClose();
  }
  held_.append(bytes);
  look_again_later();
}

// Nobody tells when bytes have left.
void Connection::look_again_later() {
  if (std::exchange(will_look_again_, true)) return;
  loop_->runAfter(kLookAgainSeconds, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->will_look_again_ = false;
    self->take_held();
  });
}

void Connection::take_held() {
  const auto tcp = tcp_.lock();
  if (!tcp || held_.empty()) return;
  if (must_wait(*tcp)) return look_again_later();
  const bool good = trantor::EventLoop::guarded([&] { on_bytes(tcp, std::exchange(held_, {})); });
  if (!good) tcp->forceClose();
}

void Connection::take(const trantor::TcpConnectionPtr& tcp, std::string_view& bytes) {
  const auto hand_over = [&](std::string_view text) {
    if (text.empty()) return;
    trantor::MsgBuffer buffer(text.size());
    buffer.append(text.data(), text.size());
    library_(tcp, &buffer);
  };
  std::string parsed;
  const auto error = framing_.feed_request(bytes, parsed);
  if (error) {
    malformed_ = error->message;
    metrics_->malformed_connections.fetch_add(1, std::memory_order_relaxed);
  }
  hand_over(parsed);
  if (!error) return;
  deaf_ = true;
  if (error->in_body) {
    hand_over(RequestFraming::kPoison);  // the request that is open gets its reply
    hang_up();
  } else {
    unanswered_ = error;
    if (open_requests_.empty()) answer_malformed(tcp);
  }
}

void Connection::answer_malformed(const trantor::TcpConnectionPtr& tcp) {
  if (!unanswered_ || !tcp->connected()) return;
  tcp->send(malformed_reply(*unanswered_));
  unanswered_.reset();
  hang_up();
}

void Connection::hang_up() {
  deaf_ = true;
  const auto tcp = tcp_.lock();
  if (!tcp) return;
  tcp->shutdown();
  loop_->runAfter(kHangUpSeconds, [weak = tcp_] {
    if (const auto tcp = weak.lock()) tcp->forceClose();
  });
}

void Connection::leave() {
  const auto tcp = tcp_.lock();
  if (!tcp) return;
  leaving_ = true;
  const double quiet = seconds_between(last_activity_, std::chrono::steady_clock::now());
  const bool has_just_come = next_request_ == 0 && quiet < kLeaveSeconds;
  if (!open_requests_.empty() || has_just_come || !framing_.is_between_requests()) {
    loop_->runAfter(kLeaveSeconds, [weak = tcp_] {
      if (const auto late = weak.lock()) late->shutdown();
    });
  } else if (quiet > kLeaveSeconds) {  // has everything; others get time to read the rest
    tcp->forceClose();
  } else {
    tcp->shutdown();
  }
}

void Connection::send_continue() {
  const auto tcp = tcp_.lock();
  // Behind an unfinished reply it would be taken for a part of that; the client sends its body after a while anyway.
  if (tcp && open_requests_.size() == 1) tcp->send(std::string("HTTP/1.1 100 Continue\r\n\r\n"));
}

void Connection::expect_sent(size_t bytes) {
  if (const auto tcp = tcp_.lock()) expected_sent_ = std::max(expected_sent_, tcp->bytesSent() + bytes);
}

uint64_t Connection::on_close(std::function<void()> callback) {
  const uint64_t ticket = next_ticket_++;
  close_callbacks_.emplace(ticket, std::move(callback));
  return ticket;
}

void Connection::forget(uint64_t ticket) { close_callbacks_.erase(ticket); }

void Connection::closed() {
  open_.store(false, std::memory_order_release);
  auto callbacks = std::move(close_callbacks_);
  close_callbacks_.clear();
  for (auto& [ticket, callback] : callbacks) callback();
}

const char* Connection::overdue(const ServerConfig& config, trantor::TcpConnection& tcp, TimePoint now) {
  const size_t received = tcp.bytesReceived(), sent = tcp.bytesSent();
  if (received != last_received_ || sent != last_sent_) last_activity_ = now;
  if (sent != last_sent_) last_sent_at_ = now;
  last_received_ = received;
  last_sent_ = sent;
  if (!held_.empty()) {
    const bool reads = !open_requests_.empty() || seconds_between(last_sent_at_, now) <= config.stall_timeout_s;
    return reads ? nullptr : "not reading";
  }
  const bool receiving = reading_bodies_ > 0 || (open_requests_.empty() && received > received_mark_);
  if (receiving) {
    if (!reading_since_) reading_since_ = now;
    const size_t bytes = received - received_mark_;
    const double allowed = config.read_timeout_s + static_cast<double>(bytes) / kMinBytesPerSecond;
    if (seconds_between(*reading_since_, now) > allowed) return "request not received in time";
    return nullptr;
  }
  if (!open_requests_.empty()) return nullptr;  // streams watch over themselves
  const double quiet = seconds_between(last_activity_, now);
  if (sent < expected_sent_ && quiet > config.stall_timeout_s) return "not reading";
  if (quiet > config.idle_timeout_s) return "idle";
  return nullptr;
}

void ConnectionTable::on_connection(const trantor::TcpConnectionPtr& tcp) {
  if (tcp->connected()) {
    // From here on, sweep() decides; the idle timeout of the framework only guards TLS handshakes.
    tcp->keepAlive();
    tcp->setTcpNoDelay(true);
    if (!add(tcp)) {
      metrics_.refused_connections.fetch_add(1, std::memory_order_relaxed);
      tcp->forceClose();
    }
    return;
  }
  std::shared_ptr<Connection> connection;
  {
    const std::lock_guard lock(mutex_);
    const auto it = table_.find(tcp.get());
    if (it == table_.end()) return;
    connection = std::move(it->second);
    if (connection->spare_) --num_spare_;
    table_.erase(it);
  }
  metrics_.open_connections.fetch_sub(1, std::memory_order_relaxed);
  connection->closed();
}

bool ConnectionTable::add(const trantor::TcpConnectionPtr& tcp) {
  auto connection = std::make_shared<Connection>(tcp);
  connection->intercept(tcp, *this);
  const std::lock_guard lock(mutex_);
  if (static_cast<int64_t>(table_.size()) - num_spare_ >= config_.max_connections) {
    if (num_spare_ >= kSpareConnections) return false;
    connection->spare_ = true;
    ++num_spare_;
    tcp->getLoop()->runAfter(kSpareSeconds, [weak = std::weak_ptr(tcp)] {
      if (const auto late = weak.lock()) late->forceClose();
    });
  }
  if (shutting_down_) connection->leave();
  table_.emplace(tcp.get(), std::move(connection));
  metrics_.open_connections.fetch_add(1, std::memory_order_relaxed);
  return true;
}

std::shared_ptr<Connection> ConnectionTable::find(const trantor::TcpConnectionPtr& tcp) const {
  const std::lock_guard lock(mutex_);
  const auto it = table_.find(tcp.get());
  return it == table_.end() ? nullptr : it->second;
}

void ConnectionTable::shut_down() {
  const std::lock_guard lock(mutex_);
  shutting_down_ = true;
  for (const auto& [key, connection] : table_) {
    connection->loop_->queueInLoop([connection] { connection->leave(); });
  }
}

void ConnectionTable::sweep(trantor::EventLoop* loop) {
  std::vector<std::pair<trantor::TcpConnectionPtr, std::shared_ptr<Connection>>> mine;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, connection] : table_) {
      if (connection->loop_ != loop) continue;
      if (auto tcp = connection->tcp().lock()) {
        mine.emplace_back(std::move(tcp), connection);
      }
    }
  }
  const auto now = std::chrono::steady_clock::now();
  for (const auto& [tcp, connection] : mine) {
    if (const char* reason = connection->overdue(config_, *tcp, now)) {
      log::debug("closing connection of {}: {}", tcp->peerAddr().toIpPort(), reason);
      metrics_.timed_out_connections.fetch_add(1, std::memory_order_relaxed);
      tcp->forceClose();
    }
  }
}

}  // namespace bam
