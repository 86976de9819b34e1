#include "tests/cuda_emu/emu/stream.h"

#include <algorithm>
#include <map>
#include <thread>

#include "tests/cuda_emu/emu/config.h"
#include "tests/cuda_emu/emu/device_memory.h"
#include "tests/cuda_emu/emu/fault.h"
#include "tests/cuda_emu/emu/random.h"
#include "tests/cuda_emu/emu/runtime.h"

namespace cuda_emu {

namespace {

struct Streams {
  std::map<int, CUstream_st> legacy;  // by device
  std::vector<std::unique_ptr<CUstream_st>> created;
  std::vector<std::weak_ptr<Capture>> captures;
  Random random{1};
  int device_sections = 0;
};

Streams& streams() {
  static Streams all;
  return all;
}

CUstream_st& legacy_of(int device) {
  CUstream_st& stream = streams().legacy[device];
  stream.device = device;
  return stream;
}

void drop_everything() {
  for (auto& [device, stream] : streams().legacy) stream.queue.clear();
  for (auto& stream : streams().created) stream->queue.clear();
}

void run_one(CUstream_st* stream) {
  Work work = std::move(stream->queue.front());
  stream->queue.pop_front();
  if (work.kind == WorkKind::kRecord) {
    work.mark->done = true;
    work.mark->time = std::chrono::steady_clock::now();
  } else if (work.kind == WorkKind::kWait) {
    if (!work.mark->done) finish_until(*work.mark);
  } else {
    try {
      work.run();
    } catch (...) {
      drop_everything();
      throw;
    }
  }
}

// The head of a stream waits for another device, which another thread works with.
bool is_held_up(const CUstream_st* stream) {
  const Work& head = stream->queue.front();
  return head.ready && !head.ready();
}

// Of streams that were created; the legacy ones are for ever, and nothing is held up there.
bool lives(const CUstream_st* stream) {
  return std::ranges::any_of(streams().created, [&](const auto& one) { return one.get() == stream; });
}

// Only where a call of the API has the lock once.
void let_others_go_on() {
  api_mutex().unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(100));
  api_mutex().lock();
}

}  // namespace

DeviceSection::DeviceSection() {
  if (streams().device_sections++ == 0) device_memory().set_accessible(true);
}

DeviceSection::~DeviceSection() {
  if (--streams().device_sections == 0) device_memory().set_accessible(!config().protect_device_memory);
}

std::recursive_mutex& api_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

CUstream_st* resolve(cudaStream_t stream) {
  if (stream == nullptr) return &legacy_of(current_device());
  for (const auto& one : streams().created) {
    if (one.get() == stream) return stream;
  }
  return nullptr;
}

CUstream_st* create_stream(bool non_blocking) {
  streams().created.push_back(std::make_unique<CUstream_st>());
  streams().created.back()->non_blocking = non_blocking;
  streams().created.back()->device = current_device();
  return streams().created.back().get();
}

void destroy_stream(CUstream_st* stream) {
  finish(stream);
  std::erase_if(streams().created, [&](const auto& one) { return one.get() == stream; });
}

void enqueue(CUstream_st* stream, Work work) {
  if (stream->capture) {
    if (work.kind != WorkKind::kRecord && work.kind != WorkKind::kWait) {
      if (stream != stream->capture->origin) stream->capture->unjoined.insert(stream);
      stream->capture->nodes.push_back(std::move(work));
    }
    return;
  }
  // The legacy stream waits for blocking ones and they for it.
  if (stream == &legacy_of(stream->device)) {
    finish_blocking_streams();
  } else if (!stream->non_blocking) {
    finish(&legacy_of(stream->device));
  }
  stream->queue.push_back(std::move(work));
  if (config().streams == StreamMode::kEager) {
    while (advance(stream)) {
    }
  } else if (config().streams == StreamMode::kRandom) {
    Random& random = streams().random;
    auto& created = streams().created;
    if (!created.empty() && random.below(2) == 0) {
      CUstream_st* lucky = created[random.below(created.size())].get();
      for (uint64_t steps = random.below(4); steps > 0; --steps) advance(lucky);
    }
  }
}

void finish(CUstream_st* stream) {
  if (stream->queue.empty()) return;
  const DeviceSection section;
  while (!stream->queue.empty()) {
    if (is_held_up(stream)) {
      let_others_go_on();
      if (!lives(stream)) return;
    } else {
      run_one(stream);
    }
  }
}

void finish_until(Mark& mark) {
  const DeviceSection section;
  while (!mark.done) {
    if (mark.stream->queue.empty()) throw Fault("an event that can never be reached");
    if (is_held_up(mark.stream)) {
      let_others_go_on();
    } else {
      run_one(mark.stream);
    }
  }
}

bool advance(CUstream_st* stream) {
  if (stream->queue.empty() || is_held_up(stream)) return false;
  const DeviceSection section;
  run_one(stream);
  return true;
}

void finish_blocking_streams() {
  finish(&legacy_of(current_device()));
  for (auto& stream : streams().created) {
    if (!stream->non_blocking && stream->device == current_device()) finish(stream.get());
  }
}

void finish_all_streams() { finish_device(current_device()); }

void finish_device(int device) {
  finish(&legacy_of(device));
  std::vector<CUstream_st*> all;  // while one waits, others may come and go
  for (auto& stream : streams().created) {
    if (stream->device == device) all.push_back(stream.get());
  }
  for (CUstream_st* stream : all) {
    if (!lives(stream)) continue;
    if (device == current_device()) {
      finish(stream);
    } else {  // that of another rank, which would be another process: not to be waited for when it waits for rows
      while (advance(stream)) {
      }
    }
  }
}

bool strict_capture_active() {
  auto& captures = streams().captures;
  std::erase_if(captures, [](const auto& capture) { return capture.expired(); });
  return std::any_of(captures.begin(), captures.end(), [](const auto& capture) {
    const auto alive = capture.lock();
    return alive && alive->active && alive->mode != cudaStreamCaptureModeRelaxed;
  });
}

void begin_capture(CUstream_st* stream, cudaStreamCaptureMode mode) {
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->mode = mode;
  stream->capture->members.insert(stream);
  streams().captures.push_back(stream->capture);
}

}  // namespace cuda_emu
