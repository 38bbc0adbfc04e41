#include "core/step/drafting.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/siphash.h"
#include "core/step/proposal.h"

namespace specd {
namespace {

// Answers every call with SPECD_OK.
struct FakeDrafter {
  int n_begun = 0, n_ended = 0, n_proposed = 0;
  specd_status begin_status = SPECD_OK;      // of every sequence
  std::vector<specd_status> propose_status;  // by sequence; the rest are SPECD_OK
  int32_t n_nodes = 4;                       // that it claims
  std::vector<int32_t> tokens;               // of every sequence, from its first node on
  std::vector<uint64_t> tenants;             // of the sequences that began
};
FakeDrafter& self(specd_drafter* d) { return *reinterpret_cast<FakeDrafter*>(d); }

specd_status activate(specd_drafter*, const specd_drafter_grant*) noexcept { return SPECD_OK; }
specd_status begin(specd_drafter* d, const specd_begin_args* args) noexcept {
  for (uint32_t s = 0; s < args->batch->n_seqs; ++s) {
    args->batch->seq_status[s] = self(d).begin_status;
    ++self(d).n_begun;
    self(d).tenants.push_back(args->tenant[s]);
  }
  return SPECD_OK;
}
specd_status propose(specd_drafter* d, const specd_propose_args* args) noexcept {
  const FakeDrafter& fake = self(d);
  ++self(d).n_proposed;
  auto* count = static_cast<int32_t*>(args->out->n_nodes->data);
  auto* token = static_cast<int32_t*>(args->out->token->data);
  for (uint32_t s = 0; s < args->batch->n_seqs; ++s) {
    if (s < fake.propose_status.size()) args->batch->seq_status[s] = fake.propose_status[s];
    count[s] = fake.n_nodes;
    std::copy(fake.tokens.begin(), fake.tokens.end(), token + s * args->out->node_capacity);
  }
  return SPECD_OK;
}
void end(specd_drafter* d, const specd_end_args*) noexcept { ++self(d).n_ended; }
void nothing(specd_drafter*) noexcept {}

constexpr specd_drafter_api kApi = {sizeof(specd_drafter_api),
                                    0,
                                    nullptr,
                                    nullptr,
                                    &activate,
                                    nullptr,
                                    &begin,
                                    nullptr,
                                    &propose,
                                    &end,
                                    &nothing,
                                    &nothing};

class DraftingTest : public testing::Test {
 protected:
  DraftingTest() { make_route(); }

  void make_route() {
    specd_drafter_caps caps{};
    caps.struct_size = sizeof(caps);
    caps.tree_mode = SPECD_TREE_CHAIN;
    caps.attach_modes = SPECD_ATTACH_FRESH;
    caps.max_nodes = caps.max_depth = 4;
    specd_drafter_grant grant{};
    grant.struct_size = sizeof(grant);
    grant.device_type = SPECD_DEV_CPU;
    grant.max_nodes = grant.max_depth = 4;
    grant.max_rows = 16;
    auto owner = std::make_unique<specd_owner>();
    owner->plugin = "org.example.fake";
    route_ = std::make_shared<LiveRoute>();
    route_->name = "r";
    route_->drafter =
        std::make_unique<LoadedDrafter>(&kApi, reinterpret_cast<specd_drafter*>(&fake_), caps,
                                        std::move(owner), "fake", std::vector<UsedPlugin>());
    ASSERT_TRUE(route_->drafter->activate(grant).ok());
  }
  // After a prompt of three tokens.
  ActiveSequence sequence(DrafterSession::State state, const std::string& salt = "") {
    static const auto tokenizer = std::shared_ptr<const Tokenizer>(
        Tokenizer::load(std::string(SPECD_TEST_ZOO) + "/pico-draft/tokenizer.json").value());
    Request request;
    request.max_tokens = 100;
    request.cache_salt = salt;
    ActiveSequence member;
    member.sequence = std::make_unique<Sequence>(++number_, request, std::vector<int32_t>{1, 2, 3},
                                                 SamplingParams(), std::vector<int32_t>{},
                                                 tokenizer, [](const Event&) {});
    member.route = RouteLease(route_);
    member.slot = 0;
    member.n_rows = 1;
    member.draft_nodes = 4;
    member.draft.state = state;
    return member;
  }
  void propose() {
    ActiveSequence first = sequence(DrafterSession::State::kOn);
    ActiveSequence second = sequence(DrafterSession::State::kOn);
    Proposal proposal(step_, *route_, {&first, &second}, step_.call_columns());
    if (proposal.call()) proposal.take();
  }
  bool is_suspended() const { return route_->breaker.is_open(now_ns()); }
  void suspend() {
    for (int i = 0; i < kDrafterFailuresMax; ++i)
      route_->breaker.record(static_cast<size_t>(DrafterCall::kPropose), false, now_ns());
    ASSERT_TRUE(is_suspended());
  }

  std::unique_ptr<CpuDevice> device_ = CpuDevice::create("scalar", 1).value();
  PagePool pool_{4};
  ModelService models_{*device_, pool_};
  StepContext step_{.device = *device_,
                    .host = *device_,
                    .models = models_,
                    .vocab_size = 100,
                    .hidden_size = 8,
                    .step_id = 1,
                    .calls = Staging::create(*device_, 1 << 16, "columns").value(),
                    .slots = {},
                    .slot_numbers = {}};
  FakeDrafter fake_;
  std::shared_ptr<LiveRoute> route_;
  uint64_t number_ = 0;
};

TEST_F(DraftingTest, proposals_without_one_that_is_usable_suspend_the_drafter) {
  for (const bool is_malformed : {false, true}) {
    make_route();
    fake_ = FakeDrafter();
    if (is_malformed) {
      fake_.n_nodes = -1;
    } else {
      fake_.propose_status = {SPECD_E_INTERNAL, SPECD_E_DATA};
    }
    testing::internal::CaptureStderr();
    for (int i = 1; i < kDrafterFailuresMax; ++i) propose();
    EXPECT_FALSE(is_suspended());
    propose();
    EXPECT_TRUE(is_suspended());
    const std::string logged = testing::internal::GetCapturedStderr();
    EXPECT_NE(logged.find("route r: the drafter is suspended"), std::string::npos) << logged;
    EXPECT_NE(logged.find(is_malformed ? "count_negative" : "SPECD_E_DATA"), std::string::npos)
        << logged;
  }
}

TEST_F(DraftingTest, empty_or_partly_usable_proposals_work) {
  const auto expect_works = [this](const char* what) {
    for (int i = 0; i < 3 * kDrafterFailuresMax; ++i) propose();
    EXPECT_FALSE(is_suspended()) << what;
  };
  fake_.n_nodes = 0;
  expect_works("no node");
  fake_.n_nodes = 4;
  expect_works("no token");
  fake_.tokens = {5, -7, 5, 5};
  expect_works("cut after its first node");
  fake_.tokens = {5, 5, 5, 5};
  fake_.propose_status = {SPECD_E_INTERNAL};
  expect_works("one of two fails");
}

TEST_F(DraftingTest, sequences_of_a_pause_count_as_lost_once_and_new_ones_begin_after_it) {
  std::vector<ActiveSequence> running;
  running.push_back(sequence(DrafterSession::State::kOn));
  running.push_back(sequence(DrafterSession::State::kNotBegun));
  suspend();
  for (int step = 0; step < 3; ++step) begin_drafting(step_, running);
  EXPECT_EQ(route_->counters.sequences_lost, 2u);
  EXPECT_EQ(fake_.n_begun, 0);
  EXPECT_EQ(fake_.n_ended, 1);
  while (is_suspended()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  begin_drafting(step_, running);
  EXPECT_EQ(fake_.n_begun, 1) << "the one that had begun before has lost its state";
  EXPECT_TRUE(running[1].drafts());
  EXPECT_EQ(route_->counters.sequences_lost, 2u);
  suspend();
  begin_drafting(step_, running);
  EXPECT_EQ(route_->counters.sequences_lost, 2u) << "each once";
  EXPECT_EQ(fake_.n_ended, 2);
}

TEST_F(DraftingTest, sequence_that_cannot_be_attached_is_no_loss) {
  std::vector<ActiveSequence> running;
  running.push_back(sequence(DrafterSession::State::kNotBegun));
  running.back().resumed = true;
  begin_drafting(step_, running);
  EXPECT_EQ(running[0].draft.state, DrafterSession::State::kLost);
  EXPECT_EQ(fake_.n_begun, 0);
  EXPECT_EQ(route_->counters.sequences_lost, 0u);
}

TEST_F(DraftingTest, drafters_are_told_which_sequences_have_the_same_salt_and_not_which) {
  std::vector<ActiveSequence> running;
  for (const char* salt : {"acme", "", "acme ", "acme", ""})
    running.push_back(sequence(DrafterSession::State::kNotBegun, salt));
  begin_drafting(step_, running);
  const std::vector<uint64_t>& tenants = fake_.tenants;
  ASSERT_EQ(tenants.size(), 5u);
  EXPECT_EQ(tenants[1], 0u);
  EXPECT_EQ(tenants[4], 0u);
  EXPECT_NE(tenants[0], 0u);
  EXPECT_NE(tenants[2], 0u);
  EXPECT_EQ(tenants[0], tenants[3]);
  EXPECT_NE(tenants[0], tenants[2]);
  EXPECT_NE(tenants[0], siphash({0, 0}, "acme", 4)) << "the key is a secret";
}

TEST_F(DraftingTest, losses_at_the_rate_of_requests_are_logged_within_the_plugins_budget) {
  fake_.begin_status = SPECD_E_EXHAUSTED;
  testing::internal::CaptureStderr();
  const uint64_t start = now_ns();
  for (int i = 0; i < 1000; ++i) {
    std::vector<ActiveSequence> running;
    running.push_back(sequence(DrafterSession::State::kNotBegun));
    begin_drafting(step_, running);
  }
  const uint64_t seconds = (now_ns() - start) / 1'000'000'000 + 2;  // begun ones
  const std::string logged = testing::internal::GetCapturedStderr();
  const auto lines = static_cast<uint64_t>(std::count(logged.begin(), logged.end(), '\n'));
  EXPECT_GE(lines, 1u);
  EXPECT_LE(lines, 101 * seconds);
  EXPECT_EQ(route_->counters.sequences_lost, 1000u);
  EXPECT_NE(route_->last_problem.get().find("begin: SPECD_E_EXHAUSTED"), std::string::npos);
}

}  // namespace
}  // namespace specd
