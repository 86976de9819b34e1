// The tests of tests/cuda_emu that run kernels of the backend, on PTX instead of the sources: BAM_PTX names the folder.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <memory>

#include "tests/cuda_emu/emu/config.h"
#include "tests/ptx/device.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  const char* folder = std::getenv("BAM_PTX");
  if (folder == nullptr) {
    std::cerr << "BAM_PTX must name a folder of PTX files\n";
    return 2;
  }
  ptx::Device device(folder);
  cuda_emu::config().compute_capability = device.architecture();
  device.install();
  const int status = RUN_ALL_TESTS();
  std::cout << device.launches() << " launches of sm_" << device.architecture() << " PTX\n";
  return status;
}
