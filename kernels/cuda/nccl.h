// What is used of NCCL, declared here so that building needs no NCCL; the names, numbers and types are those
// of nccl.h, the same in every version 2 (tests/kernels/cuda_library_test.cc compares them where there is one).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace specd::kernels::cuda::nccl {

constexpr char kLibrary[] = "libnccl.so.2";

constexpr int kSuccess = 0, kRemoteError = 6, kInProgress = 7;  // ncclResult_t
constexpr int kBytes = 1;                                       // ncclUint8, of ncclDataType_t

struct UniqueId {
  char internal[128];
};
struct Communicator;  // ncclComm_t points to one

struct Calls {
  int (*get_unique_id)(UniqueId*);
  int (*comm_init_rank)(Communicator**, int n_ranks, UniqueId, int rank);
  int (*comm_abort)(Communicator*);
  int (*comm_get_async_error)(Communicator*, int* error);
  const char* (*get_error_string)(int);
  const char* (*get_last_error)(Communicator*);
  int (*all_gather)(const void* part, void* parts, size_t count, int type, Communicator*,
                    cudaStream_t);
  int (*broadcast)(const void* from, void* to, size_t count, int type, int root, Communicator*,
                   cudaStream_t);
  int (*send)(const void*, size_t count, int type, int to, Communicator*, cudaStream_t);
  int (*receive)(void*, size_t count, int type, int from, Communicator*, cudaStream_t);
  int (*group_start)();
  int (*group_end)();
};

}  // namespace specd::kernels::cuda::nccl
