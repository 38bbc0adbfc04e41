// What every kind of ranks promises: data, order, deadlines, and how a group fails.
#include "core/device/collective.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/to_size.h"
#include "core/device/thread_ranks.h"

namespace specd {
namespace {

using std::chrono::milliseconds;

// Runs `rank_work` on a thread for each rank.
void on_ranks(std::vector<std::unique_ptr<Collective>>& ranks,
              const std::function<void(Collective&)>& rank_work) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&] { rank_work(*rank); });
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::unique_ptr<Collective>> ranks_of(int32_t n, milliseconds timeout,
                                                  std::chrono::nanoseconds spin = {}) {
  return make_thread_ranks(n, timeout, spin);
}
constexpr milliseconds kLong(60'000);

TEST(ThreadRanks, exchange_what_was_asked_in_every_order_of_arrival) {
  for (const int32_t n : {1, 2, 3, 8}) {
    for (const std::chrono::nanoseconds spin :
         {std::chrono::nanoseconds(0), std::chrono::nanoseconds(20'000)}) {
      auto ranks = ranks_of(n, kLong, spin);
      on_ranks(ranks, [n](Collective& rank) {
        std::mt19937 pause(static_cast<uint32_t>(rank.rank()));
        std::mt19937 plan(7);  // the same on all ranks
        for (int32_t round = 0; round < 300; ++round) {
          if (pause() % 16 == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(pause() % 300));
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
      });
    }
  }
}

// A stage waits as long as others compute.
TEST(ThreadRanks, send_and_receive_without_a_deadline) {
  auto ranks = ranks_of(2, milliseconds(1));
  on_ranks(ranks, [](Collective& rank) {
    int32_t value = 7 * rank.rank();
    if (rank.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(100));
      rank.send(&value, sizeof(value), 0);
      rank.receive(&value, sizeof(value), 0);
      EXPECT_EQ(value, 8);
    } else {
      rank.receive(&value, sizeof(value), 1);
      EXPECT_EQ(value, 7);
      std::this_thread::sleep_for(milliseconds(100));
      value = 8;
      rank.send(&value, sizeof(value), 1);
    }
    EXPECT_TRUE(rank.status().ok()) << rank.status().to_string();
  });
}

// Two groups of two, and all four, in turns.
TEST(ThreadRanks, work_in_groups_and_together) {
  auto ranks = ranks_of(4, kLong);
  on_ranks(ranks, [](Collective& all) {
    const int32_t first = all.rank() / 2 * 2;
    const auto two = all.group(first, 2);
    ASSERT_EQ(two->n_ranks(), 2);
    ASSERT_EQ(first + two->rank(), all.rank());
    for (int32_t round = 0; round < 200; ++round) {
      int32_t pair[2] = {-1, -1}, four[4] = {-1, -1, -1, -1};
      pair[two->rank()] = 10 * round + all.rank();
      two->all_gather(pair, sizeof(int32_t));
      EXPECT_EQ(pair[1 - two->rank()], 10 * round + (all.rank() ^ 1));
      four[all.rank()] = pair[0];
      all.all_gather(four, sizeof(int32_t));
      EXPECT_EQ(four[0], 10 * round);
      EXPECT_EQ(four[3], 10 * round + 2);
    }
    EXPECT_TRUE(all.status().ok()) << all.status().to_string();
  });
}

TEST(ThreadRanks, that_wait_for_one_that_is_late_name_it_and_all_go_on) {
  auto ranks = ranks_of(3, kLong);
  std::atomic<bool> failed{false};
  on_ranks(ranks, [&](Collective& rank) {
    std::vector<char> data(300);
    rank.all_gather(data.data(), 100);
    rank.set_timeout(milliseconds(50));
    if (rank.rank() == 2) {
      while (!failed) std::this_thread::yield();
    }
    rank.all_gather(data.data(), 100);
    failed = true;
    EXPECT_EQ(rank.status().code(), Code::kDeadlineExceeded);
    EXPECT_NE(rank.status().message().find("rank 2 did not take part in all_gather within 50 ms"),
              std::string::npos)
        << rank.status().to_string();
    rank.broadcast(data.data(), 100, 0);  // returns at once
  });
}

TEST(ThreadRanks, that_disagree_say_how) {
  auto ranks = ranks_of(2, kLong);
  on_ranks(ranks, [&](Collective& rank) {
    std::vector<char> data(300);
    rank.broadcast(data.data(), rank.rank() == 0 ? 100 : 99, 0);
    EXPECT_EQ(rank.status().to_string(),
              "INTERNAL: rank 0 is at broadcast of 100 bytes, rank 1 at broadcast of 99");
  });
  ranks = ranks_of(2, kLong);
  on_ranks(ranks, [&](Collective& rank) {
    std::vector<char> data(300);
    if (rank.rank() == 0) {
      rank.send(data.data(), 100, 1);
    } else {
      rank.broadcast(data.data(), 100, 0);
    }
    EXPECT_EQ(rank.status().to_string(),
              "INTERNAL: rank 0 is at send of 100 bytes, rank 1 at broadcast of 100");
  });
}

TEST(ThreadRanks, one_that_gives_up_ends_the_waiting_of_all) {
  auto ranks = ranks_of(4, kLong);
  on_ranks(ranks, [&](Collective& rank) {
    std::vector<char> data(400);
    if (rank.rank() == 3) {
      std::this_thread::sleep_for(milliseconds(20));
      rank.give_up(Status(Code::kExhausted, "no memory"));
      rank.give_up(Status(Code::kInternal, "the first reason stays"));
    } else {
      rank.all_gather(data.data(), 100);
    }
    EXPECT_EQ(rank.status().to_string(),
              "UNAVAILABLE: rank 3 gave up: RESOURCE_EXHAUSTED: no memory");
  });
}

TEST(ThreadRanks, followers_get_every_command_in_order_at_their_own_pace) {
  auto ranks = ranks_of(3, milliseconds(1));  // no deadline for commands
  std::atomic<bool> has_all{false};           // rank 2
  on_ranks(ranks, [&](Collective& rank) {
    constexpr int32_t kCommands = 500;
    std::vector<int32_t> words;
    for (int32_t i = 0; i < kCommands; ++i) {
      if (rank.rank() == 0) {
        words.assign(to_size(i % 7), i);
        if (i == 10) std::this_thread::sleep_for(milliseconds(20));
        rank.command(words);
        continue;
      }
      if (i % 50 == rank.rank()) std::this_thread::sleep_for(milliseconds(1));
      ASSERT_TRUE(rank.next_command(words));
      ASSERT_EQ(words, std::vector<int32_t>(to_size(i % 7), i));
    }
    if (rank.rank() == 1) {
      while (!has_all) std::this_thread::yield();
      rank.give_up(Status(Code::kCancelled, "done"));
    }
    if (rank.rank() == 2) {
      has_all = true;
      EXPECT_FALSE(rank.next_command(words)) << "the group has failed";
    }
  });
}

// The memory of a rank may go as soon as its call has returned, also when the group fails meanwhile.
TEST(ThreadRanks, do_not_read_memory_of_a_call_that_has_returned) {
  for (int round = 0; round < 50; ++round) {
    auto ranks = ranks_of(3, kLong);
    on_ranks(ranks, [&](Collective& rank) {
      if (rank.rank() == 2) {
        std::this_thread::sleep_for(std::chrono::microseconds(50 * round));
        return rank.give_up(Status(Code::kInternal, "enough"));
      }
      constexpr size_t kBytes = 1 << 20;
      for (int i = 0; i < 100 && rank.status().ok(); ++i) {
        std::vector<char> data(kBytes, static_cast<char>(i));
        if (rank.rank() == 0) {
          rank.send(data.data(), kBytes, 1);
        } else {
          rank.receive(data.data(), kBytes, 0);
        }
      }
    });
  }
}

}  // namespace
}  // namespace specd
