#include "core/sched/scheduler.h"

#include <gtest/gtest.h>

#include <random>

namespace specd {
namespace {

constexpr SchedulerLimits kLimits{.step_tokens_max = 64, .max_sequences = 4};

TEST(Scheduler, nothing_to_do_is_an_empty_plan) {
  const StepPlan plan = plan_step(kLimits, {}, {}, 100);
  EXPECT_EQ(plan.n_admitted, 0);
  EXPECT_TRUE(plan.items.empty());
}

TEST(Scheduler, admits_in_order_while_pages_and_places_last) {
  const std::vector<WaitingView> waiting{
      {.pages = 5, .n_pending = 3}, {.pages = 6, .n_pending = 3}, {.pages = 1, .n_pending = 3}};
  // The second does not fit; the third must not overtake it.
  EXPECT_EQ(plan_step(kLimits, {}, waiting, 10).n_admitted, 1);
  EXPECT_EQ(plan_step(kLimits, {}, waiting, 11).n_admitted, 2);
  EXPECT_EQ(plan_step(kLimits, {{}, {}, {}}, waiting, 100).n_admitted, 1);
  EXPECT_EQ(plan_step(kLimits, {{}, {}, {}, {}}, waiting, 100).n_admitted, 0);
}

TEST(Scheduler, a_long_prompt_is_cut_into_chunks) {
  const StepPlan plan = plan_step(kLimits, {{.n_pending = 100, .draft_nodes_max = 0}}, {}, 0);
  ASSERT_EQ(plan.items.size(), 1u);
  EXPECT_EQ(plan.items[0].n_rows, 64);
  EXPECT_FALSE(plan.items[0].wants_token);
}

TEST(Scheduler, the_last_chunk_wants_a_token) {
  const StepPlan plan = plan_step(kLimits, {{.n_pending = 36, .draft_nodes_max = 8}}, {}, 0);
  ASSERT_EQ(plan.items.size(), 1u);
  EXPECT_TRUE(plan.items[0].wants_token);
  EXPECT_EQ(plan.items[0].draft_nodes, 0) << "drafts start when the prompt is done";
}

// Invariants over random states.
TEST(Scheduler, every_plan_keeps_the_budget_and_lets_all_decode) {
  std::mt19937 random(4);
  for (int round = 0; round < 20000; ++round) {
    const SchedulerLimits limits{.step_tokens_max = static_cast<int32_t>(8 + random() % 64),
                                 .max_sequences = 8};
    std::vector<RunningView> running(random() % 9);
    for (RunningView& view : running) {
      view.n_pending = random() % 2 ? 1 : static_cast<int32_t>(1 + random() % 100);
      view.draft_nodes_max = static_cast<int32_t>(random() % 20);
    }
    std::vector<WaitingView> waiting(random() % 4);
    for (WaitingView& view : waiting) {
      view.pages = static_cast<int32_t>(1 + random() % 10);
      view.n_pending = static_cast<int32_t>(1 + random() % 100);
    }
    const int32_t pages_free = static_cast<int32_t>(random() % 30);
    const StepPlan plan = plan_step(limits, running, waiting, pages_free);

    int32_t pages = 0;
    for (int32_t i = 0; i < plan.n_admitted; ++i) {
      pages += waiting[static_cast<size_t>(i)].pages;
      running.push_back(
          {.n_pending = waiting[static_cast<size_t>(i)].n_pending, .draft_nodes_max = 0});
    }
    ASSERT_LE(pages, pages_free);
    ASSERT_LE(running.size(), 8u);
    int32_t rows = 0;
    std::vector<bool> planned(running.size(), false);
    for (const PlanItem& item : plan.items) {
      const auto index = static_cast<size_t>(item.sequence);
      ASSERT_LT(index, running.size());
      ASSERT_FALSE(planned[index]);
      planned[index] = true;
      ASSERT_GE(item.n_rows, 1);
      ASSERT_LE(item.n_rows, running[index].n_pending);
      ASSERT_EQ(item.wants_token, item.n_rows == running[index].n_pending);
      ASSERT_GE(item.draft_nodes, 0);
      ASSERT_LE(item.draft_nodes, running[index].draft_nodes_max);
      rows += item.n_rows + item.draft_nodes;
    }
    ASSERT_LE(rows, limits.step_tokens_max);
    bool prefill_waits = false, prefill_runs = false;
    for (size_t i = 0; i < running.size(); ++i) {
      if (running[i].n_pending == 1) {
        ASSERT_TRUE(planned[i]) << "a decoding sequence was left out";
      } else {
        (planned[i] ? prefill_runs : prefill_waits) = true;
      }
    }
    // Rows are left for prefill unless roots alone take nearly all.
    if (prefill_waits && !prefill_runs) {
      ASSERT_GE(rows, limits.step_tokens_max - 1);
    }
  }
}

}  // namespace
}  // namespace specd
