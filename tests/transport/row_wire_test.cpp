// The real plugin for rows between GPUs, as far as a machine without one can use it; tests/cuda_emu/nccl_test.cpp has the rest.
#include "transport/row_wire.h"

#include <gtest/gtest.h>

#include <string>

#include "base/plugin.h"
#include "transport/group.h"

namespace bam {
namespace {

TEST(RowWire, ThePluginLoadsAndSaysWhatIsMissing) {
  std::unique_ptr<RowWireMaker> wires;
  try {
    wires = load_row_wires("nccl");
  } catch (const PluginMissing&) {
    GTEST_SKIP() << "no libbam_nccl.so here: NCCL or the headers of CUDA were not found";
  }
  EXPECT_TRUE(wires->description().starts_with("nccl 2.")) << wires->description();
  EXPECT_NE(wires->make_id(), wires->make_id());
  RowWireOptions options{.sends = true, .id = wires->make_id()};
  options.timeout = std::chrono::milliseconds(100);
  try {
    static_cast<void>(wires->make(options));
    FAIL() << "a wire to nobody";
  } catch (const Error& e) {
    const std::string said = e.what();
    EXPECT_TRUE(said.starts_with("CUDA: ") || said.ends_with("the other end did not come")) << said;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  }
}

TEST(RowWire, UnknownWordsAreRefused) {
  GroupOptions options;
  options.transport = "smoke";
  EXPECT_THROW(make_group_source(options), UsageError);
  EXPECT_THROW(load_row_wires("smoke"), PluginMissing);
}

}  // namespace
}  // namespace bam
