#include "engine/device_rows.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/check.h"
#include "base/describe.h"
#include "engine/clock.h"
#include "engine/step_wire.h"

namespace bam {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kWatch{20};  // how often it is looked whether the group is lost while rows are on their way
constexpr milliseconds kConnectTimeout{60'000};

// Polling that is quick at first: rows come within microseconds of their message.
class Pause {
 public:
  void operator()() {
    if (++turns_ < 100) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(turns_ < 1000 ? 20 : 200));
  }

 private:
  int turns_ = 0;
};

}  // namespace

std::string describe_row_wires(const RowWireMaker* wires, const Backend& backend) {
  if (wires == nullptr) return "messages";
  if (backend.gpu() < 0) {
    throw UsageError("rows by {} go from GPU to GPU: it needs --device cuda, this is {}", wires->description(),
                     backend.description());
  }
  return wires->description();
}

template <typename F>
void DeviceRows::on_wire(F work) {
  try {
    work();
  } catch (const PeerLost&) {
    throw;
  } catch (const std::exception& e) {
    transport_.abort(describe(e));  // unless that is why it failed
    transport_.check();
    throw;
  }
}

DeviceRows::DeviceRows(Backend& backend, const RowWireMaker& wires, Transport& transport, uint64_t epoch)
    : backend_(backend), transport_(transport) {
  on_wire([&] {
    if (transport.rank() > 0) connect(in_, false, wires, epoch);
    if (transport.rank() + 1 < transport.size()) connect(out_, true, wires, epoch);
    in_.slots.resize(1);
    out_.slots.resize(static_cast<size_t>(2 * transport.size()));  // as many as steps are on their way
    watcher_ = std::thread([this] { watch(); });
  });
}

DeviceRows::~DeviceRows() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stopped_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

// The end that sends makes the wire's id and tells it.
void DeviceRows::connect(Side& side, bool sends, const RowWireMaker& wires, uint64_t epoch) {
  RowWireOptions options{.device = backend_.gpu(), .sends = sends, .timeout = kConnectTimeout};
  options.watch = [this] { transport_.check(); };
  std::vector<std::byte> message;
  if (sends) {
    options.id = wires.make_id();
    wire::Writer writer(message, {wire::Kind::kRowWire, epoch, 0});
    writer.array(std::span<const char>(options.id));
    transport_.send_swap(transport_.rank() + 1, Channel::kActivations, message);
  } else {
    if (!transport_.receive(transport_.rank() - 1, Channel::kActivations, message, kConnectTimeout)) {
      throw Error("the stage before says nothing of its rows");
    }
    wire::Reader reader(message);
    std::vector<char> id;
    reader.array(id, options.id.size());
    reader.end();
    if (reader.head().kind != wire::Kind::kRowWire || reader.head().epoch != epoch || id.size() != options.id.size()) {
      throw wire::WireError("the stage before does not say where its rows come from");
    }
    std::ranges::copy(id, options.id.begin());
  }
  side.wire = wires.make(options);
}

float* DeviceRows::slot(Side& side, size_t floats) {
  std::unique_ptr<DeviceBuffer>& memory = side.slots[side.issued % side.slots.size()];
  if (!memory || memory->size_bytes() < floats * sizeof(float)) {
    memory.reset();
    memory = backend_.allocate(floats * sizeof(float));
  }
  return static_cast<float*>(memory->data());
}

void DeviceRows::await(Side& side, uint64_t left) {
  Pause pause;
  while (side.issued - side.wire->done() > left) pause();
}

float* DeviceRows::outgoing(size_t floats) {
  on_wire([&] { await(out_, out_.slots.size() - 1); });
  return slot(out_, floats);
}

void DeviceRows::send(size_t floats) {
  on_wire([&] { out_.wire->send(slot(out_, floats), floats * sizeof(float)); });
  ++out_.issued;
}

const float* DeviceRows::receive(size_t floats) {
  float* const rows = slot(in_, floats);
  on_wire([&] {
    in_.wire->receive(rows, floats * sizeof(float));
    ++in_.issued;
    await(in_, 0);
  });
  return rows;
}

// A thread that computes may be stuck in a call of the device that waits for rows: another one must end them.
void DeviceRows::watch() {
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, kWatch, [&] { return stopping_; })) {
    try {
      on_wire([&] {
        transport_.check();
        for (Side* side : {&in_, &out_}) {
          if (side->wire) static_cast<void>(side->wire->done());
        }
      });
    } catch (const std::exception&) {
      for (Side* side : {&in_, &out_}) {
        if (side->wire) side->wire->abort();
      }
      return;
    }
  }
}

}  // namespace bam
