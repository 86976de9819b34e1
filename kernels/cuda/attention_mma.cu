// Attention on tensor cores (sm_80 and later). A block is one query block: warp w owns rows 16 w ... 16 w + 15, keys
// come in stages of 32 through a ring of two buffers filled by cp.async while the other one is in use.
//
//   stage in shared memory   K    [dims][32 keys]            rows of 64 + 16 bytes
//                            V    [32 keys][dims]            rows of 2 dims + 16 bytes
//                            bias [heads][positions + 31]    B for every distance between the block's rows and the keys
//   (16 bytes of padding put the 8 rows that one ldmatrix reads into different banks)
//
// Scores and softmax are float32; weights are rounded to the KV cache's 16-bit format for the second product. fp8 keys enter
// as exact numbers and are scaled in float32 afterwards, values are scaled on their way to shared memory. int8 pages are
// never widened: attention_mma_codes.h.
#include <algorithm>

#include "kernels/cuda/attention_mma_block.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/memory.h"

namespace bam::cuda {
namespace {

using namespace mma;  // NOLINT

// grid: items; one warp for blocks of up to 16 rows, else four
template <typename C>
__global__ void __launch_bounds__(C::kMostThreads, C::kMinBlocks)
    attention_mma_kernel(AttentionArgs args, int bias_floats) {
  BAM_DYNAMIC_SHARED(unsigned char, shared);
  BAM_SHARED(Run, run);
  BAM_SHARED(QueryBlock, block);
  BAM_SHARED(int, next_row);
  const WorkItem item = args.items[blockIdx.x];
  if (item.kind == WorkKind::kNone) return;
  if (threadIdx.x == 0) {
    block = args.blocks[item.block];
    run.span = newest_span(block);
  }
  __syncthreads();
  const int threads = C::kFew ? 32 : static_cast<int>(blockDim.x);
  Kernel<C> kernel{args,
                   block,
                   shared,
                   run,
                   StageMover<C>(args.kv.layout, shared + SharedLayout<C>::kCopies, threads),
                   num_rows(block),
                   threads,
                   C::kFew ? 0 : static_cast<int>(threadIdx.x) / 32,
                   static_cast<int>(threadIdx.x) % 32,
                   block.num_positions + kStageKeys - 1,
                   bias_floats};
  Fragment<C> f;
  kernel.load_queries(f);
  clear_padding<C>(args.kv.layout, C::kInt8 ? kernel.mover.buffer(0) : kernel.stage(0), threads);
  kernel.prepare_bias();
  clear(f);
  const int entries = item.kind == WorkKind::kAnchor ? 0 : num_segments(args, block, item.block);
  const bool part = item.kind == WorkKind::kPart, to_slots = part || item.kind == WorkKind::kAnchor;
  if (item.kind == WorkKind::kRest) {
    kernel.load_slot(0, f);
    kernel.keep_total(f);
  }
  // One loop for the anchor (its tiles, then a few seeds at a time) and for segments: the code of a visit is large.
  bool anchor = item.kind == WorkKind::kWhole || item.kind == WorkKind::kAnchor, first = true;
  int seed_row = args.seeds == nullptr ? kernel.rows : 0;
  for (int e = part ? item.part : 0; anchor || e < entries;) {
    if (!anchor) {
      const int segment = segment_at(args, block, e);
      if (!part && segment / kSpanSegments != run.span) kernel.end_span();
      kernel.build_segment(segment);
      clear(f);
    } else if (first) {
      kernel.build_anchor();
    } else {
      seed_row = kernel.build_seeds(args.seeds + item.block * kMaxBlockRows, seed_row, next_row);
    }
    kernel.visit_run(f);
    first = false;
    if (anchor && seed_row < kernel.rows) continue;
    kernel.finish_sums(f);
    if (to_slots) {
      kernel.store_slot(anchor ? 0 : 1 + e, f);
    } else if (anchor) {
      kernel.keep_total(f);
    } else {
      kernel.merge_total(f);
    }
    if (!anchor) e += part ? item.parts : 1;
    anchor = false;
  }
  if (!to_slots) {
    if (run.span != newest_span(block)) kernel.join_slot();
    kernel.store_output();
  }
  const int row = kernel.warp * 16 + kernel.lane;
  if (kernel.lane < 16 && row < kernel.rows && kernel.visited != 0) {
    atomicAdd(&args.counters[block.first_head + row / block.num_positions].visited,
              static_cast<unsigned long long>(kernel.visited));
  }
}

// Calls body(Config) for the kernel that fits the cache.
template <typename Body>
void with_config(const KvLayout& layout, Body&& body) {
  const auto sized = [&]<typename T, Codes kCodes>() {
    const int dims = layout.padded_dim / 16;
    if (dims <= 2) return body(Config<T, kCodes, 2>());
    if (dims == 3) return body(Config<T, kCodes, 3>());
    if (dims == 4) return body(Config<T, kCodes, 4>());
    if (dims <= 6) return body(Config<T, kCodes, 6>());
    return body(Config<T, kCodes, 8>());
  };
  if (layout.dtype == DType::kBF16) return sized.template operator()<__nv_bfloat16, Codes::kNone>();
  if (layout.dtype == DType::kI8) return sized.template operator()<__half, Codes::kInt8>();
  if (layout.dtype == DType::kFp8) return sized.template operator()<__half, Codes::kFp8>();
  return sized.template operator()<__half, Codes::kNone>();
}

}  // namespace

bool attention_mma_supports(DType operand, const KvLayout& layout) {
  return operand != DType::kF32 && layout.padded_dim <= 128 &&
         (layout.dtype == DType::kF16 || layout.dtype == DType::kBF16 || layout.dtype == DType::kI8 ||
          layout.dtype == DType::kFp8);
}

DType attention_mma_format(const KvLayout& layout) { return layout.dtype == DType::kBF16 ? DType::kBF16 : DType::kF16; }

void attention_mma(const AttentionArgs& args, int num_items, int max_rows, int bias_floats, const Queue& queue) {
  const int threads = max_rows <= 16 ? 32 : kMaxThreads;
  with_config(args.kv.layout, [&](auto config) {
    using C = decltype(config);
    const auto run = [&]<typename K>(K /*config*/) {
      check(
          launch(attention_mma_kernel<K>, dim3(static_cast<unsigned>(num_items)), dim3(static_cast<unsigned>(threads)),
                 SharedLayout<K>::bytes(threads, bias_floats), queue, args, bias_floats),
          "attention_mma_kernel");
    };
    if constexpr (C::kInt8) {
      if (max_rows <= 8) return run(Config<typename C::T, C::kCodes, C::kDims, 8>());
    }
    run(config);
  });
}

namespace {

// Dynamic bytes of the largest block of up to `heads` heads: fewer heads leave room for more positions.
template <typename C>
size_t largest_block_bytes(int heads) {
  int floats = 0;
  for (int h = 1; h <= heads; ++h) floats = std::max(floats, bias_stage_floats(h, kMaxBlockRows / heads));
  return SharedLayout<C>::bytes(kMaxThreads, floats);
}

}  // namespace

int attention_mma_heads(const KvLayout& layout, int most, size_t shared_per_block) {
  int heads = 0;
  with_config(layout, [&](auto config) {
    using C = decltype(config);
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, attention_mma_kernel<C>), "cudaFuncGetAttributes(attention_mma)");
    for (heads = most; heads > 0; --heads) {
      if (largest_block_bytes<C>(heads) + attributes.sharedSizeBytes <= shared_per_block) break;
    }
  });
  return heads;
}

void prepare_attention_mma(const KvLayout& layout, int heads) {
  with_config(layout, [&](auto config) {
    using C = decltype(config);
    check(allow_shared(attention_mma_kernel<C>, largest_block_bytes<C>(heads)), "cudaFuncSetAttribute(attention_mma)");
  });
}

}  // namespace bam::cuda
