// The CUDA backend. It is a separate library, libspecd_cuda, loaded only when a driver is present:
// one binary serves every machine, and nothing else in the project links CUDA.
//
// Its ops follow the contract of ops.h with these differences:
//   * Pointers are device memory, aligned to their elements, except those of PackArgs to what is packed, which
//     are host memory. At most 65535 rows. Positions below CudaLimits::positions_max.
//   * A matmul of codes needs no MatmulArgs::scratch.
//   * "Strict" holds per device. Every output element is one fixed sequence of operations for any
//     number of rows, stated in the op's file. matmul over bfloat16, attention, rmsnorm, rope_table
//     and log_prob differ in bits from the CPU; the others agree, except for the payload of a NaN.
//   * Only pack() and copies of unpinned host memory wait. Failures are reported by
//     CudaDevice::synchronize().
//
// The library and its loader are built together; the loader compares `build` first.
#pragma once

#include <cstdint>

#include "specd/kernels/ops.h"

namespace specd::kernels {

// Must change whenever a declaration in this file changes.
inline constexpr char kCudaBuild[] = "specd-cuda-17";

// What went wrong, as text: what, need, have.
struct CudaProblem {
  char text[512] = {};
};

struct CudaDeviceInfo {
  int32_t index = 0;
  char name[256] = {};
  int32_t major = 0, minor = 0;  // compute capability
  int32_t multiprocessors = 0;
  uint64_t total_bytes = 0, free_bytes = 0;  // free: at the time it was opened
  uint64_t scratch_bytes = 0;                // of device memory, for its ops
};

// Sizes for the scratch memory of the ops. A matmul with more rows is computed in pieces, and so are a
// pack() of more bytes and attention that joins parts; no piece changes a bit.
struct CudaLimits {
  int32_t rows_max = 512;
  int32_t width_max = 16384;                     // the largest n_in
  int32_t positions_max = 8192;                  // the context
  uint64_t scratch_bytes = uint64_t{128} << 20;  // more if rows_max and width_max need it
  bool fast = false;                             // matmuls over bfloat16 and E4M3FN: not strict
};

// What one rank makes, and all ranks of a group join with (ncclUniqueId).
struct CudaGroupId {
  char bytes[128] = {};
};

// Says how long to wait for other ranks.
class CudaWait {
 public:
  virtual ~CudaWait() = default;
  virtual bool goes_on() = 0;
};

// This rank's end of a group of ranks with a device each, by NCCL. Exchanges are as in
// core/device/collective.h, between device memory, in the order of the device's stream, and may be captured.
// One that fails makes the stream fail.
class CudaRank {
 public:
  // Aborts, and waits for that. REQUIRES that no graph with an exchange is left.
  virtual ~CudaRank() = default;

  virtual void all_gather(void* data, uint64_t bytes) = 0;
  virtual void gather(const void* part, void* parts, uint64_t bytes, int32_t root) = 0;
  virtual void broadcast(void* data, uint64_t bytes, int32_t root) = 0;
  virtual void send(const void* data, uint64_t bytes, int32_t to) = 0;
  virtual void receive(void* data, uint64_t bytes, int32_t from) = 0;

  // False: an exchange under way has failed, and why.
  virtual bool check(CudaProblem& problem) = 0;
  // Ends the exchanges under way, so that the stream can finish, and does not wait. There are none after it.
  virtual void abort() = 0;
};

// One device with one stream. [any] thread, one call at a time; memory may be allocated and
// released concurrently with other calls.
class CudaDevice {
 public:
  virtual ~CudaDevice() = default;  // waits for the stream

  virtual const CudaDeviceInfo& info() const = 0;
  virtual const Ops& ops() const = 0;
  virtual Stream& stream() = 0;
  virtual void* native_stream() = 0;  // cudaStream_t

  // Device memory, zero-filled, aligned to 256 bytes; null and the reason when there is too little.
  virtual void* allocate(uint64_t bytes, CudaProblem& problem) = 0;
  virtual void release(void* data) = 0;
  // Pinned host memory, for copies that do not wait.
  virtual void* allocate_pinned(uint64_t bytes, CudaProblem& problem) = 0;
  virtual void release_pinned(void* data) = 0;

  // Copies in stream order. Pinned host memory must stay valid until the stream has used it; other
  // host memory is read or written before the call returns.
  virtual void copy_in(void* device, const void* host, uint64_t bytes) = 0;
  virtual void copy_out(void* host, const void* device, uint64_t bytes) = 0;

  // Between these, ops and copies are recorded instead of being run. end_capture() returns a graph
  // of them, or -1 when one failed; a graph lives until release_graph(). A capture must not call
  // pack() or use unpinned host memory, and the memory must outlive the graph.
  virtual bool begin_capture(CudaProblem& problem) = 0;
  virtual int32_t end_capture(CudaProblem& problem) = 0;
  virtual void launch(int32_t graph) = 0;
  // The number may be reused. REQUIRES that its last launch has completed.
  virtual void release_graph(int32_t graph) = 0;

  // Whether all submitted work has been done, or has failed.
  virtual bool is_done() = 0;
  // Waits for all submitted work. False: something failed since the last call. After a fault in a
  // kernel every later call fails too, until the process ends.
  virtual bool synchronize(CudaProblem& problem) = 0;
  // Joins the group as rank `rank` and waits until all have joined, or until `wait`, asked about every
  // millisecond, does not go on. NCCL then waits without this one, in a thread that it never ends. Null and
  // the reason: no NCCL, a device that is there twice, no way between two of them, not all have joined. The
  // result must not outlive this.
  virtual CudaRank* join(const CudaGroupId& id, int32_t rank, int32_t n_ranks, CudaWait& wait,
                         CudaProblem& problem) = 0;
  // Nanoseconds of device time between two marks in the stream; waits for the second.
  virtual void mark(int32_t which) = 0;  // 0 or 1
  virtual uint64_t elapsed_ns() = 0;
};

struct CudaLibrary {
  const char* build;
  uint64_t ops_bytes;  // sizeof(Ops)
  // Number of devices that the driver lists; -1 and the reason when there is no driver or it is
  // too old.
  int32_t (*count)(CudaProblem& problem);
  // Null and the reason, which names the device, when there is no such device, no code for its
  // architecture, or too little memory. REQUIRES count() >= 0.
  CudaDevice* (*open)(int32_t index, const CudaLimits& limits, CudaProblem& problem);
  // False and the reason: no NCCL. `id` null: only looks for it.
  bool (*make_group)(CudaGroupId* id, CudaProblem& problem);
};

// The symbol exported by the library.
inline constexpr char kCudaSymbol[] = "specd_cuda_library";
using CudaLibraryFn = const CudaLibrary* (*)();

}  // namespace specd::kernels
