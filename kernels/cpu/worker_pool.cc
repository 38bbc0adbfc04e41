// The team of threads. The caller publishes a task by incrementing `epoch`. Each part is run by
// the first thread to claim it: its worker, or the caller when that worker is late (asleep, or
// not scheduled). On a shared machine this costs parallelism, but never the wait for a scheduler
// time slice.
#include <pthread.h>

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

// Padded so that threads do not share cache lines.
struct WorkerPool::State {  // NOLINT(clang-analyzer-optin.performance.Padding)
  explicit State(int n_threads) : claim(static_cast<size_t>(n_threads)) {}

  // Written by the caller before it increments epoch; stable while a part of that epoch is open.
  Task task = nullptr;
  void* ctx = nullptr;
  std::atomic<bool> stop{false};
  std::chrono::nanoseconds spin{0};
  // Each on a separate cache line: workers poll one while they write the other.
  alignas(64) std::atomic<uint32_t> epoch{0};
  alignas(64) std::atomic<uint32_t> open{0};  // parts of this epoch that are not done
  alignas(64) std::atomic<uint32_t> done{0};  // the last epoch in which all parts are done
  struct alignas(64) Claim {
    std::atomic<uint32_t> epoch{0};  // the last epoch in which this part was claimed
  };
  std::vector<Claim> claim;

  // Runs a part of `now` unless it is already claimed. A thread that is too late for its epoch
  // finds the part claimed and touches nothing else.
  void try_part(uint32_t now, int part) {
    uint32_t before = now - 1;
    if (!claim[static_cast<size_t>(part)].epoch.compare_exchange_strong(
            before, now, std::memory_order_acq_rel)) {
      return;
    }
    task(ctx, part, static_cast<int>(claim.size()));
    if (open.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      done.store(now, std::memory_order_release);
      done.notify_one();
    }
  }
};

WorkerPool::WorkerPool(int n_threads)
    : n_threads_(n_threads), state_(std::make_unique<State>(n_threads)) {
  State& state = *state_;
  // With more threads than processors, spinning would keep the awaited thread from running.
  const unsigned processors = std::thread::hardware_concurrency();
  if (processors == 0 || static_cast<unsigned>(n_threads) <= processors) {
    state.spin = std::chrono::microseconds(50);
  }
  try {
    for (int part = 1; part < n_threads; ++part) {
      threads_.emplace_back([&state, part] {
        pthread_setname_np(pthread_self(), "specd-cpu");
        uint32_t seen = 0;
        for (;;) {
          seen = await_change(state.epoch, seen, state.spin);
          if (state.stop) return;
          state.try_part(seen, part);
        }
      });
    }
  } catch (...) {
    join();
    throw;
  }
}

WorkerPool::~WorkerPool() { join(); }

void WorkerPool::join() {
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
  state.open.store(static_cast<uint32_t>(n_threads_), std::memory_order_relaxed);
  const uint32_t now = state.epoch.load(std::memory_order_relaxed) + 1;
  state.epoch.store(now, std::memory_order_release);
  state.epoch.notify_all();
  for (int part = 0; part < n_threads_; ++part) state.try_part(now, part);
  await_change(state.done, now - 1, state.spin);
}

}  // namespace specd::kernels
