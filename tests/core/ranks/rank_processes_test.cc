// A lead and a follower that send messages: what they compute, and a rank that stops at any of them.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/device/message_ranks.h"
#include "core/ranks/follower.h"
#include "core/ranks/ranks.h"
#include "core/ranks/same_files.h"
#include "core/ranks/worker.h"
#include "tests/core/device/local_messages.h"
#include "tests/core/family_models.h"
#include "tests/core/model/forward_rig.h"

namespace specd {
namespace {

using std::chrono::milliseconds;

constexpr int32_t kProcessPages = 4;

struct Shape {
  int32_t n_ranks, n_stages;
};

// Two ranks of one process, as if each were a process.
class ProcessRig {
 public:
  ProcessRig(const Shape& shape, milliseconds patience) : shape_(shape) {
    const MessageRankOptions options{.timeout = patience, .silence_max = patience, .spin = {}};
    for (int32_t rank = 0; rank < 2; ++rank) {
      messages_.push_back(world.end(rank));
      ends_.push_back(make_message_rank(*messages_.back(), options));
    }
  }
  // Loads the model and computes a step; the follower stops when the lead has ended.
  Status run(std::vector<int32_t>& drawn) {
    std::thread follower([this] { follow(); });
    Status status;
    {
      const auto device = CpuDevice::create("", 1).value();
      RankProcesses ranks(RankEnd(std::move(ends_[0]), shape_.n_ranks, shape_.n_stages));
      status = ranks.open(*device);
      if (status.ok()) status = lead(*device, ranks.lead(), drawn);
    }
    follower.join();
    return status;
  }

  LocalWorld world{2};
  Status followed = Status(Code::kInternal, "not run");

 private:
  void follow() {
    const auto device = CpuDevice::create("", 1).value();
    RankEnd end(std::move(ends_[1]), shape_.n_ranks, shape_.n_stages);
    followed = follow_on(*device, end, models_);
  }
  Status lead(Device& device, Lead& lead, std::vector<int32_t>& drawn) {
    const RankLinks links = lead.links_of(0);
    const SharedModel& shared = models_.front();
    lead.load(0);
    SPECD_TRY(
        const auto model,
        agreed(links.all, Transformer::load(device, shared.path, shared.config, shared.rows_max,
                                            shared.logits_rows_max, {}, links)));
    model->gather_bytes();
    lead.make_pages(0, kProcessPages);
    SPECD_TRY(KvStore kv,
              agreed(links.all, KvStore::create(device, part_of(shared.config, links.split),
                                                shared.kv_dtype, kProcessPages)));
    (void)gathered(links.all, kv.bytes());
    (void)gathered(links.all, 0);  // columns
    SPECD_TRY(const auto worker, Worker::create(device, *model, kv, &lead));
    StepInput input;
    input.rows.pages = {0, 1};
    for (int32_t i = 0; i < 5; ++i) {
      input.rows.token.push_back(10 + i);
      input.rows.position.push_back(i);
      input.rows.slot.push_back(i);
      input.rows.span.push_back(i + 1);
      input.rows.table.push_back(0);
      input.rows.tail_begin.push_back(0);
      input.rows.logits_rows.push_back(i);
      input.draws.push_back({.position = i + 1, .seed = 5, .greedy = true});
    }
    worker->new_columns();
    StepOutput output;
    SPECD_OK_OR_RETURN(worker->run(
        input, {}, [] {}, output));
    drawn = output.drawn;
    KvMoves moves;
    moves.from = {4};
    moves.to = {20};
    SPECD_OK_OR_RETURN(worker->move(moves));
    return lead.status();
  }

  const Shape shape_;
  const std::vector<SharedModel> models_{
      {.path = kFamilyModels + "llama31",
       .config = load_model_config(kFamilyModels + "llama31").value(),
       .kv_dtype = kernels::KvDType::kF32,
       .rows_max = 8,
       .logits_rows_max = 8}};
  std::vector<std::unique_ptr<Messages>> messages_;
  std::vector<std::unique_ptr<Collective>> ends_;
};

constexpr Shape kShapes[] = {{2, 1}, {1, 2}};

TEST(RankProcesses, draw_the_same_as_heads_or_as_stages) {
  std::vector<int32_t> drawn[2];
  for (size_t i = 0; i < 2; ++i) {
    ProcessRig rig(kShapes[i], std::chrono::minutes(1));
    ASSERT_TRUE(rig.run(drawn[i]).ok());
    EXPECT_TRUE(rig.followed.ok()) << "the lead ended it: " << rig.followed.to_string();
    EXPECT_EQ(rig.world.n_open(), 0u);
  }
  EXPECT_EQ(drawn[0].size(), 5u);
  EXPECT_EQ(drawn[0], drawn[1]);
}

// At every message of the load and of the step, so in every exchange.
TEST(RankProcesses, name_a_rank_that_stops_wherever_it_is) {
  for (const Shape& shape : kShapes) {
    std::vector<int32_t> drawn;
    ProcessRig whole(shape, std::chrono::minutes(1));
    ASSERT_TRUE(whole.run(drawn).ok());
    for (const int32_t stopped : {0, 1}) {
      const int32_t n = whole.world.n_messages(stopped);
      ASSERT_GT(n, 3);
      for (int32_t i = 0; i < n; ++i) {
        const std::string what = "rank " + std::to_string(stopped) + " stops at message " +
                                 std::to_string(i) + " of " + std::to_string(n);
        ProcessRig rig(shape, milliseconds(150));
        rig.world.stop_after(stopped, i);
        const auto start = std::chrono::steady_clock::now();
        const Status status = rig.run(drawn);
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << what;
        const Status& seen = stopped == 1 ? status : rig.followed;
        const std::string name = "rank " + std::to_string(stopped);
        EXPECT_NE(seen.message().find(name), std::string::npos) << what << ": " << seen.to_string();
      }
    }
  }
}

TEST(RankProcesses, say_which_rank_has_which_other_file) {
  const auto compare = [](std::vector<RankFact> lead, std::vector<RankFact> other) {
    LocalWorld world(3);
    std::vector<Status> seen(3);
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const auto messages = world.end(rank);
        const auto end = make_message_rank(*messages, {});
        seen[to_size(rank)] = check_same(*end, rank == 2 ? other : lead);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status& each : seen) EXPECT_EQ(each.message(), seen.front().message());
    return seen.front().to_string();
  };
  const std::vector<RankFact> facts{{"the program", sha256("a")}, {"m/config.json", sha256("b")}};
  EXPECT_EQ(compare(facts, facts), "OK");
  EXPECT_EQ(
      compare(facts, {{"the program", sha256("a")}, {"m/config.json", sha256("c")}}),
      "FAILED_PRECONDITION: rank 2: m/config.json is not that of rank 0: its SHA-256 begins with "
      "2e7d2c03a950, there with 3e23e8160039; all ranks need the same");
  EXPECT_EQ(compare(facts, {facts[0]}),
            "FAILED_PRECONDITION: rank 2: it has 1 files and settings to compare, rank 0 2");
  EXPECT_EQ(compare(facts, {{"the program", sha256("a")}, {"n/config.json", sha256("b")}}),
            "FAILED_PRECONDITION: rank 2: it has n/config.json where rank 0 has m/config.json; all "
            "ranks need the same");
}

TEST(RankProcesses, compare_the_file_that_says_how_weights_are_quantized) {
  char root[] = "/tmp/specd_facts_XXXXXX";
  ASSERT_NE(mkdtemp(root), nullptr);
  const std::string folder = std::string(root) + "/model";
  std::filesystem::copy(kFamilyModels + "llama31", folder);
  std::filesystem::copy_file(kFamilyModels + "tokenizer.json", folder + "/tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  const auto facts = [&] {
    const std::vector<SharedModel> models{{.path = folder, .config = {}}};
    return rank_facts({}, models).value();
  };
  const size_t n = facts().size();
  std::ofstream(folder + "/quantize_config.json") << "{}";
  const std::vector<RankFact> with_file = facts();
  ASSERT_EQ(with_file.size(), n + 1);
  EXPECT_EQ(with_file[3].what, folder + "/quantize_config.json");
  EXPECT_EQ(with_file[3].digest, sha256("{}"));
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace specd
