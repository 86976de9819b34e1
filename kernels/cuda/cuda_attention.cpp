// The attention side of the CUDA backend: tables, writing K and V, cutting a step's queries into blocks and launches.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "kernels/cuda/cuda_backend.h"

namespace bam::cuda {
namespace {

constexpr int64_t kMaxWaveMasks = int64_t{8} << 20;        // 64 MiB
constexpr int64_t kMaxWaveSlotFloats = int64_t{64} << 20;  // 256 MiB
constexpr int kSmallRows = 16;                             // rows of one tensor-core tile: such blocks take one warp

HeadParams head_params(const AttentionSpec& spec, int head) {
  const HeadBias& bias = spec.bias_of(head);
  HeadParams params;
  params.ssmax = spec.ssmax;
  params.seq_scale = static_cast<float>(spec.seq_scale_of(head));
  params.scaled_bias = bias.scaled;
  params.never_grows = bias.never_grows;
  params.decays = bias.decays;
  params.rising = static_cast<int>(bias.rising);
  params.settled = static_cast<int>(bias.settled);
  params.largest = static_cast<float>(bias.largest);
  params.smallest = static_cast<float>(bias.smallest);
  params.reach = static_cast<int>(spec.reach_of(head));
  return params;
}

int num_segments(const QueryBlock& block) {
  const int newest = block.diagonal_tile - 2;
  return newest < block.first_tile ? 0 : newest / kSegmentTiles - block.first_tile / kSegmentTiles + 1;
}
bool several_spans(const QueryBlock& block) {
  constexpr int kSpanTiles = kSegmentTiles * kSpanSegments;
  return (block.diagonal_tile - 2) / kSpanTiles > block.first_tile / kSpanTiles;
}

}  // namespace

CudaAttention::~CudaAttention() {
  backend.settle();
  if (counters) backend.forget(counters.get());
}

std::unique_ptr<AttentionLayer> CudaBackend::make_attention(const AttentionSpec& spec) {
  const auto device = context_.enter();
  auto layer = std::make_unique<CudaAttention>(*this, spec);
  for (int h = 0; h < spec.num_heads; ++h) {
    layer->heads.push_back(head_params(spec, h));
    std::shared_ptr<BiasTable> table;
    if (const HeadBias& bias = spec.bias_of(h); bias.any()) {
      const int64_t limit = spec.bias_positions(h);
      std::weak_ptr<BiasTable>& known = known_tables_[{bias, limit}];
      table = known.lock();
      if (table == nullptr) {
        known = table = std::make_shared<BiasTable>();
        table->bias = bias;
        table->limit = limit;
      }
    }
    layer->tables.push_back(std::move(table));
  }
  for (int kv = 0; kv < spec.num_kv_heads; ++kv) layer->use_super.push_back(spec.keeps_super_tiles(kv));
  layer->super_heads = DeviceMemory(layer->use_super.size());
  copy_in(layer->super_heads, layer->use_super.data());
  layer->head_params = DeviceMemory(layer->heads.size() * sizeof(HeadParams));
  copy_in(layer->head_params, layer->heads.data());
  if (spec.rotates()) {
    layer->rope_memory = rope_tables(spec);
    layer->rope.half = spec.head_dim / 2;
    layer->rope.fine = layer->rope_memory->as<RopeAngle>();
    layer->rope.coarse = layer->rope.fine + RopeTables::kFine * layer->rope.half;
    layer->rope.interleaved = spec.rope_style == RopeStyle::kInterleaved;
  }
  if (counters_used_ + spec.num_heads > kMaxCounters) throw Error("too many attention heads for one device");
  layer->counters = std::make_unique<LayerCounters>();
  layer->counters->offset = counters_used_;
  layer->counters->seen.resize(static_cast<size_t>(spec.num_heads));
  layer->counters->pairs.resize(static_cast<size_t>(spec.num_heads));
  layer->counters->left_out.resize(static_cast<size_t>(spec.num_heads));
  counters_used_ += spec.num_heads;
  BAM_CUDA(cudaMemsetAsync(counters_.as<DeviceCounters>() + layer->counters->offset, 0,
                           static_cast<size_t>(spec.num_heads) * sizeof(DeviceCounters), stream_.get()));
  layers_.push_back(layer->counters.get());
  return layer;
}

std::shared_ptr<const DeviceMemory> CudaBackend::rope_tables(const AttentionSpec& spec) {
  const std::array<double, 2> key = {spec.rope_theta, static_cast<double>(spec.head_dim)};
  if (auto known = known_rope_.lock(); known != nullptr && known_rope_key_ == key) return known;
  const int half = spec.head_dim / 2;
  std::vector<RopeAngle> angles;
  const auto fill = [&](int64_t count, int64_t stride) {
    for (int64_t i = 0; i < count; ++i) {
      for (int t = 0; t < half; ++t) {
        const double frequency = std::pow(spec.rope_theta, -2.0 * t / spec.head_dim);
        const std::complex<double> turn = std::polar(1.0, static_cast<double>(i * stride) * frequency);
        angles.push_back({float_pair(turn.real()), float_pair(turn.imag())});
      }
    }
  };
  fill(RopeTables::kFine, 1);
  fill(kMaxPositions / RopeTables::kFine, RopeTables::kFine);
  auto memory = std::make_shared<DeviceMemory>(angles.size() * sizeof(RopeAngle));
  copy_in(*memory, angles.data());
  known_rope_ = memory;
  known_rope_key_ = key;
  return memory;
}

void CudaBackend::reserve_positions(std::span<AttentionLayer* const> layers, int64_t num_positions) {
  const auto device = context_.enter();
  const int64_t target = positions_to_reserve(num_positions);
  for (AttentionLayer* base : layers) {
    auto& layer = static_cast<CudaAttention&>(*base);
    bool changed = false;
    for (size_t h = 0; h < layer.tables.size(); ++h) {
      BiasTable* table = layer.tables[h].get();
      if (table == nullptr) continue;
      const int64_t wanted = std::min(target, table->limit);
      if (table->size < wanted) flush();  // a recorded step reads the table as it was
      if (static_cast<int64_t>(table->memory.size() / sizeof(float)) < wanted) {
        retired_.push_back(std::move(table->memory));
        const int64_t room = std::min(table->limit, std::max(wanted, table->size * 3 / 2));
        table->memory = DeviceMemory(static_cast<size_t>(room) * sizeof(float));
        table->size = 0;
      }
      fill_bias_table(table->bias, table->size, wanted, table->memory.as<float>(), stream_.get());
      table->size = std::max(table->size, wanted);
      HeadParams& params = layer.heads[h];
      changed = changed || params.bias != table->memory.as<float>() || params.bias_size != table->size;
      params.bias = table->memory.as<float>();
      params.bias_size = static_cast<int>(table->size);
    }
    if (!changed) continue;
    copy_in(layer.head_params, layer.heads.data());
  }
}

bool CudaBackend::on_tensor_cores(const KvLayout& layout) const {
  return tensor_cores_ && attention_mma_supports(operand_, layout);
}

int CudaBackend::heads_at_once(int group, const KvLayout& layout) {
  for (const Prepared& known : prepared_) {
    if (known.dtype == layout.dtype && known.head_dim == layout.head_dim && known.group == group) return known.heads;
  }
  prepare_certify(layout.head_dim);
  int heads = std::min(group, kMaxBlockRows);
  if (on_tensor_cores(layout)) {
    heads = attention_mma_heads(layout, heads, context_.shared_per_block());
    if (heads == 0) {
      throw Error("head_dim {} with {} keys and values needs more shared memory than the {} bytes of {}",
                  layout.head_dim, dtype_name(layout.dtype), context_.shared_per_block(), context_.name());
    }
    prepare_attention_mma(layout, heads);
  } else if (tensor_cores_) {
    log::warn(
        "attention runs without tensor cores, many times slower: {} keys and values of head_dim {} (tensor cores "
        "take f16, bf16, int8 and fp8 up to head_dim 128)",
        dtype_name(layout.dtype), layout.head_dim);
  }
  prepared_.push_back({layout.dtype, layout.head_dim, group, heads});
  return heads;
}

void CudaBackend::prepare_attention(std::span<AttentionLayer* const> layers, const KvLayout& layout) {
  const auto device = context_.enter();
  for (AttentionLayer* layer : layers) {
    const AttentionSpec& spec = static_cast<CudaAttention&>(*layer).spec;
    heads_at_once(spec.num_heads / spec.num_kv_heads, layout);
  }
}

void CudaBackend::do_write_kv(const AttentionLayer& attention_layer, const KvCacheView& kv,
                              std::span<const SequenceRows> sequences, OperandRows qkv) {
  const auto device = context_.enter();
  const auto& layer = static_cast<const CudaAttention&>(attention_layer);
  refresh_tables(sequences);
  std::vector<KvWriteItem> items;
  std::vector<KvChainItem> chains;
  for (const SequenceRows& seq : sequences) {
    const int64_t end = seq.start_pos + seq.num_rows;
    const Table table = upload_table(layer.spec, seq, (end + kTileKeys - 1) / kTileKeys, kv.layout);
    const auto stride = static_cast<int>(table.num_pages);
    for (int64_t begin = seq.start_pos; begin < end;) {
      const int64_t next = std::min(end, (begin / kTileKeys + 1) * kTileKeys);
      for (int64_t head = 0; head < layer.spec.num_kv_heads; ++head) {
        BAM_CHECK(table.host[head * table.num_pages + begin / kv.layout.page_size] != kNoPage);
      }
      items.push_back({table.device, stride, static_cast<int>(seq.row_begin + begin - seq.start_pos),
                       static_cast<int>(begin), static_cast<int>(next - begin)});
      begin = next;
    }
    // Also if no tile filled up: the launches of a step are always the same.
    const int64_t first_tile = seq.start_pos / kTileKeys, full_end = std::max(end / kTileKeys, first_tile);
    chains.push_back({table.device, stride, static_cast<int>(first_tile), static_cast<int>(full_end)});
  }
  const KvWriteArgs args{kv_pages(kv),
                         layer.rope,
                         qkv.data,
                         layer.spec.num_heads,
                         layer.spec.num_kv_heads,
                         layer.super_heads.as<uint8_t>()};
  const KvWriteItem* device_items = upload(std::span<const KvWriteItem>(items));
  const KvChainItem* device_chains = upload(std::span<const KvChainItem>(chains));
  write_kv_rows(args, operand_, device_items, static_cast<int>(items.size()), device_chains,
                static_cast<int>(chains.size()), queue());
}

void CudaBackend::plan_blocks(const CudaAttention& layer, const KvLayout& layout, std::span<const SequenceRows> queries,
                              const AttentionOptions& options) {
  const AttentionSpec& spec = layer.spec;
  const int group = spec.num_heads / spec.num_kv_heads;
  const int most_heads = heads_at_once(group, layout);
  const int64_t positions_at_once = kMaxBlockRows / most_heads;
  for (BlockClass& one : classes_) one = {std::move(one.blocks), 0, 0}, one.blocks.clear();
  for (const SequenceRows& seq : queries) {
    const Table table = upload_table(spec, seq, (seq.start_pos + seq.num_rows + kTileKeys - 1) / kTileKeys, layout);
    for (int64_t r = 0; r < seq.num_rows;) {
      const int64_t position = seq.start_pos + r, tile = position / kTileKeys;
      const int64_t count = std::min({positions_at_once, seq.num_rows - r, (tile + 1) * kTileKeys - position});
      for (int h = 0; h < spec.num_heads;) {
        const int heads = std::min(most_heads, (h / group + 1) * group - h);
        bool bounded = true;
        int64_t reach = spec.window;
        for (int i = h; i < h + heads && spec.window < 0; ++i) {
          const int64_t own = options.certified ? spec.reach_of(i) : -1;
          bounded = bounded && own >= 0;
          reach = std::max(reach, own);
        }
        QueryBlock block{};
        block.pages = table.device + h / group * table.num_pages;
        block.out_row = static_cast<int>(seq.row_begin + r);
        block.position = static_cast<int>(position);
        block.num_positions = static_cast<int>(count);
        block.first_head = h;
        block.num_heads = heads;
        block.kv_head = h / group;
        block.diagonal_tile = static_cast<int>(tile);
        block.first_tile = bounded ? static_cast<int>(std::max<int64_t>(position - reach, 0) / kTileKeys) : 0;
        const bool certify = options.certified && tile >= kFirstBoundedTile && num_segments(block) > 0;
        block.first_slot = block.list_offset = -1;
        block.mask_offset = certify ? 0 : -1;  // where it lies is known later
        const int rows = heads * block.num_positions;
        BlockClass& of = classes_[rows > kSmallRows];
        of.blocks.push_back(block);
        of.max_rows = std::max(of.max_rows, rows);
        of.bias_floats = std::max(of.bias_floats, bias_stage_floats(heads, block.num_positions));
        for (int i = h; i < h + heads; ++i) {
          const int64_t first = spec.window < 0 ? 0 : block.first_tile;
          layer.counters->pairs[static_cast<size_t>(i)] += static_cast<uint64_t>(count * (tile - first + 1));
          // Without bounds only the static reach leaves anything out; what was proved of it is known here.
          const int64_t own = spec.window < 0 && options.certified && !certify ? spec.reach_of(i) : -1;
          const int64_t last = position + count - 1;
          if (own >= 0 && last > own) {
            float& left_out = layer.counters->left_out[static_cast<size_t>(i)];
            left_out =
                std::max(left_out, options.epsilon * static_cast<float>(last - own) / static_cast<float>(last + 1));
          }
        }
        h += heads;
      }
      r += count;
    }
  }
}

void CudaBackend::launch_attention(AttentionArgs args, std::span<const WorkItem> items, const BlockClass& of) {
  if (items.empty()) return;
  args.items = upload(items);
  const auto count = static_cast<int>(items.size());
  if (on_tensor_cores(args.kv.layout)) {
    attention_mma(args, count, of.max_rows, of.bias_floats, queue());
  } else {
    attention_plain(args, count, queue());
  }
}

void CudaBackend::run_blocks(std::span<QueryBlock> blocks, const BlockClass& of, AttentionArgs args) {
  // A recorded step has the same launches whatever its sequences have grown to: items that are not needed do nothing.
  const bool fixed = graph_.recording();
  // Few blocks are split over the device; how far changes nothing in the result.
  const auto count = static_cast<int>(blocks.size());
  const int workers = context_.multiprocessors() * (of.max_rows <= kSmallRows ? 16 : 4);
  const int most_parts = std::max(1, workers / count);
  const bool bounded =
      std::any_of(blocks.begin(), blocks.end(), [](const QueryBlock& b) { return b.mask_offset >= 0; }) ||
      (fixed && args.certified);
  const WorkItem nothing{0, WorkKind::kNone, 0, 1};
  std::vector<WorkItem> anchors, items, merges, every;
  int slots = 0, masks = 0, lists = 0, supers = 0;
  for (int b = 0; b < count; ++b) {
    QueryBlock& block = blocks[static_cast<size_t>(b)];
    const int segments = num_segments(block), parts = std::clamp(segments, 1, most_parts);
    const bool split = parts > 1, bounds = block.mask_offset >= 0;
    every.push_back({b, WorkKind::kAnchor, 0, 1});
    if (bounds || split) anchors.push_back(every.back());
    if (bounds || split || several_spans(block)) {
      block.first_slot = slots;
      slots += split ? 1 + segments : 1;
    }
    if (bounds) {
      block.mask_offset = masks;
      block.list_offset = lists;
      masks += block.diagonal_tile - 1 - block.first_tile;
      lists += segments;
      supers = std::max(supers, block.diagonal_tile / kSuperTiles - block.first_tile / kSuperTiles + 1);
    }
    if (split) {
      for (int part = 0; part < parts; ++part) items.push_back({b, WorkKind::kPart, part, parts});
      merges.push_back(every.back());
    } else {
      items.push_back({b, bounds ? WorkKind::kRest : WorkKind::kWhole, 0, 1});
    }
  }
  if (!bounded) items.insert(items.begin(), anchors.begin(), anchors.end());
  if (fixed) {
    anchors.resize(static_cast<size_t>(count), nothing);
    items.resize(static_cast<size_t>(count) * static_cast<size_t>(most_parts + (bounded ? 0 : 1)), nothing);
    if (most_parts > 1) merges.resize(static_cast<size_t>(count), nothing);
  }
  args.blocks = upload(std::span<const QueryBlock>(blocks));
  args.slot_rows = of.max_rows;
  args.slots = slots_.reserve<float>(static_cast<size_t>(slots) * static_cast<size_t>(of.max_rows) *
                                     static_cast<size_t>(2 + args.kv.layout.padded_dim));
  if (bounded) {
    args.masks = masks_.reserve<unsigned long long>(static_cast<size_t>(masks));
    args.list = lists_.reserve<int32_t>(static_cast<size_t>(lists));
    args.list_size = list_sizes_.reserve<int32_t>(static_cast<size_t>(count));
    args.seeds = seeds_.reserve<int32_t>(static_cast<size_t>(count) * kMaxBlockRows);
    args.left_out = left_out_.reserve<unsigned long long>(static_cast<size_t>(count) * kMaxBlockRows);
    AttentionArgs all = args;
    all.items = upload(std::span<const WorkItem>(every));
    find_seeds(all, count, queue());
    launch_attention(args, anchors, of);
    mark_tiles(all, count, supers, queue());
    list_segments(all, count, queue());
  }
  launch_attention(args, items, of);
  if (!merges.empty()) {
    args.items = upload(std::span<const WorkItem>(merges));
    attention_merge(args, static_cast<int>(merges.size()), queue());
  }
}

// Runs the blocks in waves whose scratch memory stays within bounds.
void CudaBackend::run_class(BlockClass& of, const AttentionArgs& args) {
  // Long blocks first, so that multiprocessors finish together.
  std::stable_sort(of.blocks.begin(), of.blocks.end(), [](const QueryBlock& a, const QueryBlock& b) {
    return a.diagonal_tile - a.first_tile > b.diagonal_tile - b.first_tile;
  });
  const std::span<QueryBlock> blocks = of.blocks;
  const int64_t slot_floats = int64_t{of.max_rows} * (2 + args.kv.layout.padded_dim);
  for (size_t begin = 0; begin < blocks.size();) {
    int64_t masks = 0, floats = 0;
    size_t end = begin;
    for (; end < blocks.size(); ++end) {
      masks += blocks[end].diagonal_tile + 1;
      floats += (1 + num_segments(blocks[end])) * slot_floats;
      if (end > begin && (masks > kMaxWaveMasks || floats > kMaxWaveSlotFloats)) break;
    }
    run_blocks(blocks.subspan(begin, end - begin), of, args);
    begin = end;
  }
}

void CudaBackend::do_attention(const AttentionLayer& attention_layer, const KvCacheView& kv,
                               std::span<const SequenceRows> queries, std::span<const int32_t> query_rows,
                               ConstOperandRows qkv, const AttentionOptions& options, OperandRows out,
                               std::span<AttentionCounters> per_head) {
  const auto device = context_.enter();
  const auto& layer = static_cast<const CudaAttention&>(attention_layer);
  const AttentionSpec& spec = layer.spec;
  layer.counters->target = per_head;
  refresh_tables(queries);
  plan_blocks(layer, kv.layout, queries, options);
  AttentionArgs args;
  args.kv = kv_pages(kv);
  args.heads = layer.head_params.as<HeadParams>();
  args.query_rows = query_rows.empty() ? nullptr : upload(query_rows);
  args.qkv = qkv.data;
  args.qkv_stride = qkv.width;
  args.out = out.data;
  args.out_stride = out.width;
  args.operand = operand_;
  args.query = on_tensor_cores(kv.layout) ? attention_mma_format(kv.layout) : DType::kF32;
  args.window = static_cast<int>(spec.window);
  args.certified = options.certified;
  args.log_epsilon = static_cast<float>(std::log(static_cast<double>(options.epsilon)));
  args.epsilon = options.epsilon;
  args.super_heads = layer.super_heads.as<uint8_t>();
  args.counters = counters_.as<DeviceCounters>() + layer.counters->offset;
  for (BlockClass& of : classes_) run_class(of, args);
}

}  // namespace bam::cuda
