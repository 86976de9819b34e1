// Rows between devices by NCCL: the wire alone, and the pipeline on several emulated devices of one process.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/cuda_emu/backend_test_support.h"
#include "tests/cuda_emu/emu/fault.h"
#include "tests/engine/pipeline_fixture.h"
#include "transport/nccl/nccl_wire.h"

namespace bam {
namespace {

using cuda_emu_test::DeviceArray;
using testing::expect_conserved;
using testing::expect_same;
using testing::make_request;
using testing::Outcome;
using testing::Pipeline;
using testing::random_prompt;
using testing::run_all;
using testing::small_config;
using testing::Tap;
using testing::Worker;

constexpr int kDevices = 3;

class Devices {
 public:
  explicit Devices(uint64_t break_at_transfer = 0) : scope_(with(break_at_transfer)) {}

 private:
  static cuda_emu::Config with(uint64_t break_at_transfer) {
    cuda_emu::Config next = cuda_emu::config();
    next.device_count = kDevices;
    next.break_at_transfer = break_at_transfer == 0 ? 0 : cuda_emu::statistics().transfers + break_at_transfer;
    return next;
  }
  cuda_emu::ScopedConfig scope_;
};

void use_device(int device) { cuda_emu_test::check(cudaSetDevice(device)); }

// Both ends, made by two threads as two ranks do.
struct Ends {
  std::unique_ptr<RowWire> sender, receiver;
};
Ends connect() {
  const auto maker = make_nccl_wires();
  const RowWireId id = maker->make_id();
  auto other = std::async(std::launch::async, [&] { return maker->make({.device = 1, .sends = false, .id = id}); });
  Ends ends{maker->make({.device = 0, .sends = true, .id = id}), nullptr};
  ends.receiver = other.get();
  return ends;
}

void wait_for(RowWire& wire, uint64_t transfers) {
  while (wire.done() < transfers) std::this_thread::yield();
}

std::vector<float> numbers(size_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST(NcclWire, BytesArriveInOrder) {
  const Devices devices;
  {
    Ends ends = connect();
    EXPECT_EQ(cuda_emu::statistics().communicators, 2u);
    use_device(0);
    const DeviceArray<float> first(numbers(1000, 1)), second(numbers(10, -7));
    use_device(1);
    const DeviceArray<float> first_there(1000), second_there(10);
    auto sending = std::async(std::launch::async, [&] {
      ends.sender->send(first.data(), 4000);
      ends.sender->send(second.data(), 40);
      wait_for(*ends.sender, 2);
    });
    ends.receiver->receive(first_there.data(), 4000);
    wait_for(*ends.receiver, 1);
    EXPECT_EQ(first_there.read(), numbers(1000, 1));
    ends.receiver->receive(second_there.data(), 40);
    wait_for(*ends.receiver, 2);
    EXPECT_EQ(second_there.read(), numbers(10, -7));
    sending.get();
  }
  use_device(0);
  EXPECT_EQ(cuda_emu::statistics().communicators, 0u);
}

TEST(NcclWire, NobodyComes) {
  const Devices devices;
  const auto maker = make_nccl_wires();
  EXPECT_EQ(maker->description(), "nccl 2.28.9");
  RowWireOptions options{.sends = true, .id = maker->make_id()};
  options.timeout = std::chrono::milliseconds(5);
  EXPECT_THROW(static_cast<void>(maker->make(options)), Error);
  options.id = maker->make_id();
  options.timeout = std::chrono::minutes(5);
  options.watch = [looks = 0]() mutable {
    if (++looks == 3) throw PeerLost(1, "the test says so");
  };
  EXPECT_THROW(static_cast<void>(maker->make(options)), PeerLost);
  EXPECT_EQ(cuda_emu::statistics().communicators, 0u);
}

// A call of the device that waits for everything on it waits for rows that nobody takes, until they are given up.
TEST(NcclWire, GivingUpEndsWhatWaits) {
  const Devices devices;
  Ends ends = connect();
  use_device(0);
  const DeviceArray<float> rows(numbers(8, 0));
  use_device(1);
  const DeviceArray<float> rows_there(8);
  auto sending = std::async(std::launch::async, [&] {
    ends.sender->send(rows.data(), 32);
    ends.sender->send(rows.data(), 32);  // for ever on its way
    use_device(0);
    void* other = nullptr;
    cuda_emu_test::check(cudaMalloc(&other, 64));
    cuda_emu_test::check(cudaFree(other));
  });
  ends.receiver->receive(rows_there.data(), 32);
  wait_for(*ends.receiver, 1);
  EXPECT_EQ(sending.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  ends.sender->abort();
  sending.get();
  EXPECT_THROW(static_cast<void>(ends.sender->done()), Error);
  EXPECT_THROW(ends.sender->send(rows.data(), 32), Error);
}

TEST(NcclWire, ItsOwnFailureIsSeen) {
  const Devices devices(3);
  Ends ends = connect();
  use_device(0);
  const DeviceArray<float> rows(numbers(8, 0));
  use_device(1);
  const DeviceArray<float> rows_there(8);
  auto sending = std::async(std::launch::async, [&] { ends.sender->send(rows.data(), 32); });
  ends.receiver->receive(rows_there.data(), 32);
  sending.get();
  const auto use = [&] {
    ends.receiver->receive(rows_there.data(), 32);
    wait_for(*ends.receiver, 2);
  };
  EXPECT_THROW(use(), Error);
  ends.sender->abort();  // before memory goes: that waits for the streams
  ends.receiver->abort();
  use_device(0);
}

// --- the pipeline ---

// Emulated kernels are slow: little of everything that a step may hold.
std::vector<Request> few_requests() {
  std::mt19937 rng(31);
  std::vector<Request> all;
  const auto add = [&](int64_t prompt, auto change) {
    Request request = make_request("r" + std::to_string(all.size()), random_prompt(rng, prompt), 3);
    request.sampling.seed = 100 + all.size();
    request.sampling.temperature = 0.9f;
    change(request);
    all.push_back(std::move(request));
  };
  add(70, [](Request& r) { r.sampling.num_logprobs = 3; });
  add(5, [](Request& r) { r.n = 2; });
  add(8, [](Request& r) { r.sampling.num_prompt_logprobs = 1; });
  add(6, [](Request& r) { r.sampling.top_k = 20, r.sampling.repetition_penalty = 1.3f; });
  return all;
}
constexpr uint64_t kPromptRows = 70 + 5 + 8 + 6;

std::unique_ptr<GroupSource> by_nccl(std::unique_ptr<GroupSource> source) {
  return with_row_wires(std::move(source), make_nccl_wires());
}

class NcclPipeline : public testing::PipelineSuite {
 protected:
  // A layer per device.
  static const std::filesystem::path& checkpoint() {
    static const testing::TempDir dir;
    static const bool written = (write_checkpoint(testing::layered_spec(kDevices), dir.path()), true);
    (void)written;
    return dir.path();
  }
  static Pipeline::Devices emulated() {
    return
        [](int rank) { return std::make_unique<cuda::CudaBackend>(BackendOptions{.device = rank, .operands = "f32"}); };
  }
  static std::unique_ptr<Pipeline> make(int stages, Tap& tap, EngineConfig config = small_config(8 << 20)) {
    const auto wrap = [&tap](std::unique_ptr<GroupSource> source) {
      return std::make_unique<testing::TappedSource>(by_nccl(std::move(source)), tap);
    };
    return std::make_unique<Pipeline>(checkpoint(), config, stages, steady_time(), wrap, 1, emulated());
  }
  static const std::vector<Request>& asked() {
    static const std::vector<Request> asked = few_requests();
    return asked;
  }
  // One device, no pipeline.
  static const std::vector<Outcome>& expected() {
    static const std::vector<Outcome> expected = [] {
      Pipeline one(checkpoint(), small_config(8 << 20), 1, steady_time(), {}, 1, emulated());
      return run_all(one.engine(), asked());
    }();
    return expected;
  }
  Devices devices_;
};

TEST_F(NcclPipeline, RowsGoFromDeviceToDeviceWithTheSameBits) {
  for (const int stages : {2, 3}) {
    SCOPED_TRACE(std::to_string(stages) + " stages");
    const auto& wanted = expected();
    Tap tap;
    auto pipeline = make(stages, tap);
    const uint64_t before = cuda_emu::statistics().transferred_bytes;
    expect_all(wanted, run_all(pipeline->engine(), asked(), 3), asked());
    const uint64_t bytes = cuda_emu::statistics().transferred_bytes - before;
    const auto row = static_cast<uint64_t>(pipeline->engine().model_config().hidden_size) * 4;
    EXPECT_GE(bytes, kPromptRows * row * static_cast<uint64_t>(stages - 1)) << "every prompt over every boundary";
    EXPECT_EQ(bytes % row, 0u);
    EXPECT_LT(tap.sent(Channel::kActivations), static_cast<int64_t>(bytes) / 4) << "messages without payload";
    expect_conserved(pipeline->engine());
    EXPECT_EQ(cuda_emu::statistics().communicators, 2u * static_cast<unsigned>(stages - 1));
    for (const std::string& error : pipeline->shut_down()) EXPECT_EQ(error, "");
    pipeline.reset();
    EXPECT_EQ(cuda_emu::statistics().communicators, 0u);
  }
}

TEST_F(NcclPipeline, AttentionOfEveryLayer) {
  std::mt19937 rng(11);
  Request request = make_request("look", random_prompt(rng, 40), 0);
  request.look = AttentionLook{.bins = 10, .peaks = 3};
  std::optional<AttentionReport> one;
  for (const int stages : {1, 3}) {
    Tap tap;
    auto pipeline = make(stages, tap);
    const std::vector<Outcome> outcome = run_all(pipeline->engine(), {request});
    ASSERT_TRUE(outcome[0].attention) << outcome[0].choices[0].finish.message;
    if (!one) one = outcome[0].attention;
    EXPECT_EQ(*outcome[0].attention, *one) << stages << " stages";
  }
}

// Ranks that are lost at their first, an early and a late message.
TEST_F(NcclPipeline, ALostRankIsReplayed) {
  for (const auto& [victim, at] : {std::pair<int, int64_t>{1, 2}, {2, 9}, {0, 12}}) {
    SCOPED_TRACE("rank " + std::to_string(victim) + " at its message " + std::to_string(at));
    Tap tap;
    tap.kills = [victim = victim, at = at](int rank, int64_t count) { return rank == victim && count == at; };
    auto pipeline = make(3, tap);
    expect_all(expected(), run_all(pipeline->engine(), asked(), static_cast<uint32_t>(at)), asked());
    EXPECT_LE(pipeline->engine().stats().group_losses.load(), 1u);
    EXPECT_TRUE(pipeline->engine().ready());
    expect_conserved(pipeline->engine());
    EXPECT_EQ(cuda_emu::statistics().communicators, 4u) << "those of the lost group are gone";
  }
}

TEST_F(NcclPipeline, AFailureOfNcclIsALostGroup) {
  const auto& wanted = expected();
  for (const uint64_t at : {1, 4}) {
    SCOPED_TRACE("transfer " + std::to_string(at));
    const Devices broken(at);
    Tap tap;
    auto pipeline = make(2, tap);
    expect_all(wanted, run_all(pipeline->engine(), asked()), asked());
    EXPECT_EQ(pipeline->engine().stats().group_losses.load(), 1u);
    expect_conserved(pipeline->engine());
  }
}

TEST_F(NcclPipeline, WithoutReplayAFailureOfNcclEndsEveryRequest) {
  const Devices broken(3);
  Tap tap;
  EngineConfig config = small_config(8 << 20);
  config.replay_limit = 0;
  auto pipeline = make(2, tap, config);
  std::promise<std::string> lost;
  pipeline->engine().on_device_lost([&](const std::string& what) { lost.set_value(what); });
  for (const Outcome& outcome : run_all(pipeline->engine(), asked())) {
    for (const auto& choice : outcome.choices) EXPECT_TRUE(choice.finished);
  }
  EXPECT_NE(lost.get_future().get().find("unhandled system error"), std::string::npos);
  EXPECT_FALSE(pipeline->engine().healthy());
}

TEST_F(NcclPipeline, RanksMustAgreeOnTheWay) {
  auto sources = make_local_sources(2);
  sources[0] = by_nccl(std::move(sources[0]));
  const auto device = [](int index) { return [index] { return emulated()(index); }; };
  testing::WorkerOptions first{.checkpoint = checkpoint(), .range = {0, 2}, .config = small_config()};
  first.backend = device(0);
  testing::WorkerOptions second = first;
  second.range = {2, 1};
  second.backend = device(1);
  Worker worker(second, *sources[1]);
  std::string said;
  try {
    const auto backend = first.make_backend();
    Engine engine(testing::load_stage(*backend, first), first.config, first.tokenizer, steady_time(), sources[0].get());
  } catch (const Error& e) {
    said = e.what();
  }
  EXPECT_EQ(said, "rank 0 and rank 1 differ in the way of rows: nccl 2.28.9 and messages");
  EXPECT_EQ(worker.join(), said);
}

TEST_F(NcclPipeline, NeedsAGpu) {
  auto sources = make_local_sources(2);
  const auto source = by_nccl(std::move(sources[1]));
  Worker worker({.checkpoint = checkpoint(), .range = {2, 1}, .config = small_config()}, *source);
  EXPECT_NE(worker.join().find("it needs --device cuda"), std::string::npos);
}

}  // namespace
}  // namespace bam
