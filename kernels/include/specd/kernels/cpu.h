// The CPU backend: ops per instruction set, selected at run time, on a pool of worker threads.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "specd/kernels/ops.h"

namespace specd::kernels {

enum class Isa : uint8_t { kScalar, kAvx2, kAvx512 };

// The best instruction set that this processor can run.
Isa best_isa();
bool isa_available(Isa isa);
const char* isa_name(Isa isa);

// REQUIRES isa_available(isa). The table is static.
const Ops& cpu_ops(Isa isa);

// The AVX-512 ops with another matmul for bfloat16 weights: x is rounded to bfloat16 (to nearest
// even, denormals to zero), and VDPBF16PS multiplies and adds pairs of k, in the order of matmul.h
// with pairs in place of single k. The bits of a row still do not depend on other rows. How the
// two products of a pair are added is up to the processor, so another processor model may give
// other bits.
bool bf16_available();
// REQUIRES bf16_available(). The table is static.
const Ops& cpu_bf16_ops();

// A fixed team of threads that runs one task at a time. Between tasks workers spin briefly (a step
// is a series of ops a few microseconds apart), then sleep.
class WorkerPool {
 public:
  using Task = void (*)(void* ctx, int part, int parts);

  // n_threads >= 1 includes the caller: n_threads - 1 threads are started. Throws std::system_error
  // when there can be no more threads.
  explicit WorkerPool(int n_threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int n_threads() const { return n_threads_; }

  // Calls task(ctx, part, n_threads) once for every part and returns when all are done. Parts run
  // concurrently, or one after the other on the caller when a worker is late, so a task must not
  // wait for another part. One call at a time; not reentrant.
  void run(Task task, void* ctx);

 private:
  struct State;
  void join();

  int n_threads_;
  std::unique_ptr<State> state_;
  std::vector<std::thread> threads_;
};

// A stream whose work completes immediately.
class CpuStream final : public Stream {
 public:
  explicit CpuStream(WorkerPool& pool) : pool_(pool) {}
  WorkerPool& pool() { return pool_; }

 private:
  WorkerPool& pool_;
};

}  // namespace specd::kernels
