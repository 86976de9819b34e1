// Small kernels written by hand, and the fault that something runs into.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/cuda_emu/emu/fault.h"
#include "tests/cuda_emu/emu_test_support.h"
#include "tests/ptx/machine.h"

namespace ptx_test {

// A kernel k(out) of `body`, with registers %p, %h (16 bits), %r, %f, %d (64 bits) and %e (float64). At its begin, %r0 is
// the thread, %d0 `out` and %d1 the address of the thread's own 32-bit element of it.
inline std::string kernel(const std::string& body, const std::string& variables = "") {
  return ".version 8.7\n.target sm_80\n.address_size 64\n" + variables +
         ".visible .entry k(.param .u64 k_out)\n{\n"
         ".reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .f32 %f<16>; .reg .b64 %d<16>; .reg .f64 %e<8>;\n"
         "ld.param.u64 %d0, [k_out]; mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 4; add.s64 %d1, %d0, %d1;\n" +
         body + "\nret;\n}\n";
}

struct Options {
  uint32_t threads = 32, blocks = 1;
  uint64_t dynamic_shared = 0, seed = 0;
  size_t elements = 0;  // of out; 0: one per thread
  std::string variables;
};

// What the kernel leaves in `out`, which starts as zeros.
inline std::vector<uint32_t> run(const std::string& body, const Options& options = {},
                                 std::vector<ptx::Traffic>* traffic = nullptr) {
  const size_t elements = options.elements > 0 ? options.elements : options.threads;
  const cuda_emu_test::DeviceArray<uint32_t> out(std::vector<uint32_t>(elements, 0));
  ptx::Module module(kernel(body, options.variables));
  const ptx::Function& function = module.function("k");
  const uint64_t pointer = reinterpret_cast<uint64_t>(out.data());
  ptx::Launch launch;
  launch.shape = {{options.blocks, 1, 1}, {options.threads, 1, 1}};
  launch.dynamic_shared = options.dynamic_shared;
  launch.params = {reinterpret_cast<const uint8_t*>(&pointer), sizeof pointer};
  launch.seed = options.seed;
  ptx::Machine machine;
  machine.run(module, function, launch);
  if (traffic != nullptr) *traffic = function.traffic;
  return out.read();
}

// The message of the fault that `body` runs into, or "" if it does not.
inline std::string fault_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const cuda_emu::Fault& fault) {
    return fault.what();
  }
  return "";
}

inline ::testing::AssertionResult mentions(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << '"' << text << "\" says nothing of \"" << part << '"';
}

}  // namespace ptx_test
