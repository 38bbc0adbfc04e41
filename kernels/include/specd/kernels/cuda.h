// The CUDA backend. It lives in a library of its own, libspecd_cuda, which is loaded only where a
// driver answers: one binary serves every machine, and nothing else of the project links CUDA.
//
// Its ops follow the contract of ops.h with these differences:
//   * Pointers are device memory, aligned to their elements, but for PackArgs::source, which is
//     host memory. At most 65535 rows. Positions below CudaLimits::positions_max.
//   * Strict means: for this device. Every output element is one fixed sequence of operations for
//     any number of rows; which one, the file of the op says. matmul over bfloat16, attention,
//     rmsnorm, rope_table and log_prob have other bits than the CPU's; the rest has the same, but
//     for the payload of a NaN.
//   * Nothing waits but pack() and copies of host memory that is not pinned. A failure shows in
//     CudaDevice::synchronize().
//
// Built together with who loads it; `build` is compared first.
#pragma once

#include <cstdint>

#include "specd/kernels/ops.h"

namespace specd::kernels {

// Changes with every change of this file.
inline constexpr char kCudaBuild[] = "specd-cuda-5";

// What went wrong, in words: what, need, have.
struct CudaProblem {
  char text[512] = {};
};

struct CudaDeviceInfo {
  int32_t index = 0;
  char name[256] = {};
  int32_t major = 0, minor = 0;  // compute capability
  int32_t multiprocessors = 0;
  uint64_t total_bytes = 0, free_bytes = 0;  // free: once it was opened
};

// What the scratch memory of the ops is made for. More rows of a matmul are computed in pieces.
struct CudaLimits {
  int32_t rows_max = 512;
  int32_t width_max = 16384;     // largest n_in
  int32_t positions_max = 8192;  // context
  bool fast = false;             // matmuls over bfloat16 by cuBLASLt: not strict
};

// One device with one stream. [any] thread, one call at a time; memory is made and released beside
// other calls as well.
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
  // Host memory that copies do not wait for.
  virtual void* allocate_pinned(uint64_t bytes, CudaProblem& problem) = 0;
  virtual void release_pinned(void* data) = 0;

  // In stream order. Pinned host memory must live until the stream has passed; other host memory is
  // read or written before the call returns.
  virtual void copy_in(void* device, const void* host, uint64_t bytes) = 0;
  virtual void copy_out(void* host, const void* device, uint64_t bytes) = 0;

  // Between these, ops and copies are recorded instead of run. end_capture() gives a graph of
  // them, or -1 when one failed; a graph lives until release_graph(). In a capture nothing is
  // packed, and host memory is pinned and outlives the graph.
  virtual bool begin_capture(CudaProblem& problem) = 0;
  virtual int32_t end_capture(CudaProblem& problem) = 0;
  virtual void launch(int32_t graph) = 0;
  // Its number may be given again. REQUIRES that the stream has passed its last launch.
  virtual void release_graph(int32_t graph) = 0;

  // Waits for all that was submitted. False: something failed since the last call; after a fault of
  // a kernel every later call fails as well, and only the end of the process helps.
  virtual bool synchronize(CudaProblem& problem) = 0;
  // Nanoseconds of device time between two marks in the stream; waits for the second.
  virtual void mark(int32_t which) = 0;  // 0 or 1
  virtual uint64_t elapsed_ns() = 0;
};

struct CudaLibrary {
  const char* build;
  uint64_t ops_bytes;  // sizeof(Ops)
  // Devices that the driver shows; -1 and the reason when there is no driver or it is too old.
  int32_t (*count)(CudaProblem& problem);
  // Null and the reason: no such device, an architecture that has no code here, too little memory.
  CudaDevice* (*open)(int32_t index, const CudaLimits& limits, CudaProblem& problem);
};

// The symbol that the library exports.
inline constexpr char kCudaSymbol[] = "specd_cuda_library";
using CudaLibraryFn = const CudaLibrary* (*)();

}  // namespace specd::kernels
