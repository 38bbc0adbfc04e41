// The emulated device of this process: its memory, its streams and what they still have to do.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/device/emulated/block.h"
#include "tests/device/emulated/emulator.h"
#include "tests/device/emulated/include/cuda_runtime.h"
#include "tests/device/emulated/memory.h"

using EmulatedWork = std::function<int()>;  // returns a cudaError_t
struct EmulatedGraph {
  std::vector<EmulatedWork> work;
};
struct EmulatedStream {
  std::deque<EmulatedWork> work;
  EmulatedGraph* capture = nullptr;
  int device = 0;
};
struct EmulatedEvent {
  uint64_t n_recorded = 0, n_done = 0;
  std::chrono::steady_clock::time_point time;
};

namespace specd::emulated {

struct Settings {
  uint64_t seed = 0, bytes = uint64_t{16} << 30;
  int devices = 1, multiprocessors = 4, architecture = 90, seconds = 300;
};

// Bytes of shared memory that a block may have; a multiprocessor has 1 KiB more (CUDA programming guide, "Technical Specifications per Compute Capability").
constexpr size_t shared_max_of(int architecture) {
  return architecture == 80 ? 163 << 10 : 227 << 10;
}
constexpr size_t kUnaskedSharedMax = 48 << 10;

// Every member is guarded by `mutex`, which the one that runs work holds meanwhile.
struct Machine {
  static Machine& get();

  std::mutex mutex;
  const Settings settings;
  Memory memory;
  Block block{memory};
  std::set<EmulatedStream*> streams;
  std::map<const char*, size_t> pinned;  // begin, bytes
  std::minstd_rand random;
  cudaError_t error = cudaSuccess;       // after it the device does nothing more
  uint32_t n_blocks = 0, n_settled = 0;  // that have run; when somebody last waited
  std::map<const void*, size_t> asked;   // bytes of shared memory, by cudaFuncSetAttribute()

  // The most dynamic shared memory that the launch may have; for an unknown kernel the largest of all.
  size_t dynamic_shared_max(const Launch& launch) const;
  // Adds to the stream, or to the graph that it captures.
  cudaError_t submit(cudaStream_t stream, EmulatedWork work);
  // Runs work of all streams in any legal order until this one has none left. While all that is left waits
  // for other threads or processes, the mutex is theirs.
  cudaError_t drain(cudaStream_t stream);
  // The same, but does not wait.
  cudaError_t advance(cudaStream_t stream);
  int run_grid(const char* name, const Launch& launch, const std::function<void()>& thread);

 private:
  Machine();
  void watch();

  std::atomic<int64_t> launch_began_{0};  // ns of the steady clock; 0: no launch runs
};

// Remembered for cudaGetLastError().
void note_error(cudaError_t error);

// Of this thread.
extern thread_local int t_device;

// The block that this thread of the processor runs, or null.
extern __attribute__((tls_model("initial-exec"))) thread_local Block* t_block;

// An access by the thread that runs, if device code runs in this thread of the processor.
[[gnu::always_inline]] inline void access(const void* data, size_t bytes, bool write,
                                          const void* pc) {
  if (t_block == nullptr || !t_block->in_device_code()) return;
  t_block->access(data, bytes, write, false, pc, nullptr);
}
void misaligned(const void* data, unsigned align, const char* file, unsigned line);

}  // namespace specd::emulated
