// Executes CUDA kernels on a processor. translate.py turns a .cu file into C++ that calls this
// header; include/ has what such a file includes.
//
// The threads of a block are fibers, which only change at a barrier. Blocks, threads and streams
// run in an order drawn from a seed. Whoever breaks a rule of CUDA gets a report on standard error,
// which names kernel, block, thread and line; its stream then fails as on a device, with the error
// that cudaStreamSynchronize() returns from then on until cudaDeviceReset().
//
// Environment: SPECD_EMULATED_CUDA, words separated by commas, read once:
//   seed=N            the order; the clock when absent
//   devices=N         default 1; they have one memory
//   bytes=N           device memory, default 16 GiB
//   multiprocessors=N default 4
//   architecture=N    80, 90 or 100: launch limits and what the device says; default 90
//   mma_order=N       0 or 1, see include/kernels/cuda/ptx.cuh; default 0
//   seconds=N         a launch that takes longer ends the process with a report; default 300
//
// Rules that are checked:
//   * Launches: grid, block and shared memory within the limits of the architecture and of
//     __launch_bounds__.
//   * Barriers: __syncthreads() is reached by every thread of the block at the same line; a warp's
//     collective by every lane of the same mask at the same line. A thread that has returned reaches
//     nothing.
//   * Memory, where translated code is compiled with -fsanitize=thread,alignment (its calls end here,
//     not in those sanitizers): every access is aligned, inside live device memory or shared memory,
//     and reads nothing that nobody has written. Shared memory starts each block as noise.
//   * Races: two accesses to the same byte, one of them a write and not both atomic, by threads of one
//     block without a barrier in between, or, for device memory, by two blocks of a launch. Only the
//     last accesses to a byte are remembered, and for device memory only writes: with the order of
//     the seed an error may go unseen in one run, but nothing right is reported.
//   * Asynchronous copies: nobody reads or writes what is on its way, nor changes its source. Its bytes
//     are there for the thread that waited, and for others after a barrier; they arrive as late as
//     possible. A thread waits for all of its own before it ends.
//   * More than 48 KiB of shared memory: somebody has asked for it with cudaFuncSetAttribute(), for this
//     kernel if cudaLaunchKernelEx() launches it, and it fits beside the block's variables.
//   * A launch that may start early: until a thread has waited for the kernels before it, it writes no device
//     memory and reads nothing that a kernel wrote since somebody waited for the stream. Every thread
//     waits.
//
//   * Work is submitted to a stream by a thread whose current device is the stream's.
//
// Not emulated: the memory model across blocks (fences), clusters, streams other than those
// created, whose device memory is, speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#include "tests/device/emulated/where.h"

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned in_x = 1, unsigned in_y = 1, unsigned in_z = 1)
      : x(in_x), y(in_y), z(in_z) {}
};
struct EmulatedStream;
using cudaStream_t = EmulatedStream*;

namespace specd::emulated {

constexpr int kWarp = 32;

// Of the thread that runs now.
struct Coordinates {
  uint3 thread, block;
  dim3 block_size, grid;
};
extern Coordinates now;

// ---- launches ----------------------------------------------------------------------------------

struct Launch {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
  Where where;
  const void* kernel = nullptr;  // its function, where it is known
  bool early = false;            // may start before the kernels before it have completed

  Launch(dim3 in_grid, dim3 in_block, size_t in_shared_bytes = 0, cudaStream_t in_stream = nullptr,
         Where in_where = Where::current())
      : grid(in_grid),
        block(in_block),
        shared_bytes(in_shared_bytes),
        stream(in_stream),
        where(in_where) {}
};

void enqueue_kernel(const char* name, const Launch& launch, std::function<void()> thread);
// Anything else that a stream does, in its order; fails the stream when it returns an error. kWaits: it waits
// for another stream, perhaps of another thread or process, and is called again.
void enqueue(cudaStream_t stream, std::function<int()> work);
constexpr int kWaits = -1;
// Of the stream.
int device_of(cudaStream_t stream);
// What cudaSetDevice() has set for this thread.
int current_device();

template <typename Kernel, typename... Args>
void launch(const char* name, const Kernel& kernel, const Launch& how, Args... args) {
  enqueue_kernel(name, how,
                 [kernel, values = std::tuple<Args...>(args...)] { std::apply(kernel, values); });
}

// First statement of every translated kernel. threads_max: of __launch_bounds__, 0 without.
void enter_kernel(const char* name, int threads_max);

// Ends the thread and its launch.
[[noreturn]] void fail(const char* what, Where where = Where::current());

// ---- shared memory -----------------------------------------------------------------------------

// The address of a __shared__ variable, the same for all threads of a block. key: its name and line in
// the source, by address.
void* shared_at(const char* key, size_t bytes, size_t align);
template <typename T>
T& shared(const char* key) {
  return *static_cast<T*>(shared_at(key, sizeof(T), alignof(T)));
}
void* dynamic_shared();

// ---- barriers ----------------------------------------------------------------------------------

// Waits for every thread of the block; returns the number of those with a predicate.
int block_barrier(int predicate, Where where);

// Waits for every lane of the mask. The last one to arrive calls `together` with the arguments of
// all lanes, null for those outside of the mask; the others see what it wrote. `what` names the
// instruction. orders: whether memory accesses before it are seen after it.
using Together = void (*)(void* const lanes[kWarp], const void* context);
void warp_barrier(const char* what, uint32_t mask, void* mine, Together together,
                  const void* context, bool orders, Where where);

// Of mma.sync, see ptx.cuh.
extern int mma_order;

// ---- memory ------------------------------------------------------------------------------------

// Copies of up to 16 bytes into shared memory, which arrive when this thread waits.
constexpr size_t kCopyBytesMax = 16;
void copy_async(void* to, const void* from, size_t bytes, Where where);
void commit_copies();               // ends a group
void wait_for_groups(int pending);  // for all groups but the last ones
void wait_for_copies();

// Of a launch that is early, which has no order with the kernels before it until then.
void wait_for_previous();

// Checks an access that the compiler does not see as one.
void touch(const void* data, size_t bytes, bool write, bool atomic, Where where);

// For the work of a library in a stream: false, with a report, when the bytes are not in one block of
// device memory. Written bytes count as defined.
bool use(const char* call, const void* data, size_t bytes, bool write);

}  // namespace specd::emulated
