#include "app/client/http_loop.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <span>
#include <unordered_map>

#include <curl/curl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/error.h"

namespace bam::client {
namespace {

void curl_init_once() {
  static const CURLcode result = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (result != CURLE_OK) throw Error("libcurl: {}", curl_easy_strerror(result));
}

class HeaderList {
 public:
  explicit HeaderList(const std::vector<std::string>& headers) {
    for (const std::string& header : headers) append(header.c_str());
    append("Content-Type: application/json");
    append("Expect:");  // no 100-continue round trip before a large prompt
  }
  ~HeaderList() { curl_slist_free_all(list_); }
  HeaderList(const HeaderList&) = delete;
  curl_slist* get() const { return list_; }

 private:
  void append(const char* header) {
    curl_slist* longer = curl_slist_append(list_, header);
    if (longer == nullptr) throw Error("libcurl: out of memory");
    list_ = longer;
  }
  curl_slist* list_ = nullptr;
};

void apply_common(CURL* easy, const HttpSettings& settings, const HeaderList& headers) {
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(easy, CURLOPT_USERAGENT, "bam-bench");
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, 30L);
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  if (!settings.verify_tls) {
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L);
  }
  if (!settings.keep_alive) curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L);
}

struct Transfer {
  CURL* easy = nullptr;
  HttpRequest request;
  std::shared_ptr<HttpHandler> handler;
  TimePoint start;
  bool headers_seen = false;
  std::array<char, CURL_ERROR_SIZE> error{};

  ~Transfer() {
    if (easy != nullptr) curl_easy_cleanup(easy);
  }
  void announce_headers() {
    if (headers_seen) return;
    headers_seen = true;
    long status = 0;
    const char* type = nullptr;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(easy, CURLINFO_CONTENT_TYPE, &type);
    handler->on_headers(static_cast<int>(status), type == nullptr ? "" : type);
  }
};

size_t on_write(char* data, size_t size, size_t count, void* user) {
  const TimePoint now = Clock::now();
  auto* transfer = static_cast<Transfer*>(user);
  transfer->announce_headers();
  transfer->handler->on_data({data, size * count}, now);
  return size * count;
}

}  // namespace

struct HttpLoop::Impl {
  explicit Impl(HttpSettings s) : settings(std::move(s)), headers(settings.headers) {}

  HttpSettings settings;
  HeaderList headers;
  CURLM* multi = nullptr;
  int epoll_fd = -1;
  int timer_fd = -1;
  std::unordered_map<CURL*, std::unique_ptr<Transfer>> transfers;
  std::multimap<TimePoint, std::function<void()>> tasks;
  TimePoint curl_deadline = TimePoint::max();
  TimePoint last_wait_end{};
  double busy_ms = 0, total_ms = 0, max_stall_ms = 0;

  static int on_socket(CURL*, curl_socket_t fd, int what, void* user, void* known) {
    auto* impl = static_cast<Impl*>(user);
    if (what == CURL_POLL_REMOVE) {
      epoll_ctl(impl->epoll_fd, EPOLL_CTL_DEL, fd, nullptr);
      return 0;
    }
    epoll_event event{};
    event.data.fd = fd;
    if (what & CURL_POLL_IN) event.events |= EPOLLIN;
    if (what & CURL_POLL_OUT) event.events |= EPOLLOUT;
    if (known == nullptr || epoll_ctl(impl->epoll_fd, EPOLL_CTL_MOD, fd, &event) != 0) {
      if (epoll_ctl(impl->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0 && errno == EEXIST) {
        epoll_ctl(impl->epoll_fd, EPOLL_CTL_MOD, fd, &event);
      }
      curl_multi_assign(impl->multi, fd, impl);
    }
    return 0;
  }

  static int on_timer(CURLM*, long timeout_ms, void* user) {
    auto* impl = static_cast<Impl*>(user);
    impl->curl_deadline = timeout_ms < 0 ? TimePoint::max() : Clock::now() + std::chrono::milliseconds(timeout_ms);
    return 0;
  }

  void finish(CURL* easy, CURLcode code, const char* forced_error) {
    const auto found = transfers.find(easy);
    BAM_CHECK(found != transfers.end());
    const std::unique_ptr<Transfer> transfer = std::move(found->second);
    transfers.erase(found);
    HttpOutcome outcome;
    outcome.start = transfer->start;
    outcome.end = Clock::now();
    if (forced_error == nullptr && code == CURLE_OK) transfer->announce_headers();
    long status = 0;
    double connect_s = 0, tls_s = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(easy, CURLINFO_CONNECT_TIME, &connect_s);
    curl_easy_getinfo(easy, CURLINFO_APPCONNECT_TIME, &tls_s);
    outcome.status = static_cast<int>(status);
    outcome.connect_ms = std::max(connect_s, tls_s) * 1e3;
    if (forced_error != nullptr) {
      outcome.error = forced_error;
    } else if (code != CURLE_OK) {
      outcome.error = transfer->error[0] != 0 ? transfer->error.data() : curl_easy_strerror(code);
      outcome.timed_out = code == CURLE_OPERATION_TIMEDOUT;
      outcome.connect_failed = code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST;
    }
    curl_multi_remove_handle(multi, easy);
    transfer->handler->on_done(outcome);
  }

  void drain_messages() {
    int left = 0;
    while (CURLMsg* message = curl_multi_info_read(multi, &left)) {
      if (message->msg == CURLMSG_DONE) finish(message->easy_handle, message->data.result, nullptr);
    }
  }

  void run_due_tasks() {
    while (!tasks.empty() && tasks.begin()->first <= Clock::now()) {
      auto task = tasks.extract(tasks.begin());
      task.mapped()();
    }
  }

  // Nanosecond wake-ups: epoll's own timeout would delay a scheduled request by up to a millisecond.
  void arm_timer(TimePoint deadline) {
    itimerspec spec{};
    if (deadline != TimePoint::max()) {
      const auto wait = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
      const int64_t ns = std::max<int64_t>(wait.count(), 1);
      spec.it_value.tv_sec = ns / 1'000'000'000;
      spec.it_value.tv_nsec = ns % 1'000'000'000;
    }
    timerfd_settime(timer_fd, 0, &spec, nullptr);
  }

  void wait_and_dispatch() {
    TimePoint deadline = curl_deadline;
    if (!tasks.empty()) deadline = std::min(deadline, tasks.begin()->first);
    const bool due = deadline <= Clock::now();
    if (!due) arm_timer(deadline);
    note_busy();
    std::array<epoll_event, 256> events;
    const int count = epoll_wait(epoll_fd, events.data(), events.size(), due ? 0 : 1000);
    const TimePoint woke = Clock::now();
    total_ms += ms_between(last_wait_end, woke);
    last_wait_end = woke;
    int running = 0;
    for (const epoll_event& event : std::span(events).first(static_cast<size_t>(std::max(count, 0)))) {
      if (event.data.fd == timer_fd) {
        uint64_t expirations;
        [[maybe_unused]] const ssize_t n = read(timer_fd, &expirations, sizeof expirations);
        continue;
      }
      int mask = 0;
      if (event.events & EPOLLIN) mask |= CURL_CSELECT_IN;
      if (event.events & EPOLLOUT) mask |= CURL_CSELECT_OUT;
      if (event.events & (EPOLLERR | EPOLLHUP)) mask |= CURL_CSELECT_ERR;
      curl_multi_socket_action(multi, event.data.fd, mask, &running);
    }
    if (curl_deadline <= Clock::now()) {
      curl_deadline = TimePoint::max();
      curl_multi_socket_action(multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
  }

  void note_busy() {
    const double busy = ms_between(last_wait_end, Clock::now());
    busy_ms += busy;
    max_stall_ms = std::max(max_stall_ms, busy);
  }
};

HttpLoop::HttpLoop(HttpSettings settings) {
  curl_init_once();
  impl_ = std::make_unique<Impl>(std::move(settings));
  impl_->multi = curl_multi_init();
  impl_->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  impl_->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (impl_->multi == nullptr || impl_->epoll_fd < 0 || impl_->timer_fd < 0) {
    throw Error("cannot set up the network loop: {}", std::strerror(errno));
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = impl_->timer_fd;
  epoll_ctl(impl_->epoll_fd, EPOLL_CTL_ADD, impl_->timer_fd, &event);
  curl_multi_setopt(impl_->multi, CURLMOPT_SOCKETFUNCTION, &Impl::on_socket);
  curl_multi_setopt(impl_->multi, CURLMOPT_SOCKETDATA, impl_.get());
  curl_multi_setopt(impl_->multi, CURLMOPT_TIMERFUNCTION, &Impl::on_timer);
  curl_multi_setopt(impl_->multi, CURLMOPT_TIMERDATA, impl_.get());
  curl_multi_setopt(impl_->multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
  curl_multi_setopt(impl_->multi, CURLMOPT_MAXCONNECTS, 16384L);
}

HttpLoop::~HttpLoop() {
  for (auto& [easy, transfer] : impl_->transfers) curl_multi_remove_handle(impl_->multi, easy);
  impl_->transfers.clear();
  curl_multi_cleanup(impl_->multi);
  close(impl_->timer_fd);
  close(impl_->epoll_fd);
}

TimePoint HttpLoop::send(HttpRequest request, std::shared_ptr<HttpHandler> handler) {
  auto transfer = std::make_unique<Transfer>();
  transfer->request = std::move(request);
  transfer->handler = std::move(handler);
  CURL* easy = curl_easy_init();
  if (easy == nullptr) throw Error("libcurl: out of memory");
  transfer->easy = easy;
  apply_common(easy, impl_->settings, impl_->headers);
  const HttpRequest& sent = transfer->request;
  curl_easy_setopt(easy, CURLOPT_URL, sent.url.c_str());
  if (sent.method == "POST") {
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(sent.body.size()));
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, sent.body.data());
  }
  if (sent.timeout_s > 0) {
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(sent.timeout_s * 1e3) + 1);
  }
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer->error.data());
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &on_write);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, transfer.get());
  transfer->start = Clock::now();
  const TimePoint start = transfer->start;
  impl_->transfers.emplace(easy, std::move(transfer));
  const CURLMcode code = curl_multi_add_handle(impl_->multi, easy);
  if (code != CURLM_OK) throw Error("libcurl: {}", curl_multi_strerror(code));
  return start;
}

void HttpLoop::at(TimePoint when, std::function<void()> task) { impl_->tasks.emplace(when, std::move(task)); }

size_t HttpLoop::num_active() const { return impl_->transfers.size(); }

void HttpLoop::run(const std::function<bool()>& keep_going) {
  impl_->last_wait_end = Clock::now();
  while (true) {
    impl_->drain_messages();
    if (keep_going && !keep_going()) {
      impl_->tasks.clear();
      while (!impl_->transfers.empty()) {
        impl_->finish(impl_->transfers.begin()->first, CURLE_OK, "cancelled");
      }
      return;
    }
    impl_->run_due_tasks();
    if (impl_->transfers.empty() && impl_->tasks.empty()) return;
    impl_->wait_and_dispatch();
  }
}

HttpLoop::Health HttpLoop::health() const {
  Health health;
  health.max_stall_ms = impl_->max_stall_ms;
  if (impl_->total_ms > 0) health.busy_fraction = impl_->busy_ms / impl_->total_ms;
  return health;
}

struct HttpSession::Impl {
  explicit Impl(HttpSettings s) : settings(std::move(s)), headers(settings.headers) {
    easy = curl_easy_init();
    if (easy == nullptr) throw Error("libcurl: out of memory");
  }
  ~Impl() { curl_easy_cleanup(easy); }
  HttpSettings settings;
  HeaderList headers;
  CURL* easy = nullptr;
};

HttpSession::HttpSession(HttpSettings settings) {
  curl_init_once();
  impl_ = std::make_unique<Impl>(std::move(settings));
}

HttpSession::~HttpSession() = default;

HttpResponse HttpSession::perform(const std::string& url, const std::string* body, double timeout_s) {
  CURL* easy = impl_->easy;
  curl_easy_reset(easy);  // keeps the connection
  apply_common(easy, impl_->settings, impl_->headers);
  HttpResponse response;
  std::array<char, CURL_ERROR_SIZE> error{};
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error.data());
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(timeout_s * 1e3));
  if (body != nullptr) {
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body->size()));
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body->data());
  }
  using Append = size_t (*)(char*, size_t, size_t, void*);
  const Append append = [](char* data, size_t size, size_t count, void* user) {
    static_cast<std::string*>(user)->append(data, size * count);
    return size * count;
  };
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, append);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &response.body);
  const CURLcode code = curl_easy_perform(easy);
  if (code != CURLE_OK) {
    response.error = error[0] != 0 ? error.data() : curl_easy_strerror(code);
    return response;
  }
  long status = 0;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  response.status = static_cast<int>(status);
  return response;
}

HttpResponse HttpSession::get(const std::string& url, double timeout_s) { return perform(url, nullptr, timeout_s); }

HttpResponse HttpSession::post(const std::string& url, const std::string& json, double timeout_s) {
  return perform(url, &json, timeout_s);
}

int64_t raise_open_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int64_t>(limit.rlim_cur);
}

namespace {

volatile std::sig_atomic_t interrupt_flag = 0;
struct sigaction old_int, old_term;

void on_interrupt(int) { interrupt_flag = 1; }

}  // namespace

InterruptGuard::InterruptGuard(bool every_time) {
  interrupt_flag = 0;
  struct sigaction action {};
  action.sa_handler = &on_interrupt;
  // SA_RESTART: a write to the terminal goes on; epoll_wait wakes up all the same. The second signal has its usual effect.
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGTERM, &action, &old_term);
  if (every_time) action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &old_int);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &old_int, nullptr);
  sigaction(SIGTERM, &old_term, nullptr);
}

bool InterruptGuard::interrupted() { return interrupt_flag != 0; }

}  // namespace bam::client
