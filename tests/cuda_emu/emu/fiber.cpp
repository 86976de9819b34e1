#include "tests/cuda_emu/emu/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_emu {

namespace {

constexpr size_t kGuardBytes = 4096;
constexpr size_t kSlotBytes = kFiberStackBytes + kGuardBytes;

// Gives the stacks back. What is mapped at these addresses next must not inherit red zones of frames that never
// returned.
void unmap_stacks(std::byte* memory, size_t bytes) {
  if (memory == nullptr) return;
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(memory, bytes);
#endif
  munmap(memory, bytes);
}

}  // namespace

StackPool::~StackPool() { unmap_stacks(memory_, count_ * kSlotBytes); }

void StackPool::reserve(size_t count) {
  if (count <= count_) return;
  unmap_stacks(memory_, count_ * kSlotBytes);
  memory_ = nullptr;
  count_ = 0;
  void* memory = mmap(nullptr, count * kSlotBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<std::byte*>(memory);
  count_ = count;
  for (size_t i = 0; i < count; ++i) mprotect(memory_ + i * kSlotBytes, kGuardBytes, PROT_NONE);
}

std::byte* StackPool::bottom(size_t index) const { return memory_ + index * kSlotBytes + kGuardBytes; }

#ifdef __x86_64__

extern "C" void cuda_emu_switch(void** save_stack_pointer, void* load_stack_pointer);
asm(R"(
.text
.local cuda_emu_switch
.type cuda_emu_switch, @function
cuda_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_emu_switch, .-cuda_emu_switch
)");

#endif

void prepare_context(Context& context, std::byte* stack_bottom, void (*entry)()) {
#ifdef __SANITIZE_ADDRESS__
  // A thread that ended in the middle of a frame left its red zones behind.
  __asan_unpoison_memory_region(stack_bottom, kFiberStackBytes);
#endif
  context.fake_stack = nullptr;
  context.stack_bottom = stack_bottom;
  context.stack_bytes = kFiberStackBytes;
#ifdef __x86_64__
  auto* top = reinterpret_cast<uint64_t*>(stack_bottom + kFiberStackBytes);
  *--top = 0;  // entry() has no caller; also leaves the stack aligned as after a call
  *--top = reinterpret_cast<uint64_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;
  context.stack_pointer = top;
#else
  getcontext(&context.ucontext);
  context.ucontext.uc_stack = {.ss_sp = stack_bottom, .ss_flags = 0, .ss_size = kFiberStackBytes};
  context.ucontext.uc_link = nullptr;
  makecontext(&context.ucontext, entry, 0);
#endif
}

void context_entered([[maybe_unused]] Context& from) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &from.stack_bottom, &from.stack_bytes);
#endif
}

void switch_context(Context& from, Context& to, [[maybe_unused]] bool last) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.stack_bottom, to.stack_bytes);
#endif
#ifdef __x86_64__
  cuda_emu_switch(&from.stack_pointer, to.stack_pointer);
#else
  swapcontext(&from.ucontext, &to.ucontext);
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

}  // namespace cuda_emu
