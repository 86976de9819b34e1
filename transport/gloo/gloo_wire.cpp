// Bytes between ranks over TCP by Gloo: it tells of a dead peer at once and of a silent one after a deadline.
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <thread>

#include "base/error.h"
#include "transport/wire_plugin.h"

namespace bam {

namespace {

using std::chrono::milliseconds;
constexpr milliseconds kPoll{5};
constexpr uint64_t kSlot = 0;

// Gloo's messages begin with the place in its sources.
std::string reason_of(const std::exception& e) {
  const std::string text = e.what();
  const size_t end = text.find("] ");
  return text.starts_with("[") && end != std::string::npos ? text.substr(end + 2) : text;
}

class Store : public gloo::rendezvous::Store {
 public:
  Store(KeyValueStore& store, milliseconds timeout) : store_(store), timeout_(timeout) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.put(key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    wait({key});  // Gloo asks for what another rank is about to write
    const std::string value = store_.get(key).value();
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    const auto end = std::chrono::steady_clock::now() + timeout;
    for (const std::string& key : keys) {
      while (!store_.get(key)) {
        if (std::chrono::steady_clock::now() > end) throw Error("{} did not come", key);
        std::this_thread::sleep_for(kPoll);
      }
    }
  }

 private:
  KeyValueStore& store_;
  milliseconds timeout_;
};

class GlooWire : public Wire {
 public:
  explicit GlooWire(const WireOptions& options)
      : patience_(options.patience), context_(std::make_shared<gloo::rendezvous::Context>(options.rank, options.size)) {
    signal(SIGPIPE, SIG_IGN);  // Gloo writes to sockets whose other end may be gone: that is an error, not the end
    gloo::transport::tcp::attr attr;
    attr.hostname = options.address;
    if (attr.hostname.empty()) {
      char name[256] = "";
      gethostname(name, sizeof name - 1);
      attr.hostname = name;
    }
    context_->setTimeout(options.join_timeout);
    Store store(*options.store, options.join_timeout);
    try {
      std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attr);
      context_->connectFullMesh(store, device);
    } catch (const std::exception& e) {
      throw Error("{}", reason_of(e));
    }
    context_->setTimeout(patience_);
  }

  ~GlooWire() override { close(); }

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }
  std::string description() const override { return "gloo over tcp"; }

  void send(int to, std::span<const std::byte> data) override {
    const Waiting buffer(*this, const_cast<std::byte*>(data.data()), data.size());
    try {
      buffer->send(to, kSlot);
      if (buffer->waitSend(patience_)) return;
    } catch (const std::exception& e) {
      throw Error("{}", reason_of(e));
    }
    throw Error("the connection was closed");
  }

  void receive(int from, std::span<std::byte> data) override {
    const Waiting buffer(*this, data.data(), data.size());
    try {
      buffer->recv(from, kSlot);
      if (buffer->waitRecv(patience_)) return;
    } catch (const std::exception& e) {
      throw Error("{}", reason_of(e));
    }
    throw Error("the connection was closed");
  }

  void close() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      closed_ = true;
      for (gloo::transport::UnboundBuffer* buffer : waiting_) {
        buffer->abortWaitRecv();
        buffer->abortWaitSend();
      }
    }
    try {
      context_->closeConnections();
    } catch (const std::exception&) {
    }
  }

 private:
  // A buffer that close() can wake.
  class Waiting {
   public:
    Waiting(GlooWire& wire, void* data, size_t bytes)
        : wire_(wire), buffer_(wire.context_->createUnboundBuffer(data, bytes)) {
      const std::lock_guard lock(wire_.mutex_);
      if (wire_.closed_) throw Error("the connection was closed");
      wire_.waiting_.insert(buffer_.get());
    }
    ~Waiting() {
      const std::lock_guard lock(wire_.mutex_);
      wire_.waiting_.erase(buffer_.get());
    }
    gloo::transport::UnboundBuffer* operator->() const { return buffer_.get(); }

   private:
    GlooWire& wire_;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
  };

  milliseconds patience_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::mutex mutex_;
  std::set<gloo::transport::UnboundBuffer*> waiting_;
  bool closed_ = false;
};

}  // namespace
}  // namespace bam

BAM_WIRE_PLUGIN(bam::GlooWire)
