#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include <trantor/net/TcpConnection.h>

#include "server/api/metrics.h"
#include "server/api/server_config.h"
#include "server/http/request_framing.h"

namespace bam {

class ConnectionTable;

// What the server knows about one TCP connection. All methods belong to the connection's event loop, except is_open().
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit Connection(const trantor::TcpConnectionPtr& tcp);

  bool is_open() const { return open_.load(std::memory_order_acquire); }
  const std::weak_ptr<trantor::TcpConnection>& tcp() const { return tcp_; }

  // A request's headers are in; its body may still be on the way. Returns its number on this connection.
  uint64_t request_begun();
  void body_complete();
  // Its reply was handed over. `refused`: what is left of its body will not be read, and the connection ends within a
  // second whatever the peer sends.
  void request_done(uint64_t number, bool refused);
  // What was wrong with the bytes of the request being received; empty: nothing.
  const std::string& malformed() const { return malformed_; }
  // One beyond --max-connections: it may ask whether the server lives and is ready, once, and is closed.
  bool is_spare() const { return spare_; }
  // The client waits for a sign before it sends the body.
  void send_continue();

  // `bytes` more than have left so far are on their way to the peer: a peer that stops taking them is cut off.
  void expect_sent(size_t bytes);

  // Called when the peer goes away, once. Returns a ticket for forget().
  uint64_t on_close(std::function<void()> callback);
  void forget(uint64_t ticket);

 private:
  friend class ConnectionTable;
  // Puts the framing between the socket and the library.
  void intercept(const trantor::TcpConnectionPtr& tcp, ConnectionTable& table);
  void on_bytes(const trantor::TcpConnectionPtr& tcp, std::string_view bytes);
  // The next request, or a part of it, off the front of `bytes`.
  void take(const trantor::TcpConnectionPtr& tcp, std::string_view& bytes);
  // Whether the next request is not looked at yet: enough earlier ones are open, or their replies wait to be read.
  bool must_wait(const trantor::TcpConnection& tcp) const;
  void hold(const trantor::TcpConnectionPtr& tcp, std::string_view bytes);
  void look_again_later();
  void take_held();
  void answer_malformed(const trantor::TcpConnectionPtr& tcp);
  // Ignores what still comes and closes as soon as what is buffered has left, or a second is over.
  void hang_up();
  // The process ends: an open request, or one that is on its way, is answered first; then this closes.
  void leave();
  void closed();
  // Why the connection should be cut now, or null. Called about once a second.
  const char* overdue(const ServerConfig& config, trantor::TcpConnection& tcp, TimePoint now);

  std::weak_ptr<trantor::TcpConnection> tcp_;
  trantor::EventLoop* const loop_;
  std::atomic<bool> open_{true};
  uint64_t next_request_ = 0;
  std::set<uint64_t> open_requests_;  // replies leave in this order, so the first holds up all others
  int reading_bodies_ = 0;
  size_t received_mark_ = 0;  // bytes received when the last request was complete
  size_t last_received_ = 0, last_sent_ = 0;
  size_t expected_sent_ = 0;  // where the counter of sent bytes will be once all replies are out
  size_t unread_until_ = 0;   // while the counter is below it, more than kMaxUnread bytes of replies were waiting
  TimePoint last_activity_, last_sent_at_;
  std::optional<TimePoint> reading_since_;
  RequestFraming framing_;
  std::string held_;  // bytes of later requests
  bool will_look_again_ = false;
  HttpMetrics* metrics_ = nullptr;        // of all connections
  trantor::RecvMessageCallback library_;  // what read the socket before intercept()
  bool spare_ = false;
  bool leaving_ = false;                    // closes after its next reply
  bool deaf_ = false;                       // nothing that comes is looked at any more
  std::optional<FramingError> unanswered_;  // waits until earlier requests have their replies
  std::string malformed_;
  uint64_t next_ticket_ = 1;
  std::map<uint64_t, std::function<void()>> close_callbacks_;
};

// All connections. Slow senders, idle peers and peers that do not read are cut by sweep(), because Drogon's own idle
// timeout cannot tell a waiting client from a dead one.
class ConnectionTable {
 public:
  ConnectionTable(const ServerConfig& config, HttpMetrics& metrics) : config_(config), metrics_(metrics) {}

  // Drogon's connection callback: both when a peer arrives and when it leaves. Beyond --max-connections a few are let in
  // for probes, so that a supervisor does not take a full server for a dead one; all others are closed at once.
  void on_connection(const trantor::TcpConnectionPtr& tcp);
  std::shared_ptr<Connection> find(const trantor::TcpConnectionPtr& tcp) const;
  // Runs on every event loop about once a second, for the connections of that loop.
  void sweep(trantor::EventLoop* loop);

  // The process is about to end: connections close once their requests are answered and what is buffered for them has been
  // sent, also those that come from now on. Any thread.
  void shut_down();

 private:
  friend class Connection;
  bool add(const trantor::TcpConnectionPtr& tcp);  // false: there are as many as allowed, spare ones included

  const ServerConfig& config_;
  HttpMetrics& metrics_;
  mutable std::mutex mutex_;
  std::unordered_map<const trantor::TcpConnection*, std::shared_ptr<Connection>> table_;
  int64_t num_spare_ = 0;  // of those in the table
  bool shutting_down_ = false;
};

}  // namespace bam
