// The team of threads. A task is published by raising `epoch`; the last worker done lets the caller
// go.
#include <atomic>
#include <chrono>

#include "specd/kernels/cpu.h"

namespace specd::kernels {
namespace {

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Waits until *value differs from `seen`: spins for `spin`, then sleeps. Returns the new value.
uint32_t await_change(const std::atomic<uint32_t>& value, uint32_t seen,
                      std::chrono::nanoseconds spin) {
  uint32_t now = value.load(std::memory_order_acquire);
  if (now != seen) return now;
  const auto start = std::chrono::steady_clock::now();
  while (spin.count() > 0) {
    for (int i = 0; i < 32; ++i) {
      relax();
      now = value.load(std::memory_order_acquire);
      if (now != seen) return now;
    }
    if (std::chrono::steady_clock::now() - start > spin) break;
  }
  do {
    value.wait(seen, std::memory_order_acquire);
    now = value.load(std::memory_order_acquire);
  } while (now == seen);
  return now;
}

}  // namespace

struct WorkerPool::State {
  // Written by the caller before it raises epoch, read by the workers after they saw it raised.
  Task task = nullptr;
  void* ctx = nullptr;
  bool stop = false;
  std::chrono::nanoseconds spin{0};
  // Each on its own cache line: the workers poll one while they write the other.
  alignas(64) std::atomic<uint32_t> epoch{0};
  alignas(64) std::atomic<uint32_t> working{0};  // workers not done yet
  alignas(64) std::atomic<uint32_t> done{0};     // epochs whose workers are all done
};

WorkerPool::WorkerPool(int n_threads) : n_threads_(n_threads), state_(std::make_unique<State>()) {
  State& state = *state_;
  // With more threads than processors a spinning thread keeps from running the one it waits for.
  const unsigned processors = std::thread::hardware_concurrency();
  if (processors == 0 || static_cast<unsigned>(n_threads) <= processors) {
    state.spin = std::chrono::microseconds(50);
  }
  for (int part = 1; part < n_threads; ++part) {
    threads_.emplace_back([&state, part, n_threads] {
      uint32_t seen = 0;
      for (;;) {
        seen = await_change(state.epoch, seen, state.spin);
        if (state.stop) return;
        state.task(state.ctx, part, n_threads);
        if (state.working.fetch_sub(1, std::memory_order_acq_rel) == 1) {
          state.done.store(seen, std::memory_order_release);
          state.done.notify_one();
        }
      }
    });
  }
}

WorkerPool::~WorkerPool() {
  state_->stop = true;
  state_->epoch.fetch_add(1, std::memory_order_release);
  state_->epoch.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::run(Task task, void* ctx) {
  if (n_threads_ == 1) return task(ctx, 0, 1);
  State& state = *state_;
  state.task = task;
  state.ctx = ctx;
  state.working.store(static_cast<uint32_t>(n_threads_ - 1), std::memory_order_relaxed);
  const uint32_t before = state.done.load(std::memory_order_relaxed);
  state.epoch.fetch_add(1, std::memory_order_release);
  state.epoch.notify_all();
  task(ctx, 0, n_threads_);
  await_change(state.done, before, state.spin);
}

}  // namespace specd::kernels
