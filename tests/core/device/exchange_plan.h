// Exchanges of random sizes, kinds and roots, whose data every rank can check.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "core/base/to_size.h"
#include "core/device/collective.h"

namespace specd {

inline void exchange_by_plan(Collective& rank, int32_t n_rounds) {
  const int32_t n = rank.n_ranks();
  std::mt19937 pause(static_cast<uint32_t>(rank.rank()));
  std::mt19937 plan(7);  // the same on all ranks
  for (int32_t round = 0; round < n_rounds; ++round) {
    if (pause() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(pause() % 300));
    const size_t width = plan() % 500;
    const auto root = static_cast<int32_t>(plan() % static_cast<uint32_t>(n));
    const auto value = [&](int32_t of, size_t i) {
      return round * 1'000'000 + of * 1000 + static_cast<int32_t>(i);
    };
    std::vector<int32_t> mine(width), all(width * to_size(n), -1);
    for (size_t i = 0; i < width; ++i) mine[i] = value(rank.rank(), i);
    const uint64_t bytes = width * sizeof(int32_t);
    const auto expect_all = [&] {
      for (int32_t of = 0; of < n; ++of) {
        for (size_t i = 0; i < width; ++i) {
          ASSERT_EQ(all[to_size(of) * width + i], value(of, i)) << "rank " << of;
        }
      }
    };
    switch (plan() % 4) {
      case 0:
        std::copy(mine.begin(), mine.end(),
                  all.begin() + rank.rank() * static_cast<int64_t>(width));
        rank.all_gather(all.data(), bytes);
        expect_all();
        break;
      case 1:
        rank.gather(mine.data(), rank.rank() == root ? all.data() : nullptr, bytes, root);
        if (rank.rank() == root) expect_all();
        break;
      case 2:
        rank.broadcast(mine.data(), bytes, root);
        for (size_t i = 0; i < width; ++i) ASSERT_EQ(mine[i], value(root, i));
        break;
      case 3: {  // a ring, which must not wait for itself
        const int32_t to = (root + 1) % n;
        if (to == root) break;
        if (rank.rank() == root) rank.send(mine.data(), bytes, to);
        if (rank.rank() == to) {
          rank.receive(mine.data(), bytes, root);
          for (size_t i = 0; i < width; ++i) ASSERT_EQ(mine[i], value(root, i));
        }
        break;
      }
    }
    std::fill(mine.begin(), mine.end(), -7);  // it is free again
  }
  EXPECT_TRUE(rank.status().ok()) << rank.status().to_string();
}

}  // namespace specd
