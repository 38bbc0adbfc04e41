// A lead and its followers at the level of the worker: what they compute together, and how they end.
#include "core/ranks/rank_threads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/device/cuda_device.h"
#include "core/device/thread_ranks.h"
#include "core/ranks/worker.h"
#include "tests/core/family_models.h"
#include "tests/core/model/forward_rig.h"

namespace specd {
namespace {

constexpr int32_t kRankPages = 20;

// Rank's own, of its process: the CPU, or one of the stand-in's devices.
Result<std::unique_ptr<Device>> device_of_rank(bool is_cuda, int32_t rank) {
  if (is_cuda) return open_cuda_device(rank, {});
  SPECD_TRY(std::unique_ptr<Device> device, CpuDevice::create("", 1));
  return device;
}

struct RankRig {
  std::string path = kFamilyModels + "llama31";
  ModelConfig config = load_model_config(path).value();
  std::unique_ptr<Device> device;
  std::unique_ptr<RankThreads> ranks;
  std::unique_ptr<Transformer> model;
  std::unique_ptr<KvStore> kv;
  std::unique_ptr<Worker> worker;

  explicit RankRig(int32_t n_ranks, int32_t n_stages = 1, bool is_cuda = false) {
    const auto open = [=](int32_t rank) { return device_of_rank(is_cuda, rank); };
    device = open(0).value();
    if (n_ranks * n_stages > 1) {
      ranks = std::make_unique<RankThreads>(
          RankThreads::Options{.n_ranks = n_ranks,
                               .n_stages = n_stages,
                               .open_device = open,
                               .timeout = std::chrono::minutes(10)},
          std::vector<SharedModel>{{.path = path,
                                    .config = config,
                                    .kv_dtype = kernels::KvDType::kF32,
                                    .rows_max = 64,
                                    .logits_rows_max = 64}});
      SPECD_CHECK(ranks->open(*device).ok(), "open");
      ranks->lead().load(0);
    }
    const RankLinks links = ranks == nullptr ? RankLinks() : ranks->lead().links_of(0);
    model = agreed(links.all, Transformer::load(*device, path, config, 64, 64, {}, links)).value();
    model->gather_bytes();
    if (ranks != nullptr) ranks->lead().make_pages(0, kRankPages);
    kv = std::make_unique<KvStore>(
        agreed(links.all, KvStore::create(*device, part_of(config, links.split),
                                          kernels::KvDType::kF32, kRankPages))
            .value());
    (void)gathered(links.all, kv->bytes());
    (void)gathered(links.all, 0);  // columns
    worker =
        Worker::create(*device, *model, *kv, ranks == nullptr ? nullptr : &ranks->lead()).value();
  }
  Status step(const std::vector<int32_t>& tokens, int32_t first, std::vector<int32_t>* drawn) {
    StepInput input;
    for (int32_t page = 0; page < 4; ++page) input.rows.pages.push_back(2 * page + 1);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int32_t position = first + static_cast<int32_t>(i);
      input.rows.token.push_back(tokens[i] % 256);
      input.rows.position.push_back(position);
      input.rows.slot.push_back(slot(position));
      input.rows.span.push_back(position + 1);
      input.rows.table.push_back(0);
      input.rows.tail_begin.push_back(0);
      input.rows.logits_rows.push_back(static_cast<int32_t>(i));
      input.draws.push_back({.position = position + 1, .seed = 5, .greedy = false});
    }
    worker->new_columns();
    StepOutput output;
    const Status status = worker->run(
        input, {}, [] {}, output);
    if (status.ok() && drawn != nullptr) {
      drawn->insert(drawn->end(), output.drawn.begin(), output.drawn.end());
    }
    return status;
  }
  static int32_t slot(int32_t position) {
    return (2 * (position / kernels::kPageTokens) + 1) * kernels::kPageTokens +
           position % kernels::kPageTokens;
  }
};

// Followers move KV when the lead does, also whole pages.
void draw_and_move(bool is_cuda) {
  std::vector<int32_t> one;
  for (const auto& [n_ranks, n_stages] :
       std::vector<std::pair<int32_t, int32_t>>{{1, 1}, {4, 1}, {1, 3}, {2, 2}}) {
    RankRig rig(n_ranks, n_stages, is_cuda && n_ranks * n_stages > 1);
    std::vector<int32_t> all;
    ASSERT_TRUE(rig.step(some_tokens(30, 1), 0, &all).ok());
    KvMoves moves;
    for (int32_t i = 0; i < 10; ++i) {
      moves.from.push_back(RankRig::slot(20 + i));
      moves.to.push_back(RankRig::slot(10 + i));
    }
    ASSERT_TRUE(rig.worker->move(moves).ok());
    ASSERT_TRUE(rig.worker->copy_page(1, 3).ok());
    ASSERT_TRUE(rig.step(some_tokens(20, 2), 20, &all).ok());
    if (one.empty()) one = all;
    EXPECT_EQ(all, one) << n_stages << " stages of " << n_ranks;
  }
  EXPECT_EQ(one.size(), 50u);
}

TEST(RankThreads, draw_and_move_as_one_rank_does) { draw_and_move(false); }

TEST(RankThreads, draw_and_move_on_devices_as_one_rank_on_the_cpu_does) {
  setenv("SPECD_CUDA_LIBRARY", SPECD_TEST_FAKE_CUDA, 1);
  setenv("SPECD_FAKE_CUDA", "devices=4", 1);
  draw_and_move(true);
  unsetenv("SPECD_FAKE_CUDA");
}

const auto on_cpu = [](int32_t rank) { return device_of_rank(false, rank); };

TEST(RankThreads, that_cannot_load_say_which_rank_and_why) {
  const std::string path = kFamilyModels + "llama31";
  const ModelConfig config = load_model_config(path).value();
  RankThreads ranks({.n_ranks = 2, .open_device = on_cpu},
                    {{.path = "/nowhere", .config = config, .rows_max = 8, .logits_rows_max = 8}});
  const auto device = CpuDevice::create("", 1).value();
  ASSERT_TRUE(ranks.open(*device).ok());
  const RankLinks links = ranks.lead().links_of(0);
  ranks.lead().load(0);
  const auto model = agreed(links.all, Transformer::load(*device, path, config, 8, 8, {}, links));
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), Code::kNotFound);
  EXPECT_EQ(model.status().message().find("rank 1: "), 0u) << model.status().to_string();
  EXPECT_NE(model.status().message().find("/nowhere"), std::string::npos);
  EXPECT_TRUE(links.all->status().ok()) << "the group goes on, e.g. without a draft model";
}

// As when the lead finds no memory while it loads: the followers wait for it in an exchange.
TEST(RankThreads, end_when_the_lead_leaves_in_the_middle) {
  const std::string path = kFamilyModels + "llama31";
  const ModelConfig config = load_model_config(path).value();
  const auto device = CpuDevice::create("", 1).value();
  RankThreads ranks({.n_ranks = 4, .open_device = on_cpu, .timeout = std::chrono::hours(24)},
                    {{.path = path, .config = config, .rows_max = 8, .logits_rows_max = 8}});
  ASSERT_TRUE(ranks.open(*device).ok());
  ranks.lead().load(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

TEST(RankThreads, a_rank_that_gives_up_ends_the_step_with_its_reason) {
  RankRig rig(2);
  ASSERT_TRUE(rig.step(some_tokens(30, 1), 0, nullptr).ok());
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    rig.ranks->lead().links_of(0).all->give_up(Status(Code::kExhausted, "no memory"));
  });
  Status status;
  for (int32_t i = 0; status.ok(); ++i) status = rig.step({i}, 30, nullptr);
  other.join();
  EXPECT_EQ(status.to_string(), "UNAVAILABLE: rank 0 gave up: RESOURCE_EXHAUSTED: no memory");
  EXPECT_FALSE(rig.step({1}, 31, nullptr).ok()) << "it stays failed";
}

TEST(Agree, everyone_gets_the_first_error_with_its_rank_cut_behind_a_whole_character) {
  auto ranks = make_thread_ranks(3, std::chrono::minutes(10), {});
  std::string longest = "xx";  // 895 bytes would end within a character
  while (longest.size() < 2000) longest += "\u00e9";
  const std::vector<Status> mine = {Status(), Status(Code::kExhausted, "model.path", longest),
                                    Status(Code::kInternal, "a later one")};
  std::vector<Status> seen(mine.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < mine.size(); ++rank) {
    threads.emplace_back([&, rank] { seen[rank] = agree(*ranks[rank], mine[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const size_t rank : {0U, 2U}) {
    EXPECT_EQ(seen[rank].code(), Code::kExhausted);
    EXPECT_EQ(seen[rank].field(), "model.path");
    EXPECT_EQ(seen[rank].message(), "rank 1: " + longest.substr(0, 894));
  }
  EXPECT_EQ(seen[1].message(), "rank 1: " + longest) << "its own is whole";
}

}  // namespace
}  // namespace specd
