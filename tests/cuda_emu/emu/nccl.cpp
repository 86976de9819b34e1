// NCCL between devices of this process: communicators of two ranks that do not block, and transfers in stream order. As
// harsh as the real one may be: nothing is sent ahead of the receiver, a first transfer is being set up until both ends have
// asked for it, and who waits for an end that has given up waits for ever.
#include <nccl.h>

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda_emu/emu/config.h"
#include "tests/cuda_emu/emu/device_memory.h"
#include "tests/cuda_emu/emu/fault.h"
#include "tests/cuda_emu/emu/runtime.h"

namespace cuda_emu {

namespace {

struct Transfer {
  CUstream_st* stream = nullptr;
  void* data = nullptr;
  size_t bytes = 0;
  bool broken = false;    // it will not happen
  bool given_up = false;  // its end has
  bool reached = false;   // by its stream
  bool done = false;
};

struct Boundary {
  std::array<ncclComm*, 2> ends{};
  std::array<bool, 2> joined{};
  std::array<std::vector<std::shared_ptr<Transfer>>, 2> transfers;  // [rank]
  int sender = -1;                                                  // of all transfers
};

std::map<std::string, std::weak_ptr<Boundary>>& boundaries() {
  static std::map<std::string, std::weak_ptr<Boundary>> known;
  return known;
}

// The head of its stream: whether it can be left behind.
bool is_over(Boundary& boundary, int rank, size_t index) {
  Transfer& mine = *boundary.transfers[static_cast<size_t>(rank)][index];
  if (mine.given_up || mine.done) return true;
  mine.reached = true;
  const auto& others = boundary.transfers[static_cast<size_t>(1 - rank)];
  if (mine.broken || index >= others.size()) return false;
  Transfer& other = *others[index];
  if (other.given_up || other.broken) return false;
  if (!other.reached) advance(other.stream);  // a device goes on by itself
  if (!other.reached || mine.done) return mine.done;
  if (mine.bytes != other.bytes) {
    throw Fault(fmt::format("ncclSend and ncclRecv of {} and {} bytes", mine.bytes, other.bytes));
  }
  const DeviceSection section;
  const Transfer& from = rank == boundary.sender ? mine : other;
  std::memcpy((&from == &mine ? other : mine).data, from.data, mine.bytes);
  statistics().transferred_bytes += mine.bytes;
  return mine.done = other.done = true;
}

}  // namespace

}  // namespace cuda_emu

struct ncclComm {
  int rank = 0, device = 0;
  std::shared_ptr<cuda_emu::Boundary> boundary;
  ncclResult_t failure = ncclSuccess;
};

namespace {

using cuda_emu::Boundary;
using cuda_emu::Fault;
using cuda_emu::statistics;
using cuda_emu::Transfer;

template <typename Body>
ncclResult_t nccl_call(Body&& body) {
  const std::lock_guard lock(cuda_emu::api_mutex());
  if (cuda_emu::machine_status() != cudaSuccess || cuda_emu::device_status(cuda_emu::current_device()) != cudaSuccess) {
    return ncclUnhandledCudaError;
  }
  return body();
}

ncclResult_t transfer(void* data, size_t bytes, int peer, ncclComm_t comm, cudaStream_t handle, bool sends) {
  return nccl_call([&] {
    CUstream_st* const stream = cuda_emu::resolve(handle);
    if (comm == nullptr || stream == nullptr || peer != 1 - comm->rank) return ncclInvalidArgument;
    if (stream->device != comm->device || cuda_emu::current_device() != comm->device) {
      throw Fault("a transfer on another device than the communicator's");
    }
    if (!cuda_emu::device_memory().contains(data, bytes) || cuda_emu::device_memory().device_of(data) != comm->device) {
      throw Fault("a transfer of what is not memory of the communicator's device");
    }
    Boundary& boundary = *comm->boundary;
    if (!boundary.joined[0] || !boundary.joined[1]) throw Fault("a transfer before the communicator is ready");
    const int sender = sends ? comm->rank : peer;
    if (boundary.sender >= 0 && boundary.sender != sender) throw Fault("both ends send, or both receive");
    boundary.sender = sender;
    auto& mine = boundary.transfers[static_cast<size_t>(comm->rank)];
    auto next = std::make_shared<Transfer>();
    next->stream = stream;
    next->data = data;
    next->bytes = bytes;
    if (++statistics().transfers == cuda_emu::config().break_at_transfer) {
      next->broken = true;
      comm->failure = ncclSystemError;
    }
    const size_t index = mine.size();
    mine.push_back(next);
    cuda_emu::enqueue(
        stream, {cuda_emu::WorkKind::kExchange, [] {}, nullptr,
                 [boundary = comm->boundary, rank = comm->rank, index] { return is_over(*boundary, rank, index); }});
    return index == 0 ? ncclInProgress : ncclSuccess;
  });
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
  }
  return "unknown result code";
}

ncclResult_t ncclGetVersion(int* version) {
  *version = 22809;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return nccl_call([&] {
    static int number = 0;
    std::memset(id->internal, 0, sizeof id->internal);
    const std::string text = fmt::format("emulated {}", ++number);
    std::memcpy(id->internal, text.data(), text.size());
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return nccl_call([&] {
    if (ranks != 2 || rank < 0 || rank > 1) return ncclInvalidArgument;
    if (config == nullptr || config->blocking != 0) throw Fault("a communicator that blocks is not emulated");
    std::weak_ptr<Boundary>& known = cuda_emu::boundaries()[{id.internal, sizeof id.internal}];
    std::shared_ptr<Boundary> boundary = known.lock();
    if (!boundary) known = boundary = std::make_shared<Boundary>();
    const auto end = static_cast<size_t>(rank);
    if (boundary->joined[end]) throw Fault("two communicators of one rank");
    if (boundary->joined[1 - end] && boundary->ends[1 - end] != nullptr &&
        boundary->ends[1 - end]->device == cuda_emu::current_device()) {
      return ncclInvalidUsage;  // two ranks on one device
    }
    boundary->joined[end] = true;
    *comm = new ncclComm{rank, cuda_emu::current_device(), boundary};
    boundary->ends[end] = *comm;
    ++statistics().communicators;
    return ncclInProgress;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return nccl_call([&] {
    const Boundary& boundary = *comm->boundary;
    const auto issued = [&](int rank) { return boundary.transfers[static_cast<size_t>(rank)].size(); };
    const bool ready = boundary.joined[0] && boundary.joined[1];
    const bool being_set_up = issued(comm->rank) > 0 && issued(1 - comm->rank) == 0;
    *error = comm->failure != ncclSuccess ? comm->failure : !ready || being_set_up ? ncclInProgress : ncclSuccess;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::lock_guard lock(cuda_emu::api_mutex());  // also when the device is broken
  for (const auto& one : comm->boundary->transfers[static_cast<size_t>(comm->rank)]) one->given_up = true;
  comm->boundary->ends[static_cast<size_t>(comm->rank)] = nullptr;
  --statistics().communicators;
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return transfer(const_cast<void*>(data), count * (type == ncclFloat32 ? 4 : 1), peer, comm, stream, true);
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return transfer(data, count * (type == ncclFloat32 ? 4 : 1), peer, comm, stream, false);
}
