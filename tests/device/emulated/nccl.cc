// libnccl for the emulator: what kernels/cuda/nccl.h has of it, over strict_nccl. A communicator belongs to the
// device that was current when it joined.
#include "kernels/cuda/nccl.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/device/emulated/include/cuda_runtime.h"
#include "tests/device/strict_nccl/group.h"

using specd::kernels::cuda::nccl::UniqueId;
using specd::strict_nccl::Operation;

// As it is declared where it is used: a sanitizer compares the types of functions.
struct specd::kernels::cuda::nccl::Communicator {
  std::shared_ptr<specd::strict_nccl::Rank> rank;
  int n_ranks = 0, number = 0, device = 0;
};
using ncclComm = specd::kernels::cuda::nccl::Communicator;

namespace {

constexpr int kSuccess = 0, kSystemError = 2, kInternalError = 3, kInvalidArgument = 4,
              kInvalidUsage = 5, kRemoteError = 6;
thread_local std::string t_last;

int said(int result, const std::string& why) {
  t_last = why;
  return result;
}

// Between ncclGroupStart() and ncclGroupEnd() of this thread.
struct Group {
  int depth = 0;
  ncclComm* comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Operation> operations;
};
thread_local Group t_group;

bool is_in_device_memory(const Operation& each, int n_ranks) {
  const uint64_t all = each.kind == Operation::Kind::kAllGather
                           ? each.bytes * static_cast<uint64_t>(n_ranks)
                           : each.bytes;
  return (each.from == nullptr || specd::emulated::use("NCCL", each.from, each.bytes, false)) &&
         (each.to == nullptr || specd::emulated::use("NCCL", each.to, all, true));
}

void enqueue(ncclComm& comm, cudaStream_t stream, std::vector<Operation> operations) {
  specd::emulated::enqueue(
      stream,
      [rank = comm.rank, n_ranks = comm.n_ranks, operations = std::move(operations)]() -> int {
        using State = specd::strict_nccl::Rank::State;
        if (rank->is_aborted()) return cudaSuccess;
        for (const Operation& each : operations) {
          if (!is_in_device_memory(each, n_ranks)) return cudaErrorIllegalAddress;
        }
        const State state = rank->advance(operations);
        if (state == State::kWaits) return specd::emulated::kWaits;
        return state == State::kDone ? cudaSuccess : cudaErrorLaunchFailure;
      });
}

int submit(Operation operation, ncclComm* comm, cudaStream_t stream) {
  constexpr int kTypes = 12;
  static constexpr int kTypeBytes[kTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  if (comm == nullptr || operation.type < 0 || operation.type >= kTypes || operation.other < 0 ||
      operation.other >= comm->n_ranks) {
    return said(kInvalidArgument, "a communicator, type or rank that is not there");
  }
  if (specd::emulated::device_of(stream) != comm->device ||
      specd::emulated::current_device() != comm->device) {
    return said(kInvalidUsage, "a stream or current device that is not the communicator's");
  }
  operation.bytes = operation.count * static_cast<uint64_t>(kTypeBytes[operation.type]);
  if (t_group.depth == 0) {
    enqueue(*comm, stream, {operation});
    return kSuccess;
  }
  if (!t_group.operations.empty() && (t_group.comm != comm || t_group.stream != stream)) {
    return said(kInvalidUsage, "two communicators or streams in a group");
  }
  t_group.comm = comm;
  t_group.stream = stream;
  t_group.operations.push_back(operation);
  return kSuccess;
}

}  // namespace

#define SPECD_NCCL extern "C" __attribute__((visibility("default")))

SPECD_NCCL int ncclGetUniqueId(UniqueId* id) {
  specd::strict_nccl::GroupId made;
  std::string why;
  if (!specd::strict_nccl::make_group(made, why)) return said(kSystemError, why);
  std::memcpy(id->internal, made.bytes, sizeof(id->internal));
  return kSuccess;
}

SPECD_NCCL int ncclCommInitRank(ncclComm** comm, int n_ranks, UniqueId id, int rank) {
  specd::strict_nccl::GroupId group;
  std::memcpy(group.bytes, id.internal, sizeof(group.bytes));
  std::string why;
  const int device = specd::emulated::current_device();
  // Like NCCL's, waits whoever has lost interest.
  auto joined = specd::strict_nccl::Rank::join(
      group, rank, n_ranks, "cuda:" + std::to_string(device), [] { return true; }, why);
  if (joined == nullptr) {
    return said(why == specd::strict_nccl::kOtherFailed ? kRemoteError : kInvalidUsage, why);
  }
  *comm = new ncclComm{std::move(joined), n_ranks, rank, device};
  return kSuccess;
}

// Like NCCL's, waits until no graph and no stream has anything of the communicator.
SPECD_NCCL int ncclCommAbort(ncclComm* comm) {
  comm->rank->abort();
  while (comm->rank.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  delete comm;
  return kSuccess;
}

SPECD_NCCL int ncclCommGetAsyncError(ncclComm* comm, int* error) {
  const std::string why = comm->rank->failure();
  *error = why.empty() ? kSuccess : said(kInternalError, why);
  return kSuccess;
}

SPECD_NCCL const char* ncclGetErrorString(int result) {
  static constexpr const char* kWords[] = {"no error",         "unhandled cuda error",
                                           "system error",     "internal error",
                                           "invalid argument", "invalid usage"};
  return result >= 0 && result < 6 ? kWords[result] : "unknown result code";
}
SPECD_NCCL const char* ncclGetLastError(ncclComm*) { return t_last.c_str(); }

SPECD_NCCL int ncclAllGather(const void* from, void* to, size_t count, int type, ncclComm* comm,
                             cudaStream_t stream) {
  return submit(
      {.kind = Operation::Kind::kAllGather, .from = from, .to = to, .count = count, .type = type},
      comm, stream);
}
SPECD_NCCL int ncclBroadcast(const void* from, void* to, size_t count, int type, int root,
                             ncclComm* comm, cudaStream_t stream) {
  return submit({.kind = Operation::Kind::kBroadcast,
                 .from = from,
                 .to = to,
                 .count = count,
                 .type = type,
                 .other = root},
                comm, stream);
}
SPECD_NCCL int ncclSend(const void* from, size_t count, int type, int to, ncclComm* comm,
                        cudaStream_t stream) {
  return submit(
      {.kind = Operation::Kind::kSend, .from = from, .count = count, .type = type, .other = to},
      comm, stream);
}
SPECD_NCCL int ncclRecv(void* to, size_t count, int type, int from, ncclComm* comm,
                        cudaStream_t stream) {
  return submit(
      {.kind = Operation::Kind::kReceive, .to = to, .count = count, .type = type, .other = from},
      comm, stream);
}

SPECD_NCCL int ncclGroupStart() {
  ++t_group.depth;
  return kSuccess;
}
SPECD_NCCL int ncclGroupEnd() {
  if (t_group.depth == 0) return said(kInvalidUsage, "a group that was not started");
  if (--t_group.depth > 0 || t_group.operations.empty()) return kSuccess;
  enqueue(*t_group.comm, t_group.stream, std::exchange(t_group.operations, {}));
  return kSuccess;
}
