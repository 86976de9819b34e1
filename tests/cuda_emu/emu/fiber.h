// Stacks that threads of a block run on, and the switch between them. x86-64 saves the callee-saved registers by hand
// (a few ns); elsewhere ucontext does it with two system calls.
#pragma once

#include <cstddef>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace cuda_emu {

#ifdef __SANITIZE_ADDRESS__
inline constexpr size_t kFiberStackBytes = 256 * 1024;
#else
inline constexpr size_t kFiberStackBytes = 128 * 1024;
#endif

struct Context {
#ifdef __x86_64__
  void* stack_pointer = nullptr;
#else
  ucontext_t ucontext;
#endif
  // Sanitizer bookkeeping of the stack this context runs on.
  void* fake_stack = nullptr;
  const void* stack_bottom = nullptr;
  size_t stack_bytes = 0;
};

// `count` stacks with a guard page below each.
class StackPool {
 public:
  StackPool() = default;
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;
  void reserve(size_t count);
  std::byte* bottom(size_t index) const;

 private:
  std::byte* memory_ = nullptr;
  size_t count_ = 0;
};

// Makes `context` start in entry() at the next switch. entry must not return.
void prepare_context(Context& context, std::byte* stack_bottom, void (*entry)());
// The first thing entry() does.
void context_entered(Context& from);
// Goes on in `to`; returns when something switches back to `from`. `last`: `from` will never be resumed.
void switch_context(Context& from, Context& to, bool last = false);

}  // namespace cuda_emu
