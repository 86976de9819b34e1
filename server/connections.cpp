#include "server/connections.h"

#include <algorithm>
#include <vector>

#include "base/log.h"

namespace bam {

namespace {

constexpr double kLingerSeconds = 5;
// Half-parsed input that Drogon holds for one connection before our own body limit sees it.
constexpr size_t kParserSlackBytes = 1 << 20;
// A large body on a slow line gets more time: this is the slowest rate that is still served.
constexpr double kMinBytesPerSecond = 64 * 1024;

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
      last_activity_(std::chrono::steady_clock::now()) {}

void Connection::request_begun() {
  ++in_flight_;
  ++reading_bodies_;
}

void Connection::body_complete() {
  if (reading_bodies_ > 0) --reading_bodies_;
  if (reading_bodies_ > 0) return;
  reading_since_.reset();
  if (const auto tcp = tcp_.lock()) received_mark_ = tcp->bytesReceived();
}

void Connection::request_done(bool lingering) {
  if (in_flight_ > 0) --in_flight_;
  last_activity_ = std::chrono::steady_clock::now();
  if (lingering) lingering_since_ = last_activity_;
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
  last_received_ = received;
  last_sent_ = sent;
  if (lingering_since_ && seconds_between(*lingering_since_, now) > kLingerSeconds &&
      seconds_between(last_activity_, now) > kLingerSeconds) {
    return "closing";
  }
  const bool receiving = reading_bodies_ > 0 || (in_flight_ == 0 && received > received_mark_);
  if (receiving) {
    if (!reading_since_) reading_since_ = now;
    const size_t bytes = received - received_mark_;
    const double allowed = config.read_timeout_s + static_cast<double>(bytes) / kMinBytesPerSecond;
    if (seconds_between(*reading_since_, now) > allowed) return "request not received in time";
    if (reading_bodies_ == 0 && bytes > config.max_body_bytes + kParserSlackBytes) {
      return "request head too large";
    }
    return nullptr;
  }
  if (in_flight_ > 0) return nullptr;  // streams watch over themselves
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
      refused_.fetch_add(1, std::memory_order_relaxed);
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
    table_.erase(it);
  }
  open_.fetch_sub(1, std::memory_order_relaxed);
  connection->closed();
}

bool ConnectionTable::add(const trantor::TcpConnectionPtr& tcp) {
  const std::lock_guard lock(mutex_);
  if (static_cast<int64_t>(table_.size()) >= config_.max_connections) return false;
  table_.emplace(tcp.get(), std::make_shared<Connection>(tcp));
  open_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

std::shared_ptr<Connection> ConnectionTable::find(const trantor::TcpConnectionPtr& tcp) const {
  const std::lock_guard lock(mutex_);
  const auto it = table_.find(tcp.get());
  return it == table_.end() ? nullptr : it->second;
}

void ConnectionTable::shut_down() {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, connection] : table_) {
    connection->loop_->queueInLoop([connection] {
      const auto tcp = connection->tcp().lock();
      if (!tcp) return;
      const double quiet = seconds_between(connection->last_activity_, std::chrono::steady_clock::now());
      // Whoever was answered a while ago has everything; the others get time to read the rest.
      if (connection->in_flight_ == 0 && quiet > 2) {
        tcp->forceClose();
      } else {
        tcp->shutdown();
      }
    });
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
      timed_out_.fetch_add(1, std::memory_order_relaxed);
      tcp->forceClose();
    }
  }
}

}  // namespace bam
