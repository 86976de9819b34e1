// Preloaded into a server: makes the system refuse memory, threads and ports, and its disk hang, when a test says so. BAM_FAULTS
// names a file of 64-bit numbers that the test reads and writes while the server runs (tests/attack/attack.py).
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

struct Faults {
  std::atomic<uint64_t> every;     // one of so many allocations fails; 0: none
  std::atomic<uint64_t> smallest;  // of at least so many bytes
  std::atomic<uint64_t> failed;    // so many have
  std::atomic<uint64_t> thread;    // this thread is refused, the first is 1, and all that follow; 0: none
  std::atomic<uint64_t> threads;   // so many were asked for
  std::atomic<uint64_t> hang;      // not 0: whoever opens a snapshot or waits for the disk waits until it is 0 again
  std::atomic<uint64_t> hung;      // so many have waited
  std::atomic<uint64_t> binds;     // after so many others have taken the port; 0: nobody does
  std::atomic<uint64_t> bound;     // so many times an address was bound
};

Faults* faults() {
  static Faults* const shared = []() -> Faults* {
    const char* path = std::getenv("BAM_FAULTS");
    const int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return nullptr;
    void* address = mmap(nullptr, sizeof(Faults), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return address == MAP_FAILED ? nullptr : static_cast<Faults*>(address);
  }();
  return shared;
}

bool fails(size_t size) {
  Faults* const shared = faults();
  if (!shared || shared->every == 0 || size < shared->smallest) return false;
  static std::atomic<uint64_t> count{0};
  uint64_t mixed = (count.fetch_add(1) + 1) * 0x9e3779b97f4a7c15;  // not in step with what the program repeats
  mixed = (mixed ^ (mixed >> 31)) * 0xbf58476d1ce4e5b9;
  if ((mixed >> 20) % shared->every != 0) return false;
  shared->failed.fetch_add(1);
  return true;
}

void wait_for_disk() {
  Faults* const shared = faults();
  if (!shared || shared->hang == 0) return;
  shared->hung.fetch_add(1);
  while (shared->hang != 0) usleep(1000);
}

void* allocate(size_t size, size_t alignment) {
  if (fails(size)) return nullptr;
  void* memory = nullptr;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(size == 0 ? 1 : size);
  return posix_memalign(&memory, alignment, size) == 0 ? memory : nullptr;
}

void* allocate_or_throw(size_t size, size_t alignment) {
  if (void* memory = allocate(size, alignment)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t size) { return allocate_or_throw(size, 1); }
void* operator new[](size_t size) { return allocate_or_throw(size, 1); }
void* operator new(size_t size, std::align_val_t alignment) { return allocate_or_throw(size, size_t(alignment)); }
void* operator new[](size_t size, std::align_val_t alignment) { return allocate_or_throw(size, size_t(alignment)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*),
                              void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (Faults* const shared = faults()) {
    const uint64_t number = shared->threads.fetch_add(1) + 1;
    if (shared->thread != 0 && number >= shared->thread) return EAGAIN;
  }
  return create(thread, attributes, work, argument);
}

extern "C" int bind(int fd, const sockaddr* address, socklen_t size) {
  using Bind = int (*)(int, const sockaddr*, socklen_t);
  static const auto bind_socket = reinterpret_cast<Bind>(dlsym(RTLD_NEXT, "bind"));
  Faults* const shared = faults();
  if (shared && shared->bound.fetch_add(1) >= shared->binds && shared->binds != 0) {
    errno = EADDRINUSE;
    return -1;
  }
  return bind_socket(fd, address, size);
}

extern "C" int fsync(int fd) {
  static const auto sync = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fsync"));
  wait_for_disk();
  return sync(fd);
}

extern "C" int open(const char* path, int flags, ...) {
  using Open = int (*)(const char*, int, ...);
  static const auto open_file = reinterpret_cast<Open>(dlsym(RTLD_NEXT, "open"));
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  if (std::strstr(path, ".bamkv") != nullptr) wait_for_disk();
  return open_file(path, flags, mode);
}
