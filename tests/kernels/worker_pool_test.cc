#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "specd/kernels/cpu.h"

namespace specd::kernels {
namespace {

struct Counts {
  std::vector<int> of_part;  // plain ints: run() must order the threads
  int parts = 0;
};

void count(void* ctx, int part, int parts) {
  Counts& counts = *static_cast<Counts*>(ctx);
  counts.of_part[static_cast<size_t>(part)] += 1;
  if (part == 0) counts.parts = parts;
}

TEST(WorkerPool, every_part_runs_once_in_thousands_of_runs) {
  for (int threads = 1; threads <= 8; ++threads) {
    WorkerPool pool(threads);
    EXPECT_EQ(pool.n_threads(), threads);
    Counts counts{std::vector<int>(static_cast<size_t>(threads)), 0};
    const int runs = threads <= 2 ? 5000 : 2000;
    for (int i = 1; i <= runs; ++i) {
      pool.run(count, &counts);
      for (const int times : counts.of_part) ASSERT_EQ(times, i) << threads << " threads";
    }
    EXPECT_EQ(counts.parts, threads);
  }
}

TEST(WorkerPool, wakes_after_sleeping) {
  for (const int threads : {2, 5}) {
    WorkerPool pool(threads);
    Counts counts{std::vector<int>(static_cast<size_t>(threads)), 0};
    for (int i = 1; i <= 20; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // far longer than the spinning
      pool.run(count, &counts);
      for (const int times : counts.of_part) ASSERT_EQ(times, i);
    }
  }
}

TEST(WorkerPool, waits_for_a_slow_part) {
  WorkerPool pool(3);
  std::atomic<int> finished{0};
  pool.run(
      [](void* ctx, int part, int) {
        if (part == 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        static_cast<std::atomic<int>*>(ctx)->fetch_add(1);
      },
      &finished);
  EXPECT_EQ(finished.load(), 3);
}

TEST(WorkerPool, ends_without_ever_having_run) {
  for (int i = 0; i < 50; ++i) WorkerPool pool(4);
}

TEST(Isa, the_best_one_is_available_and_scalar_always_is) {
  EXPECT_TRUE(isa_available(best_isa()));
  EXPECT_TRUE(isa_available(Isa::kScalar));
  EXPECT_STREQ(cpu_ops(Isa::kScalar).name, "cpu-scalar");
}

}  // namespace
}  // namespace specd::kernels
