// Pages between host and emulated device: contents, order with computing, and how often the host waits.
#include <gtest/gtest.h>

#include "tests/cuda_emu/attention_test_support.h"
#include "tests/cuda_emu/backend_test_support.h"

namespace bam {
namespace {

struct Pages {
  explicit Pages(Backend& backend, int32_t count, int page_size = 64)
      : layout(make_kv_layout(DType::kF16, 64, page_size)),
        memory(backend.allocate(static_cast<size_t>(count) * layout.page_bytes())),
        view{static_cast<std::byte*>(memory->data()), count, layout} {}
  KvLayout layout;
  std::unique_ptr<DeviceBuffer> memory;
  KvCacheView view;
};

std::vector<std::byte> random_bytes(size_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng());
  return bytes;
}

TEST(PageSwap, PagesComeBackAsTheyWentWhateverTheirNumberAndOrder) {
  for (const cuda_emu::StreamMode mode :
       {cuda_emu::StreamMode::kLazy, cuda_emu::StreamMode::kEager, cuda_emu::StreamMode::kRandom}) {
    cuda_emu::Config config = cuda_emu::config();
    config.streams = mode;
    const cuda_emu::ScopedConfig scope(config);
    const auto backend = cuda_test::make_cuda();
    // Pages of 1 MiB and more: four to a half of the pinned memory, so that both halves are used again and again.
    Pages pages(*backend, 24, 4096);
    const size_t bytes = pages.layout.page_bytes();
    ASSERT_GT(bytes, size_t{1} << 20);
    std::vector<int32_t> ids(pages.view.num_pages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(3));
    const auto sent = random_bytes(ids.size() * bytes, 4);
    backend->write_pages(pages.view, ids, sent);
    std::vector<std::byte> back(sent.size());
    backend->read_pages(pages.view, ids, back);
    EXPECT_TRUE(back == sent);
    std::vector<std::byte> one(bytes);
    backend->read_page(pages.view, ids[5], one);
    EXPECT_EQ(std::memcmp(one.data(), sent.data() + 5 * bytes, bytes), 0);
  }
}

TEST(PageSwap, ABatchWaitsOnceAndWritingNotAtAll) {
  const auto backend = cuda_test::make_cuda();
  Pages pages(*backend, 40);
  std::vector<int32_t> ids(40);
  std::iota(ids.begin(), ids.end(), 0);
  const auto sent = random_bytes(ids.size() * pages.layout.page_bytes(), 9);
  std::vector<std::byte> back(sent.size());
  const cuda_emu::Statistics start = cuda_emu::statistics();
  backend->write_pages(pages.view, ids, sent);
  EXPECT_EQ(cuda_emu::statistics().host_waits - start.host_waits, 0u);
  backend->read_pages(pages.view, ids, back);
  EXPECT_EQ(cuda_emu::statistics().host_waits - start.host_waits, 1u);
  // Data with page numbers there; page numbers there and data back: not one copy per page.
  EXPECT_EQ(cuda_emu::statistics().copies - start.copies, 3u);
  EXPECT_EQ(cuda_emu::statistics().launches - start.launches, 2u);
  EXPECT_TRUE(back == sent);
}

// Written pages are there for what is issued afterwards, and what was issued before is in the pages that are read.
TEST(PageSwap, KeepsTheOrderOfOperations) {
  const auto backend = cuda_test::make_cuda();
  Pages pages(*backend, 4);
  const size_t bytes = pages.layout.page_bytes();
  const std::vector<int32_t> two = {0, 1};
  for (uint32_t round = 0; round < 5; ++round) {
    const auto sent = random_bytes(2 * bytes, round);
    backend->write_pages(pages.view, two, sent);
    backend->copy_page(pages.view, 0, 3);
    backend->copy_page(pages.view, 1, 2);
    backend->write_pages(pages.view, two, random_bytes(2 * bytes, 100 + round));
    std::vector<std::byte> back(2 * bytes);
    backend->read_pages(pages.view, std::vector<int32_t>{3, 2}, back);
    EXPECT_TRUE(back == sent) << "round " << round;
  }
}

// A sequence that went to the host and came back into other pages: attention gives the same bits, in every format.
TEST(PageSwap, AttentionOverPagesThatCameBackIsTheSame) {
  for (const DType kv : {DType::kF16, DType::kBF16, DType::kI8, DType::kFp8, DType::kI4}) {
    const cuda_test::Case test{.name = "swap", .kv = kv, .tokens = 150};
    const AttentionSpec spec = cuda_test::make_spec(test);
    const auto backend = cuda_test::make_cuda();
    const auto layer = backend->make_attention(spec);
    AttentionLayer* layers[] = {layer.get()};
    backend->reserve_positions(layers, test.tokens);
    cuda_test::Cache here(*backend, test), there(*backend, test);
    std::reverse(there.table.begin(), there.table.end());
    const auto operands = cuda_test::to_device(*backend, cuda_test::make_qkv(test, 4), test.operand);
    const SequenceRows before = here.rows(0, test.tokens), after = there.rows(0, test.tokens);
    const OperandRows qkv = backend->operand_rows(*operands, test.tokens, layer->spec.qkv_width());
    backend->write_kv(*layer, here.view, {&before, 1}, qkv);
    const auto attend = [&](const cuda_test::Cache& cache, const SequenceRows& rows) {
      const auto count = static_cast<size_t>(test.tokens * test.heads * test.head_dim);
      const auto out = backend->allocate(count * backend->operand_bytes());
      std::vector<AttentionCounters> counters(static_cast<size_t>(test.heads));
      backend->attention(*layer, cache.view, {&rows, 1}, {}, qkv, {},
                         backend->operand_rows(*out, test.tokens, layer->spec.q_width()), counters);
      return cuda_test::operands(*backend, *out, count);
    };
    const auto expected = attend(here, before);
    std::vector<std::byte> pages(here.table.size() * here.view.layout.page_bytes());
    backend->read_pages(here.view, here.table, pages);
    backend->write_pages(there.view, there.table, pages);
    EXPECT_EQ(attend(there, after), expected) << dtype_name(kv);
  }
}

}  // namespace
}  // namespace bam
