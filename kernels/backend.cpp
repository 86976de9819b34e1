#include "kernels/backend.h"

#include <cstring>

#include "base/check.h"

namespace bam {

bool Backend::supports_drawing(int64_t) const { return false; }

void Backend::draw_tokens(const float*, int64_t, const DrawBatch&, std::span<int32_t>, std::span<const int32_t>,
                          std::span<float>) {
  BAM_CHECK(false && "this backend does not draw tokens");
}

void Backend::load_rows(std::span<const float> host, float* x) {
  BAM_CHECK(in_host_memory());
  std::memcpy(x, host.data(), host.size_bytes());
}

void Backend::read_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<std::byte> out) {
  const size_t bytes = kv.layout.page_bytes();
  BAM_CHECK(out.size() == pages.size() * bytes);
  for (size_t i = 0; i < pages.size(); ++i) read_page(kv, pages[i], out.subspan(i * bytes, bytes));
}

void Backend::write_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<const std::byte> in) {
  const size_t bytes = kv.layout.page_bytes();
  BAM_CHECK(in.size() == pages.size() * bytes);
  for (size_t i = 0; i < pages.size(); ++i) write_page(kv, pages[i], in.subspan(i * bytes, bytes));
}

}  // namespace bam
