// What every kind of ranks promises: data, order, deadlines, and how a group fails.
#include "core/device/collective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/to_size.h"
#include "core/device/message_ranks.h"
#include "core/device/thread_ranks.h"
#include "tests/core/device/exchange_plan.h"
#include "tests/core/device/local_messages.h"

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

// Ends of a group of one kind, and what they need.
struct Ends {
  std::unique_ptr<LocalWorld> world;
  std::vector<std::unique_ptr<Messages>> messages;
  std::vector<std::unique_ptr<Collective>> ranks;

  Ends() = default;
  Ends(Ends&&) = default;
  Ends& operator=(Ends&&) = delete;
  ~Ends() {
    if (world == nullptr) return;
    const bool is_well = std::all_of(ranks.begin(), ranks.end(),
                                     [](const auto& rank) { return rank->status().ok(); });
    // Each waits for what it has sent, so they end together.
    std::vector<std::thread> threads;
    for (auto& rank : ranks) threads.emplace_back([&] { rank.reset(); });
    for (std::thread& thread : threads) thread.join();
    if (is_well) {
      EXPECT_EQ(world->n_open(), 0u);
    }
  }
};
Ends thread_ends(int32_t n, milliseconds timeout, std::chrono::nanoseconds spin) {
  Ends ends;
  ends.ranks = make_thread_ranks(n, timeout, spin);
  return ends;
}
Ends message_ends(int32_t n, const MessageRankOptions& options) {
  Ends ends;
  ends.world = std::make_unique<LocalWorld>(n);
  for (int32_t rank = 0; rank < n; ++rank) {
    ends.messages.push_back(ends.world->end(rank));
    ends.ranks.push_back(make_message_rank(*ends.messages.back(), options));
  }
  return ends;
}
constexpr milliseconds kLong(60'000);

// The failure of a group, which not all ranks see at once.
Status failure_of(const Collective& rank) {
  for (const auto end = std::chrono::steady_clock::now() + kLong;
       rank.status().ok() && std::chrono::steady_clock::now() < end;)
    std::this_thread::sleep_for(milliseconds(1));
  return rank.status();
}

enum class Kind { kThreads, kMessages };
class EveryKindOfRanks : public testing::TestWithParam<Kind> {
 protected:
  // `silence_max` decides how often beats are sent.
  static Ends ranks_of(int32_t n, milliseconds timeout, std::chrono::nanoseconds spin = {},
                       milliseconds silence_max = kLong) {
    return GetParam() == Kind::kThreads
               ? thread_ends(n, timeout, spin)
               : message_ends(n, {.timeout = timeout, .silence_max = silence_max, .spin = spin});
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, EveryKindOfRanks, testing::Values(Kind::kThreads, Kind::kMessages),
                         [](const auto& kind) {
                           return kind.param == Kind::kThreads ? "threads" : "messages";
                         });

TEST_P(EveryKindOfRanks, exchanges_what_was_asked_in_every_order_of_arrival) {
  for (const int32_t n : {1, 2, 3, 8}) {
    for (const std::chrono::nanoseconds spin :
         {std::chrono::nanoseconds(0), std::chrono::nanoseconds(20'000)}) {
      Ends ends = ranks_of(n, kLong, spin);
      on_ranks(ends.ranks, [](Collective& rank) { exchange_by_plan(rank, 300); });
    }
  }
}

// A stage waits as long as others compute.
TEST_P(EveryKindOfRanks, waits_to_receive_from_one_that_makes_progress) {
  Ends ends = ranks_of(2, milliseconds(1000), {}, milliseconds(1000));
  on_ranks(ends.ranks, [](Collective& rank) {
    int32_t value = 7;
    if (rank.rank() == 1) {
      for (int i = 0; i < 80; ++i) {
        std::this_thread::sleep_for(milliseconds(30));
        rank.mark_progress();
      }
      rank.send(&value, sizeof(value), 0);
    } else {
      value = 0;
      rank.receive(&value, sizeof(value), 1);
      EXPECT_EQ(value, 7);
    }
    EXPECT_TRUE(rank.status().ok()) << rank.status().to_string();
  });
}

TEST_P(EveryKindOfRanks, names_one_that_does_not_send) {
  Ends ends = ranks_of(2, milliseconds(50));
  on_ranks(ends.ranks, [](Collective& rank) {
    int32_t value = 7;
    if (rank.rank() == 0) rank.receive(&value, sizeof(value), 1);
    EXPECT_EQ(failure_of(rank).to_string(),
              "DEADLINE_EXCEEDED: rank 1 did not take part in send within 50 ms; rank 0 waited for "
              "it");
  });
}

// Of three stages the last waits for one that waits itself.
TEST_P(EveryKindOfRanks, waits_for_one_that_waits_for_one_that_makes_progress) {
  Ends ends = ranks_of(3, milliseconds(2000), {}, milliseconds(1000));
  on_ranks(ends.ranks, [](Collective& rank) {
    int32_t value = 7;
    if (rank.rank() == 0) {
      for (int i = 0; i < 100; ++i) {
        std::this_thread::sleep_for(milliseconds(30));
        rank.mark_progress();
      }
    } else {
      rank.receive(&value, sizeof(value), rank.rank() - 1);
    }
    if (rank.rank() < 2) rank.send(&value, sizeof(value), rank.rank() + 1);
    EXPECT_EQ(value, 7);
    EXPECT_TRUE(rank.status().ok()) << rank.status().to_string();
  });
}

TEST_P(EveryKindOfRanks, names_the_one_that_the_others_wait_for) {
  Ends ends = ranks_of(3, milliseconds(2000), {}, milliseconds(3000));
  on_ranks(ends.ranks, [](Collective& rank) {
    int32_t value = 7;
    if (rank.rank() > 0) rank.receive(&value, sizeof(value), rank.rank() - 1);
    EXPECT_NE(failure_of(rank).message().find("rank 0 did not take part in send within 2000 ms"),
              std::string::npos)
        << rank.status().to_string();
  });
}

// Two groups of two, and all four, in turns.
TEST_P(EveryKindOfRanks, works_in_groups_and_together) {
  Ends ends = ranks_of(4, kLong);
  on_ranks(ends.ranks, [](Collective& all) {
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

TEST_P(EveryKindOfRanks, names_one_that_is_late_and_all_go_on) {
  Ends ends = ranks_of(3, kLong, {}, milliseconds(1000));
  std::atomic<bool> failed{false};
  on_ranks(ends.ranks, [&](Collective& rank) {
    std::vector<char> data(300);
    rank.all_gather(data.data(), 100);
    rank.set_timeout(milliseconds(500));
    if (rank.rank() == 2) {
      while (!failed) std::this_thread::yield();
    }
    rank.all_gather(data.data(), 100);
    failed = true;
    EXPECT_EQ(rank.status().code(), Code::kDeadlineExceeded);
    EXPECT_NE(rank.status().message().find("rank 2 did not take part in all_gather within 500 ms"),
              std::string::npos)
        << rank.status().to_string();
    rank.broadcast(data.data(), 100, 0);  // returns at once
  });
}

TEST_P(EveryKindOfRanks, says_how_ranks_disagree) {
  Ends ends = ranks_of(2, kLong);
  on_ranks(ends.ranks, [&](Collective& rank) {
    std::vector<char> data(300);
    rank.broadcast(data.data(), rank.rank() == 0 ? 100 : 99, 0);
    EXPECT_EQ(failure_of(rank).to_string(),
              "INTERNAL: rank 0 is at broadcast of 100 bytes, rank 1 at broadcast of 99 bytes");
  });
  Ends others = ranks_of(2, kLong);
  on_ranks(others.ranks, [&](Collective& rank) {
    std::vector<char> data(300);
    if (rank.rank() == 0) {
      rank.send(data.data(), 100, 1);
    } else {
      rank.broadcast(data.data(), 100, 0);
    }
    EXPECT_EQ(failure_of(rank).to_string(),
              "INTERNAL: rank 0 is at send of 100 bytes, rank 1 at broadcast of 100 bytes");
  });
}

TEST_P(EveryKindOfRanks, ends_the_waiting_of_all_when_one_gives_up) {
  Ends ends = ranks_of(4, kLong);
  on_ranks(ends.ranks, [&](Collective& rank) {
    std::vector<char> data(400);
    if (rank.rank() == 3) {
      std::this_thread::sleep_for(milliseconds(20));
      rank.give_up(Status(Code::kExhausted, "no memory"));
      rank.give_up(Status(Code::kInternal, "the first reason stays"));
    } else {
      rank.all_gather(data.data(), 100);
    }
    EXPECT_EQ(failure_of(rank).to_string(),
              "UNAVAILABLE: rank 3 gave up: RESOURCE_EXHAUSTED: no memory");
  });
}

TEST_P(EveryKindOfRanks, brings_followers_every_command_in_order_at_their_own_pace) {
  Ends ends = ranks_of(3, milliseconds(1));  // no deadline for commands
  std::atomic<bool> has_all{false};          // rank 2
  on_ranks(ends.ranks, [&](Collective& rank) {
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
TEST_P(EveryKindOfRanks, does_not_use_memory_of_a_call_that_has_returned) {
  for (int round = 0; round < 50; ++round) {
    Ends ends = ranks_of(3, kLong);
    on_ranks(ends.ranks, [&](Collective& rank) {
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

TEST(MessageRanks, notice_one_that_has_stopped_while_nothing_is_exchanged) {
  Ends ends = message_ends(3, {.timeout = kLong, .silence_max = milliseconds(1000)});
  std::this_thread::sleep_for(milliseconds(1500));
  for (const auto& rank : ends.ranks) EXPECT_TRUE(rank->status().ok());
  ends.world->stop(2);
  EXPECT_EQ(failure_of(*ends.ranks[0]).to_string(),
            "UNAVAILABLE: rank 2 has not been heard of for 1000 ms: it was stopped, or its machine "
            "cannot be reached");
  EXPECT_FALSE(failure_of(*ends.ranks[1]).ok());
  EXPECT_FALSE(failure_of(*ends.ranks[2]).ok()) << "it hears of nobody";
}

TEST(MessageRanks, take_a_new_deadline_from_one_of_them) {
  Ends ends = message_ends(3, {.timeout = kLong, .silence_max = kLong});
  ends.ranks[0]->set_timeout(milliseconds(50));
  std::this_thread::sleep_for(milliseconds(100));
  on_ranks(ends.ranks, [](Collective& rank) {
    std::vector<char> data(300);
    if (rank.rank() == 1) rank.receive(data.data(), 1, 2);  // looks at notices meanwhile
    EXPECT_NE(failure_of(rank).message().find("rank 2 did not take part in send within 50 ms"),
              std::string::npos)
        << rank.status().to_string();
  });
}

TEST(MessageRanks, tell_the_others_when_messages_no_longer_work) {
  Ends ends = message_ends(2, {.timeout = kLong, .silence_max = milliseconds(1000)});
  ends.world->break_down();
  for (const auto& rank : ends.ranks) {
    const Status failure = failure_of(*rank);
    EXPECT_TRUE(failure.message() == "rank 0: broken" || failure.message() == "rank 1: broken")
        << failure.to_string();
  }
}

// A follower that has stopped must not fill the memory of the lead.
TEST(MessageRanks, send_no_beat_before_the_last_one_has_arrived) {
  Ends ends = message_ends(2, {.timeout = kLong, .silence_max = milliseconds(200)});
  ends.world->stop(1);
  EXPECT_FALSE(failure_of(*ends.ranks[0]).ok());
  EXPECT_LE(ends.world->n_open(), 5u)
      << "a beat and a failure of each, and a beat that rank 1 was receiving when it stopped";
}

}  // namespace
}  // namespace specd
