// Results and pages on their way between host and device.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cuda/cuda_backend.h"

namespace bam::cuda {

// Queues the counters behind the results; then waits.
void CudaBackend::finish_read() {
  const size_t counter_bytes = static_cast<size_t>(counters_used_) * sizeof(DeviceCounters);
  if (counter_bytes > 0) {
    BAM_CUDA(
        copy(counter_result_.as<DeviceCounters>(), counters_.data(), counter_bytes, cudaMemcpyDeviceToHost, queue()));
  }
  synchronize();
  collect_counters();
}

void CudaBackend::do_read_floats(ConstFloatRows device, std::span<float> host) {
  const auto scope = context_.enter();
  if (result_.size() < host.size_bytes()) result_ = PinnedMemory(host.size_bytes());
  BAM_CUDA(copy(result_.as<float>(), device.data, host.size_bytes(), cudaMemcpyDeviceToHost, queue()));
  finish_read();
  std::memcpy(host.data(), result_.as<float>(), host.size_bytes());
}

void CudaBackend::do_keep_on_device(ConstFloatRows rows, FloatRows kept) {
  const auto scope = context_.enter();
  flush();  // not part of the graph: the place changes from step to step
  const auto bytes = static_cast<size_t>(rows.size()) * sizeof(float);
  BAM_CUDA(cudaMemcpyAsync(kept.data, rows.data, bytes, cudaMemcpyDeviceToDevice, stream_.get()));
  finish_read();
}

void CudaBackend::do_read_operands(ConstOperandRows device, std::span<float> host) {
  const auto scope = context_.enter();
  if (operand_ == DType::kF32)
    return do_read_floats({static_cast<const float*>(device.data), device.count, device.width}, host);
  auto* converted = converted_.reserve<float>(host.size());
  const FloatRows floats{converted, device.count, device.width};
  operands_to_float(operand_, device, floats, queue());
  do_read_floats(floats, host);
}

void CudaBackend::collect_counters() {
  for (LayerCounters* layer : layers_) {
    if (layer->target.empty()) continue;
    const DeviceCounters* now = counter_result_.as<DeviceCounters>() + layer->offset;
    for (size_t h = 0; h < layer->seen.size(); ++h) {
      AttentionCounters& to = layer->target[h];
      const uint64_t visited = now[h].visited - layer->seen[h].visited;
      to.visited += visited;
      to.skipped += layer->pairs[h] - visited;
      to.bound_tests += now[h].bound_tests - layer->seen[h].bound_tests;
      to.left_out = std::max({to.left_out, layer->left_out[h], static_cast<float>(now[h].left_out) / kSharesInOne});
      layer->seen[h] = now[h];
      layer->pairs[h] = 0;
    }
    layer->target = {};
  }
}

void CudaBackend::forget(const LayerCounters* counters) {
  std::erase(layers_, counters);
  if (layers_.empty()) counters_used_ = 0;
}

void CudaBackend::do_draw_tokens(ConstFloatRows logits, const DrawBatch& batch, std::span<int32_t> tokens,
                                 std::span<const int32_t> wanted, std::span<float> host) {
  const auto device = context_.enter();
  const auto vocab = static_cast<size_t>(logits.width);
  const size_t row_bytes = vocab * sizeof(float), rows_begin = (tokens.size_bytes() + 15) / 16 * 16;
  const size_t bytes = rows_begin + wanted.size() * row_bytes;
  if (result_.size() < bytes) result_ = PinnedMemory(bytes);
  std::byte* const result = result_.as<std::byte>();
  if (!tokens.empty()) {
    const DrawLists lists{upload(std::span<const SeenToken>(batch.seen)),
                          upload(std::span<const TokenBias>(batch.biases)),
                          upload(std::span<const int32_t>(batch.banned))};
    auto* drawn = drawn_.reserve<int32_t>(tokens.size());
    const FloatRows work{draw_work_.reserve<float>(tokens.size() * vocab), static_cast<int64_t>(tokens.size()),
                         logits.width};
    draw_rows(upload(std::span<const DrawRow>(batch.rows)), lists, logits, work, drawn, queue());
    BAM_CUDA(copy(result, drawn, tokens.size_bytes(), cudaMemcpyDeviceToHost, queue()));
  }
  for (size_t i = 0; i < wanted.size();) {  // neighbours in one copy
    size_t end = i + 1;
    while (end < wanted.size() && wanted[end] == wanted[end - 1] + 1) ++end;
    BAM_CUDA(copy(result + rows_begin + i * row_bytes, logits.data + static_cast<size_t>(wanted[i]) * vocab,
                  (end - i) * row_bytes, cudaMemcpyDeviceToHost, queue()));
    i = end;
  }
  finish_read();
  std::memcpy(tokens.data(), result, tokens.size_bytes());
  for (size_t i = 0; i < wanted.size(); ++i) {
    std::memcpy(host.subspan(static_cast<size_t>(wanted[i]) * vocab, vocab).data(), result + rows_begin + i * row_bytes,
                row_bytes);
  }
}

void CudaBackend::do_copy_page(const KvCacheView& kv, int32_t from, int32_t to) {
  const auto device = context_.enter();
  flush();
  BAM_CUDA(cudaMemcpyAsync(kv.page(to).data(), kv.page(from).data(), kv.layout.page_bytes(), cudaMemcpyDeviceToDevice,
                           stream_.get()));
}

void CudaBackend::do_read_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<std::byte> out) {
  const auto device = context_.enter();
  const size_t bytes = kv.layout.page_bytes();
  swap_.after(step_end());
  // While one half is on its way, the other is copied out.
  const size_t per_half = PageSwap::pages_per_half(bytes);
  const size_t chunks = (pages.size() + per_half - 1) / per_half, first_half = swap_.next_half();
  const auto take = [&](size_t chunk) {
    const size_t first = chunk * per_half, count = std::min(per_half, pages.size() - first);
    std::memcpy(out.data() + first * bytes, swap_.wait((first_half + chunk) % 2), count * bytes);
  };
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    if (chunk >= 2) take(chunk - 2);
    const size_t first = chunk * per_half;
    swap_.read((first_half + chunk) % 2, kv, pages.subspan(first, std::min(per_half, pages.size() - first)));
  }
  for (size_t chunk = chunks - std::min<size_t>(chunks, 2); chunk < chunks; ++chunk) take(chunk);
}

void CudaBackend::do_write_pages(const KvCacheView& kv, std::span<const int32_t> pages, std::span<const std::byte> in) {
  const auto device = context_.enter();
  const size_t bytes = kv.layout.page_bytes();
  swap_.after(step_end());
  const size_t per_half = PageSwap::pages_per_half(bytes);
  for (size_t first = 0; first < pages.size(); first += per_half) {
    const size_t count = std::min(per_half, pages.size() - first);
    swap_.write(swap_.next_half(), kv, pages.subspan(first, count), in.subspan(first * bytes, count * bytes));
  }
  // Steps issued from here on see the pages; the host does not wait.
  BAM_CUDA(cudaStreamWaitEvent(stream_.get(), swap_.last()));
}

cudaEvent_t CudaBackend::step_end() {
  flush();
  BAM_CUDA(cudaEventRecord(step_end_.get(), stream_.get()));
  return step_end_.get();
}

// ---- PageSwap ----

// A half begins with its pages, their numbers follow: on the host and on the device alike.
PageSwap::Half& PageSwap::prepare(size_t index, const KvCacheView& kv, std::span<const int32_t> pages) {
  wait(index);
  Half& half = halves_[index];
  const size_t data = pages.size() * kv.layout.page_bytes(), bytes = data + pages.size_bytes();
  if (half.host.size() < bytes) {
    half.host = PinnedMemory(bytes);
    half.device = DeviceMemory(bytes);
  }
  std::memcpy(half.host.as<std::byte>() + data, pages.data(), pages.size_bytes());
  return half;
}

void PageSwap::read(size_t index, const KvCacheView& kv, std::span<const int32_t> pages) {
  const Half& half = prepare(index, kv, pages);
  const size_t bytes = kv.layout.page_bytes(), data = pages.size() * bytes;
  BAM_CUDA(cudaMemcpyAsync(half.device.as<std::byte>() + data, half.host.as<std::byte>() + data, pages.size_bytes(),
                           cudaMemcpyHostToDevice, stream_.get()));
  move_pages(half.device.as<std::byte>(), kv, reinterpret_cast<const int32_t*>(half.device.as<std::byte>() + data),
             static_cast<int>(pages.size()), false, stream_.get());
  BAM_CUDA(cudaMemcpyAsync(half.host.as<std::byte>(), half.device.as<std::byte>(), data, cudaMemcpyDeviceToHost,
                           stream_.get()));
  issued(index);
}

void PageSwap::write(size_t index, const KvCacheView& kv, std::span<const int32_t> pages,
                     std::span<const std::byte> in) {
  const Half& half = prepare(index, kv, pages);
  std::memcpy(half.host.as<std::byte>(), in.data(), in.size());
  BAM_CUDA(cudaMemcpyAsync(half.device.as<std::byte>(), half.host.as<std::byte>(), in.size() + pages.size_bytes(),
                           cudaMemcpyHostToDevice, stream_.get()));
  move_pages(half.device.as<std::byte>(), kv, reinterpret_cast<const int32_t*>(half.device.as<std::byte>() + in.size()),
             static_cast<int>(pages.size()), true, stream_.get());
  issued(index);
}

const std::byte* PageSwap::wait(size_t index) {
  if (busy_[index]) BAM_CUDA(cudaEventSynchronize(done_[index].get()));
  busy_[index] = false;
  return halves_[index].host.as<std::byte>();
}

void PageSwap::issued(size_t index) {
  BAM_CUDA(cudaEventRecord(done_[index].get(), stream_.get()));
  busy_[index] = true;
  last_ = index;
}

void PageSwap::after(cudaEvent_t event) { BAM_CUDA(cudaStreamWaitEvent(stream_.get(), event)); }

PageSwap::~PageSwap() { (void)cudaStreamSynchronize(stream_.get()); }

}  // namespace bam::cuda
