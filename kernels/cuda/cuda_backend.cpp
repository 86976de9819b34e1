#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <span>

#include "base/check.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "kernels/cuda/plugin.h"

namespace bam::cuda {
namespace {

// Steps of at most so many rows are recorded as graphs: there, launching costs as much as computing.
constexpr int64_t kMaxGraphRows = 64;
constexpr int kTensorCapability = 80;
constexpr size_t kMaxEmbeddings = 4;  // models that share a device

DType operand_format(const std::string& wanted) {
  if (wanted == "f32") return DType::kF32;
  if (wanted == "bf16") return DType::kBF16;
  return DType::kF16;
}

// Element i of a row of a host matrix as float32.
float load_element(const std::byte* row, DType dtype, int64_t i) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, row + 4 * i, sizeof value);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, row + 2 * i, sizeof half);
  return dtype == DType::kBF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

void store_element(std::byte* row, DType dtype, int64_t i, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(row + 4 * i, &value, sizeof value);
    return;
  }
  const uint16_t half = dtype == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
  std::memcpy(row + 2 * i, &half, sizeof half);
}

size_t row_bytes(const HostMatrix& matrix) { return static_cast<size_t>(matrix.cols) * dtype_bits(matrix.dtype) / 8; }

// Rows of `part` in the device's format, appended to `out` ([rows, ldk]); int8 also appends one scale per row.
void pack_rows(const HostMatrix& part, DType dtype, int64_t ldk, std::vector<std::byte>& out,
               std::vector<float>& scale) {
  const size_t bytes = static_cast<size_t>(ldk) * dtype_bits(dtype) / 8;
  for (int64_t r = 0; r < part.rows; ++r) {
    const std::byte* from = part.data + static_cast<size_t>(r) * row_bytes(part);
    const size_t at = out.size();
    out.resize(at + bytes);
    std::byte* to = out.data() + at;
    if (dtype == part.dtype) {
      std::memcpy(to, from, row_bytes(part));
    } else if (dtype != DType::kI8) {
      for (int64_t i = 0; i < part.cols; ++i) store_element(to, dtype, i, load_element(from, part.dtype, i));
    } else {
      float largest = 0;
      for (int64_t i = 0; i < part.cols; ++i) largest = std::max(largest, std::fabs(load_element(from, part.dtype, i)));
      const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
      for (int64_t i = 0; i < part.cols; ++i) {
        const long code = std::lrintf(load_element(from, part.dtype, i) * inverse);
        reinterpret_cast<int8_t*>(to)[i] = static_cast<int8_t>(std::clamp(code, -127l, 127l));
      }
      scale.push_back(largest / 127.0f);
    }
  }
}

uint64_t fingerprint(const HostMatrix& table) {
  uint64_t hash = 0;
  const size_t bytes = row_bytes(table);
  for (int64_t sample = 0; sample < 8; ++sample) {
    const std::byte* row = table.data + static_cast<size_t>(table.rows * sample / 8) * bytes;
    hash = hash_bytes(std::span(row, std::min<size_t>(bytes, 64)), hash);
  }
  return hash;
}

}  // namespace

CudaBackend::CudaBackend(const BackendOptions& options)
    : context_(options.device), operand_(operand_format(options.operands)) {
  tensor_cores_ = context_.capability() >= kTensorCapability && operand_ != DType::kF32;
  if (tensor_cores_) prepare_gemm_mma();
  if (options.gemm != "own") cublas_ = std::make_unique<Cublas>(stream_.get(), options.gemm == "cublas-tf32");
  counters_ = DeviceMemory(kMaxCounters * sizeof(DeviceCounters));
  counter_result_ = PinnedMemory(kMaxCounters * sizeof(DeviceCounters));
  BAM_CUDA(cudaMemsetAsync(counters_.data(), 0, counters_.size(), stream_.get()));
}

CudaBackend::~CudaBackend() {
  const auto device = context_.enter();
  graph_.abandon();
  (void)cudaStreamSynchronize(stream_.get());
  cublas_.reset();  // while its device is current
}

std::string CudaBackend::kind() const {
  return fmt::format("({}, compute capability {}.{}, {} multiprocessors, {} operands{}{})", context_.name(),
                     context_.capability() / 10, context_.capability() % 10, context_.multiprocessors(),
                     dtype_name(operand_), tensor_cores_ ? " on tensor cores" : "",
                     cublas_ ? ", " + cublas_->description() : "");
}

size_t CudaBackend::free_memory_bytes() const {
  const auto device = context_.enter();
  size_t free = 0, total = 0;
  BAM_CUDA(cudaMemGetInfo(&free, &total));
  return free;
}

void CudaBackend::flush() {
  if (!graph_.recording()) return;
  staging_.send(stream_.get());
  graph_.finish(stream_.get());
}

void CudaBackend::send(const Staging::Slice& slice, size_t bytes) {
  if (graph_.recording()) return;
  BAM_CUDA(cudaMemcpyAsync(slice.device, slice.host, bytes, cudaMemcpyHostToDevice, stream_.get()));
}

void CudaBackend::synchronize() {
  flush();
  BAM_CUDA(cudaStreamSynchronize(stream_.get()));
  forget_step();
}

void CudaBackend::forget_step() {
  uploads_.reset();
  staging_.reset();
  tables_.clear();
  retired_.clear();
  for (Scratch* scratch : {&slots_, &masks_, &lists_, &list_sizes_, &seeds_, &left_out_, &quantised_, &quantised_scale_,
                           &products_, &converted_, &draw_work_, &drawn_, &patch_memory_}) {
    scratch->reset();
  }
}

CudaBuffer::~CudaBuffer() { backend.settle(); }
CudaLinear::~CudaLinear() { backend.settle(); }

void CudaBackend::abandon_step() noexcept {
  const auto device = context_.enter();
  graph_.abandon();
  // Changes of tables may have been recorded and never applied.
  for (auto& [id, table] : resident_) retired_.push_back(std::move(table.memory));
  resident_.clear();
  resident_bytes_ = 0;
  // What was issued before the failure still runs; its inputs must stay until then.
  if (cudaStreamSynchronize(stream_.get()) == cudaSuccess) forget_step();
  (void)cudaGetLastError();
}

void CudaBackend::settle() noexcept {
  const auto device = context_.enter();
  if (!graph_.recording()) return;
  try {
    synchronize();
  } catch (const std::exception& error) {
    log::error("{}", error.what());
  }
}

void CudaBackend::copy_in(const DeviceMemory& to, const void* from) {
  flush();  // what was recorded comes first
  uploads_.copy(to.data(), from, to.size(), stream_.get());
}

std::unique_ptr<DeviceBuffer> CudaBackend::allocate(size_t bytes) {
  const auto device = context_.enter();
  return std::make_unique<CudaBuffer>(*this, bytes);
}

std::unique_ptr<LinearWeights> CudaBackend::make_linear(std::span<const HostMatrix> parts, DType weight_dtype) {
  const auto device = context_.enter();
  auto linear = std::make_unique<CudaLinear>(*this);
  linear->k = parts.front().cols;
  // Tensor cores multiply numbers of one format: weights take that of the operands.
  linear->dtype = weight_dtype == DType::kI8 || operand_ == DType::kF32 ? weight_dtype : operand_;
  linear->ldk = weight_dtype == DType::kI8 ? (linear->k + 31) / 32 * 32 : linear->k;
  std::vector<std::byte> packed;
  std::vector<float> scale;
  for (const HostMatrix& part : parts) {
    BAM_CHECK(part.cols == linear->k);
    linear->n += part.rows;
  }
  packed.reserve(static_cast<size_t>(linear->n * linear->ldk) * dtype_bits(linear->dtype) / 8);
  for (const HostMatrix& part : parts) pack_rows(part, linear->dtype, linear->ldk, packed, scale);
  linear->weights = DeviceMemory(packed.size());
  copy_in(linear->weights, packed.data());
  if (!scale.empty()) {
    linear->scale = DeviceMemory(scale.size() * sizeof(float));
    copy_in(linear->scale, scale.data());
  }
  return linear;
}

std::unique_ptr<DeviceBuffer> CudaBackend::make_vector(std::span<const float> values) {
  const auto device = context_.enter();
  auto buffer = std::make_unique<CudaBuffer>(*this, values.size_bytes());
  copy_in(buffer->memory, values.data());
  return buffer;
}

const void* CudaBackend::embedding_on_device(const HostMatrix& table) {
  const uint64_t print = fingerprint(table);
  for (const Embedding& known : embeddings_) {
    if (known.source.data == table.data && known.source.rows == table.rows && known.source.cols == table.cols &&
        known.source.dtype == table.dtype && known.fingerprint == print) {
      return known.memory.data();
    }
  }
  const auto gone = std::find_if(embeddings_.begin(), embeddings_.end(),
                                 [&](const Embedding& known) { return known.source.data == table.data; });
  if (gone != embeddings_.end() || embeddings_.size() >= kMaxEmbeddings) {
    synchronize();  // kernels may still read what is dropped here
    embeddings_.erase(gone != embeddings_.end() ? gone : embeddings_.begin());
  }
  Embedding next{table, print, DeviceMemory(static_cast<size_t>(table.rows) * row_bytes(table))};
  copy_in(next.memory, table.data);
  embeddings_.push_back(std::move(next));  // only once it is there
  return embeddings_.back().memory.data();
}

void CudaBackend::begin_rows() {
  flush();  // of a step that nobody read
  if (staging_.outstanding_bytes() > kMaxStagedBytes) synchronize();
  tables_.clear();  // a new step: block tables have changed
  refreshed_ = false;
  ++steps_;
}

// The rows are as large as the results of a step: such steps are not recorded as graphs.
void CudaBackend::do_load_rows(std::span<const float> host, FloatRows x) {
  const auto device = context_.enter();
  begin_rows();
  uploads_.copy(x.data, host.data(), host.size_bytes(), stream_.get());
}

void CudaBackend::do_load_rows_on_device(ConstFloatRows rows, FloatRows x) {
  const auto device = context_.enter();
  begin_rows();
  const auto bytes = static_cast<size_t>(rows.size()) * sizeof(float);
  BAM_CUDA(cudaMemcpyAsync(x.data, rows.data, bytes, cudaMemcpyDeviceToDevice, stream_.get()));
  BAM_CUDA(cudaEventSynchronize(step_end()));  // a step without logits ends without waiting
}

void CudaBackend::do_embed(const HostMatrix& table, std::span<const int32_t> tokens, FloatRows x) {
  const auto device = context_.enter();
  begin_rows();
  const void* rows = embedding_on_device(table);
  const auto count = static_cast<int64_t>(tokens.size());
  if (count <= kMaxGraphRows) {
    staging_.begin();
    graph_.begin();
  }
  embed_rows(rows, table.dtype, upload(tokens), x, queue());
}

// By how much the angle of every dim advances per position, in units of 2^-64 turns.
const unsigned long long* CudaBackend::sinusoidal_turns(double theta, int64_t hidden) {
  DeviceMemory& memory = turns_[{theta, hidden}];
  if (memory.size() == 0) {
    std::vector<unsigned long long> turns;
    for (int64_t d = 0; d < hidden; ++d) {
      const long double angle = std::exp(-std::log(static_cast<long double>(theta)) * static_cast<long double>(d) /
                                         static_cast<long double>(hidden));
      const long double of_position = angle / (2 * std::numbers::pi_v<long double>);
      turns.push_back(static_cast<unsigned long long>((of_position - std::floor(of_position)) * 0x1p64L));
    }
    DeviceMemory next(turns.size() * sizeof(turns[0]));
    copy_in(next, turns.data());
    memory = std::move(next);  // only once it is there
  }
  return memory.as<unsigned long long>();
}

void CudaBackend::do_add_sinusoidal(std::span<const SequenceRows> sequences, double theta, FloatRows x) {
  const auto device = context_.enter();
  const unsigned long long* turns = sinusoidal_turns(theta, x.width);
  for (const SequenceRows& seq : sequences) {
    std::vector<int32_t> positions(static_cast<size_t>(seq.num_rows));
    for (int64_t r = 0; r < seq.num_rows; ++r)
      positions[static_cast<size_t>(r)] = static_cast<int32_t>(seq.start_pos + r);
    add_sinusoidal_rows(upload(std::span<const int32_t>(positions)), turns, x.slice(seq.row_begin, seq.num_rows),
                        queue());
  }
}

void CudaBackend::do_rms_norm(ConstFloatRows x, const DeviceBuffer& weight, float eps, OperandRows out) {
  const auto device = context_.enter();
  if (x.count == 0) return;
  rms_norm_rows(x, static_cast<const CudaBuffer&>(weight).memory.as<float>(), eps, operand_, out, queue());
}

void CudaBackend::do_swiglu(ConstOperandRows in, OperandRows out) {
  const auto device = context_.enter();
  if (in.count == 0) return;
  swiglu_rows(operand_, in, out, queue());
}

void CudaBackend::do_linear(const LinearWeights& weights, ConstOperandRows in, OperandRows out) {
  gemm(weights, in, out, GemmOutput::kOperand);
}

void CudaBackend::do_linear_add(const LinearWeights& weights, ConstOperandRows in, FloatRows residual) {
  gemm(weights, in, {residual.data, residual.count, residual.width}, GemmOutput::kAddFloat);
}

void CudaBackend::do_linear_logits(const LinearWeights& weights, ConstOperandRows in, FloatRows logits) {
  gemm(weights, in, {logits.data, logits.count, logits.width}, GemmOutput::kFloat);
}

void CudaBackend::gemm(const LinearWeights& weights, ConstOperandRows in, OperandRows out, GemmOutput output) {
  const auto device = context_.enter();
  const int64_t rows = in.count;
  if (rows == 0) return;
  const auto& linear = static_cast<const CudaLinear&>(weights);
  GemmArgs args{.x = in.data,
                .w = linear.weights.data(),
                .rows = rows,
                .k = linear.k,
                .n = linear.n,
                .ldk = linear.ldk,
                .operand = operand_,
                .weight = linear.dtype,
                .out = out.data,
                .output = output};
  if (linear.dtype == DType::kI8) {
    auto* codes = quantised_.reserve<int8_t>(static_cast<size_t>(rows * linear.ldk));
    auto* scale = quantised_scale_.reserve<float>(static_cast<size_t>(rows));
    quantize_rows(operand_, in, {codes, rows, linear.ldk}, scale, queue());
    args.x = codes;
    args.x_scale = scale;
    args.w_scale = linear.scale.as<float>();
  }
  if (cublas_ && Cublas::supports(args)) {
    int32_t* products =
        linear.dtype == DType::kI8 ? products_.reserve<int32_t>(static_cast<size_t>(rows * linear.n)) : nullptr;
    return cublas_->multiply(args, products, queue());
  }
  // The choice depends on the layer only, never on the number of rows.
  const bool aligned = linear.dtype == DType::kI8 || linear.ldk % 8 == 0;
  if (tensor_cores_ && aligned) {
    gemm_mma(args, queue());
  } else {
    gemm_plain(args, queue());
  }
}

void CudaBackend::do_gather_rows(ConstFloatRows in, std::span<const int32_t> rows, FloatRows out) {
  const auto device = context_.enter();
  if (rows.empty()) return;
  gather_float_rows(in, upload(rows), out, queue());
}

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options) {
  return std::make_unique<CudaBackend>(options);
}

}  // namespace bam::cuda
