// Exchanges between devices, on the stand-in's: what they bring, alone and in a graph, and how they end.
#include "core/device/cuda_ranks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/to_size.h"
#include "core/device/cuda_device.h"
#include "core/device/thread_ranks.h"

namespace specd {
namespace {

using std::chrono::milliseconds;

// A rank with its device, in a thread of its own.
struct DeviceRank {
  Collective& host;
  Device& device;
  Exchanges& exchanges;

  int32_t rank() const { return host.rank(); }
};

class CudaRanks : public testing::Test {
 protected:
  void SetUp() override {
    setenv("SPECD_CUDA_LIBRARY", SPECD_TEST_FAKE_CUDA, 1);
    setenv("SPECD_FAKE_CUDA", "devices=3", 1);
  }
  void TearDown() override { unsetenv("SPECD_FAKE_CUDA"); }

  // Runs `each` on every rank. Returns what join_cuda_ranks() said to each.
  static std::vector<Status> run(
      int32_t n_ranks, milliseconds timeout, const std::function<void(const DeviceRank&)>& each,
      const std::function<int32_t(int32_t)>& index = [](int32_t rank) { return rank; }) {
    const auto hosts = make_thread_ranks(n_ranks, timeout, {});
    std::vector<Status> joined(to_size(n_ranks));
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < n_ranks; ++rank) {
      threads.emplace_back([&, rank] {
        Collective& host = *hosts[to_size(rank)];
        const auto device = open_cuda_device(index(rank), {}).value();
        const auto end = join_cuda_ranks(*device, host);
        joined[to_size(rank)] = end.status();
        if (end.ok()) each({host, *device, *end.value()});
      });
    }
    for (std::thread& thread : threads) thread.join();
    return joined;
  }
  static void expect_joined(const std::vector<Status>& all) {
    for (const Status& each : all) EXPECT_TRUE(each.ok()) << each.to_string();
  }
};

// Larger than a piece of the stand-in's, and other numbers on each rank and in each round.
constexpr size_t kNumbers = 50'001;
std::vector<int32_t> numbers_of(int32_t rank, int32_t round) {
  std::vector<int32_t> numbers(kNumbers);
  for (size_t i = 0; i < kNumbers; ++i) {
    numbers[i] = 1'000'000 * rank + 100'000 * round + static_cast<int32_t>(i);
  }
  return numbers;
}

TEST_F(CudaRanks, bring_what_the_others_have_and_again_when_a_graph_is_launched) {
  constexpr int32_t kRanks = 3;
  constexpr uint64_t kBytes = kNumbers * sizeof(int32_t);
  const auto each = [&](const DeviceRank& r) {
    // Pinned: a graph reads it when it runs.
    const Buffer mine = r.device.allocate_pinned(kBytes, "numbers").value();
    const Buffer seen = r.device.allocate_pinned(6 * kRanks * kBytes, "seen").value();
    const Buffer on_device = r.device.allocate(6 * kRanks * kBytes, "numbers").value();
    const auto at = [&](int32_t place) { return on_device.as<char>() + to_size(place) * kBytes; };
    const int32_t next = (r.rank() + 1) % kRanks, before = (r.rank() + kRanks - 1) % kRanks;
    const auto submit = [&] {
      for (const int32_t place : {r.rank(), kRanks + r.rank(), 2 * kRanks, 3 * kRanks}) {
        r.device.copy_in(at(place), mine.data(), kBytes);
      }
      r.exchanges.all_gather(at(0), kBytes);
      r.exchanges.gather(at(3 * kRanks), r.rank() == 1 ? at(kRanks) : nullptr, kBytes, 1);
      r.exchanges.broadcast(at(2 * kRanks), kBytes, 2);
      // Around the circle: one begins, so that nobody waits for one that waits.
      if (r.rank() == 0) r.exchanges.send(at(3 * kRanks), kBytes, next);
      r.exchanges.receive(at(4 * kRanks), kBytes, before);
      if (r.rank() != 0) r.exchanges.send(at(3 * kRanks), kBytes, next);
      r.device.copy_out(seen.data(), on_device.data(), seen.bytes());
    };
    int32_t graph = -1;
    for (int32_t round = 0; round < 4; ++round) {
      const std::vector<int32_t> numbers = numbers_of(r.rank(), round);
      std::copy(numbers.begin(), numbers.end(), mine.as<int32_t>());
      if (round == 1 && r.rank() != 1) {  // that one has no graph
        ASSERT_TRUE(r.device.begin_capture().ok());
        submit();
        graph = r.device.end_capture().value();
      }
      graph < 0 ? submit() : r.device.launch(graph);
      ASSERT_TRUE(r.device.synchronize().ok()) << r.host.status().to_string();
      const auto expect = [&](int32_t place, int32_t of) {
        const int32_t* found = seen.as<int32_t>() + to_size(place) * kNumbers;
        EXPECT_EQ(std::vector<int32_t>(found, found + kNumbers), numbers_of(of, round))
            << "rank " << r.rank() << ", round " << round << ", place " << place;
      };
      for (int32_t of = 0; of < kRanks; ++of) expect(of, of);
      for (int32_t of = 0; of < kRanks && r.rank() == 1; ++of) expect(kRanks + of, of);
      expect(2 * kRanks, 2);
      expect(4 * kRanks, before);
    }
    if (graph >= 0) r.device.release_graph(graph);
  };
  expect_joined(run(kRanks, std::chrono::minutes(5), each));
}

// What the stand-in has that NCCL has not: it would compute with whatever there is.
TEST_F(CudaRanks, that_are_at_different_exchanges_are_told_so) {
  struct Difference {
    const char* words;
    std::function<void(const DeviceRank&, void*)> call;
  };
  const std::vector<Difference> differences = {
      {"broadcast 0 of 64 of type 1 from rank 0",
       [](const DeviceRank& r, void* data) {
         r.rank() == 0 ? r.exchanges.all_gather(data, 64) : r.exchanges.broadcast(data, 64, 0);
       }},
      {"broadcast 0 of 64 of type 1 from rank 1",
       [](const DeviceRank& r, void* data) { r.exchanges.broadcast(data, 64, r.rank()); }},
      {"all-gather 0 of 68 of type 1",
       [](const DeviceRank& r, void* data) {
         r.exchanges.all_gather(data, r.rank() == 0 ? 64 : 68);
       }},
      {"send or receive 0 of 64 of type 1",
       [](const DeviceRank& r, void* data) {
         r.rank() == 0 ? r.exchanges.send(data, 64, 1) : r.exchanges.receive(data, 60, 0);
       }},
  };
  for (const Difference& difference : differences) {
    std::vector<std::string> said(2);
    const auto each = [&](const DeviceRank& r) {
      const Buffer data = r.device.allocate(1024, "data").value();
      difference.call(r, data.data());
      said[to_size(r.rank())] = r.device.synchronize().message();
    };
    expect_joined(run(2, std::chrono::minutes(5), each));
    EXPECT_NE((said[0] + said[1]).find(difference.words), std::string::npos) << said[0] << "\n"
                                                                             << said[1];
  }
}

TEST_F(CudaRanks, wait_no_longer_than_the_deadline_and_end_when_one_gives_up) {
  for (const bool gives_up : {false, true}) {
    const milliseconds timeout = gives_up ? milliseconds(600'000) : milliseconds(300);
    std::string said;
    const auto each = [&](const DeviceRank& r) {
      const Buffer data = r.device.allocate(1024, "data").value();
      if (r.rank() == 0) {
        if (gives_up) {
          std::this_thread::sleep_for(milliseconds(20));
          r.host.give_up(Status(Code::kExhausted, "no memory"));
        }
        return;  // takes no part
      }
      r.exchanges.all_gather(data.data(), 64);
      said = r.device.synchronize().to_string();
      EXPECT_EQ(r.device.synchronize().to_string(), said) << "it stays failed";
    };
    expect_joined(run(2, timeout, each));
    EXPECT_EQ(said, gives_up ? "UNAVAILABLE: rank 0 gave up: RESOURCE_EXHAUSTED: no memory"
                             : "UNAVAILABLE: rank 1 gave up: DEADLINE_EXCEEDED: its device has "
                               "waited 300 ms for an exchange with rank 0");
  }
}

TEST_F(CudaRanks, that_cannot_join_are_told_which_and_why) {
  const auto never = [](const DeviceRank&) { ADD_FAILURE() << "nobody has joined"; };
  for (const Status& each : run(2, std::chrono::minutes(5), never, [](int32_t) { return 1; })) {
    EXPECT_EQ(each.code(), Code::kUnavailable);
    EXPECT_NE(
        each.message().find(" gave up: UNSUPPORTED: cuda:1: NCCL: Duplicate GPU detected: rank "),
        std::string::npos)
        << each.to_string();
  }
  // Of three one fails, and tells those that wait for it.
  setenv("SPECD_STRICT_NCCL", "fail_join=2", 1);
  const auto begin = std::chrono::steady_clock::now();
  for (const Status& each : run(3, std::chrono::minutes(5), never)) {
    EXPECT_NE(each.message().find("NCCL: this join fails, as asked for"), std::string::npos)
        << each.to_string();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  unsetenv("SPECD_STRICT_NCCL");
  setenv("SPECD_FAKE_CUDA", "devices=3,no_nccl", 1);
  for (const Status& each : run(2, std::chrono::minutes(5), never)) {
    EXPECT_EQ(each.to_string(), "UNSUPPORTED: rank 0: cuda:0: ranks need NCCL (fake)");
  }
}

}  // namespace
}  // namespace specd
