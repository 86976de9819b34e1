#include "bench/support/http_client.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "bench/support/runner.h"

namespace bam::bench {

namespace {

constexpr std::string_view kData = "data: ";
constexpr std::string_view kEventEnd = "\n\n";

// The integers that follow `name` in a JSON text: a number or a flat array.
std::vector<int32_t> integers_after(std::string_view text, std::string_view name) {
  std::vector<int32_t> values;
  const size_t at = text.find(name);
  if (at == std::string_view::npos) return values;
  const char* p = text.data() + at + name.size();
  const char* end = text.data() + text.size();
  if (p != end && *p == '[') ++p;
  for (int32_t value = 0; p < end; ++p) {
    const auto parsed = std::from_chars(p, end, value);
    if (parsed.ec != std::errc()) break;
    values.push_back(value);
    p = parsed.ptr;
    if (p == end || *p != ',') break;
  }
  return values;
}

class Connection {
 public:
  Connection(int port, int epoll) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd_ < 0) throw Error("socket: {}", std::strerror(errno));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    epoll_event event{.events = EPOLLIN, .data = {.ptr = this}};
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd_, &event) != 0) {
      const int failed = errno;
      close(fd_);
      throw Error("connect to port {}: {}", port, std::strerror(failed));
    }
  }
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void post(const std::string& path, const std::string& body, Reply& reply) {
    reply_ = &reply;
    in_head_ = true;
    const std::string message =
        "POST " + path +
        " HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
        "\r\n\r\n" + body;
    reply.sent_s = now_seconds();
    for (size_t done = 0; done < message.size();) {
      const ssize_t sent = send(fd_, message.data() + done, message.size() - done, MSG_NOSIGNAL);
      if (sent <= 0) throw Error("send: {}", std::strerror(errno));
      done += static_cast<size_t>(sent);
    }
  }

  // Reads what is there. True when the stream has ended.
  bool receive() {
    char block[16384];
    const ssize_t size = recv(fd_, block, sizeof(block), 0);
    if (size <= 0) throw Error("the server closed a stream before [DONE]");
    buffer_.append(block, static_cast<size_t>(size));
    return (!in_head_ || read_head()) && read_events();
  }

 private:
  bool read_head() {
    const size_t end = buffer_.find("\r\n\r\n");
    if (end == std::string::npos) return false;
    if (!buffer_.starts_with("HTTP/1.1 200 ")) throw Error("the server answered: {}", buffer_.substr(0, 600));
    buffer_.erase(0, end + 4);
    in_head_ = false;
    return true;
  }

  // The server never splits an event over chunks, so an event's bytes stand together whatever frames them.
  bool read_events() {
    size_t at = 0;
    bool done = false;
    for (size_t start; !done && (start = buffer_.find(kData, at)) != std::string::npos;) {
      const size_t end = buffer_.find(kEventEnd, start);
      if (end == std::string::npos) break;
      done = read_event(std::string_view(buffer_).substr(start + kData.size(), end - start - kData.size()));
      at = end + kEventEnd.size();
    }
    // The last chunk of a body ("0") arrives with [DONE] or is skipped before the next status line.
    buffer_.erase(0, at);
    if (done) ends_ = true;
    return ends_ && finished_body();
  }

  bool finished_body() {
    const size_t end = buffer_.find("0\r\n\r\n");
    if (end == std::string::npos) return false;
    buffer_.erase(0, end + 5);
    ends_ = false;
    return true;
  }

  bool read_event(std::string_view event) {
    if (event == "[DONE]") return true;
    if (event.starts_with("{\"error\"")) throw Error("the server sent {}", event);
    for (const int32_t token : integers_after(event, "\"token_ids\":")) reply_->tokens.push_back(token);
    if (event.find("\"finish_reason\":null") != std::string_view::npos) reply_->arrived(now_seconds());
    if (const auto counts = integers_after(event, "\"completion_tokens\":"); !counts.empty())
      reply_->num_tokens = counts[0];
    return false;
  }

  int fd_ = -1;
  std::string buffer_;
  Reply* reply_ = nullptr;
  bool in_head_ = true;
  bool ends_ = false;  // [DONE] was read, the end of the body not yet
};

struct Epoll {
  int fd = epoll_create1(EPOLL_CLOEXEC);
  ~Epoll() { close(fd); }
};

}  // namespace

std::vector<Reply> run_streams(int port, const std::string& path, const std::vector<std::string>& bodies,
                               size_t concurrency) {
  std::vector<Reply> replies(bodies.size());
  const Epoll epoll;
  std::vector<std::unique_ptr<Connection>> connections;
  size_t next = 0, ended = 0;
  for (; next < std::min(concurrency, bodies.size()); ++next) {
    connections.push_back(std::make_unique<Connection>(port, epoll.fd));
    connections.back()->post(path, bodies[next], replies[next]);
  }
  epoll_event events[64];
  while (ended < bodies.size()) {
    const int count = epoll_wait(epoll.fd, events, 64, 60'000);
    if (count == 0)
      throw Error("the server sent nothing for a minute; {} of {} streams have ended", ended, bodies.size());
    for (int i = 0; i < count; ++i) {
      auto* connection = static_cast<Connection*>(events[i].data.ptr);
      if (!connection->receive()) continue;
      ++ended;
      if (next < bodies.size()) {
        connection->post(path, bodies[next], replies[next]);
        ++next;
      }
    }
  }
  return replies;
}

}  // namespace bam::bench
