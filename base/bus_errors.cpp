#include "base/bus_errors.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>

namespace bam {
namespace {

// What the signal handler may read: mappings in slots that are taken and given back without a lock.
struct Mapping {
  std::atomic<uintptr_t> begin{0};  // 0: the slot is free or being filled
  std::atomic<size_t> size{0};
  std::atomic<bool> taken{false};
  char path[1024] = {};
};
std::array<Mapping, 256> g_mappings;  // of more files at a time the line does not know the name

void put(const char* text) { [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text, std::strlen(text)); }

void on_bus_error(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const char* path = "a mapped file";
  for (const Mapping& mapping : g_mappings) {
    const uintptr_t begin = mapping.begin;
    if (begin != 0 && address >= begin && address - begin < mapping.size) path = mapping.path;
  }
  put("bam: ");
  put(path);
  put(": cannot be read any more: it was cut short while it was being read, or its disk failed\n");
  ::_exit(1);
}

}  // namespace

void remember_mapping(const void* address, size_t size, const std::string& path) {
  for (Mapping& mapping : g_mappings) {
    if (mapping.taken.exchange(true)) continue;
    mapping.path[path.copy(mapping.path, sizeof mapping.path - 1)] = '\0';
    mapping.size = size;
    mapping.begin = reinterpret_cast<uintptr_t>(address);
    return;
  }
}

void forget_mapping(const void* address) {
  for (Mapping& mapping : g_mappings) {
    if (mapping.begin != reinterpret_cast<uintptr_t>(address)) continue;
    mapping.begin = 0;
    mapping.taken = false;
    return;
  }
}

void report_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace bam
