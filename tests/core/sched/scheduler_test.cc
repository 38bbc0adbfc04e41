#include "core/sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <utility>

#include "core/kv/block_table.h"

namespace specd {
namespace {

constexpr SchedulerLimits kLimits{.step_tokens_max = 64, .logits_rows_max = 64, .max_sequences = 4};

Rank rank(int64_t due_ns) { return {due_ns, static_cast<uint64_t>(due_ns)}; }

// A sequence in the middle of its text: one token is without KV.
RunningView decoding(int64_t due_ns, int32_t n_tokens, int32_t draft_nodes_max = 0) {
  const int32_t n_pages = pages_for(n_tokens - 1);
  return {.rank = rank(due_ns),
          .n_tokens = n_tokens,
          .n_computed = n_tokens - 1,
          .n_pages = n_pages,
          .n_own_pages = n_pages,
          .draft_nodes_max = draft_nodes_max};
}
RunningView prefilling(int64_t due_ns, int32_t n_tokens, int32_t n_computed = 0) {
  const int32_t n_pages = pages_for(n_computed);
  return {.rank = rank(due_ns),
          .n_tokens = n_tokens,
          .n_computed = n_computed,
          .n_pages = n_pages,
          .n_own_pages = n_pages,
          .draft_nodes_max = 0};
}
WaitingView waiting(int64_t due_ns, int32_t n_tokens, int32_t cached_pages = 0,
                    int32_t n_idle = 0) {
  return {.rank = rank(due_ns),
          .n_tokens = n_tokens,
          .n_cached_pages = cached_pages,
          .n_idle_pages = n_idle};
}
const PlanItem* item_of(const StepPlan& plan, int32_t sequence) {
  for (const PlanItem& item : plan.items) {
    if (item.sequence == sequence) return &item;
  }
  return nullptr;
}

TEST(Scheduler, nothing_to_do_is_an_empty_plan) {
  const StepPlan plan = plan_step(kLimits, {}, {}, 100, 0);
  EXPECT_EQ(plan.n_admitted(), 0);
  EXPECT_TRUE(plan.items.empty());
  EXPECT_FALSE(plan.pages_short);
}

TEST(Scheduler, admits_in_order_while_pages_and_places_last) {
  // Pages: 3 for the prompt and the next token, plus one for each earlier sequence to grow.
  const std::vector<WaitingView> queue{waiting(1, 40), waiting(2, 40), waiting(3, 2)};
  EXPECT_EQ(plan_step(kLimits, {}, queue, 2, 0).n_admitted(), 0);
  EXPECT_EQ(plan_step(kLimits, {}, queue, 3, 0).n_admitted(), 1);
  // The second does not fit; the third must not overtake it.
  EXPECT_EQ(plan_step(kLimits, {}, queue, 6, 0).n_admitted(), 1);
  EXPECT_TRUE(plan_step(kLimits, {}, queue, 6, 0).pages_short);
  EXPECT_EQ(plan_step(kLimits, {}, queue, 7, 0).n_admitted(), 2);
  EXPECT_EQ(plan_step(kLimits, {}, queue, 9, 0).n_admitted(), 3);
  const std::vector<RunningView> three{decoding(-3, 5), decoding(-2, 5), decoding(-1, 5)};
  EXPECT_EQ(plan_step(kLimits, three, queue, 100, 0).n_admitted(), 1);
}

TEST(Scheduler, what_the_prefix_cache_has_is_neither_computed_nor_taken) {
  const StepPlan shared = plan_step(kLimits, {decoding(1, 50)}, {waiting(2, 50, 3, 0)}, 3, 0);
  ASSERT_EQ(shared.n_admitted(), 1) << "one page for the rest, one for the other to grow";
  EXPECT_EQ(item_of(shared, 1)->n_rows, 2);
  EXPECT_EQ(item_of(shared, 1)->n_new_pages, 1);
  // Pages that only the cache uses are no longer available.
  EXPECT_EQ(plan_step(kLimits, {decoding(1, 50)}, {waiting(2, 50, 3, 3)}, 4, 0).n_admitted(), 0);
  EXPECT_EQ(plan_step(kLimits, {decoding(1, 50)}, {waiting(2, 50, 3, 3)}, 5, 0).n_admitted(), 1);
}

TEST(Scheduler, a_long_prompt_is_cut_into_chunks_and_the_last_wants_a_token) {
  StepPlan plan = plan_step(kLimits, {prefilling(1, 100)}, {}, 100, 0);
  ASSERT_EQ(plan.items.size(), 1u);
  EXPECT_EQ(plan.items[0].n_rows, 64);
  EXPECT_EQ(plan.items[0].n_new_pages, 4);
  EXPECT_FALSE(plan.items[0].wants_token);
  plan = plan_step(kLimits, {prefilling(1, 100, 64)}, {}, 100, 0);
  EXPECT_EQ(plan.items[0].n_rows, 36);
  EXPECT_TRUE(plan.items[0].wants_token);
  EXPECT_EQ(plan.items[0].draft_nodes, 0) << "drafts start when the prompt is done";
}

TEST(Scheduler, a_short_prompt_does_not_wait_behind_a_long_one) {
  const StepPlan plan = plan_step(kLimits, {prefilling(1, 4000)}, {waiting(2, 30)}, 1000, 0);
  ASSERT_EQ(plan.n_admitted(), 1);
  EXPECT_EQ(item_of(plan, 1)->n_rows, 30);
  EXPECT_TRUE(item_of(plan, 1)->wants_token);
  EXPECT_EQ(item_of(plan, 0)->n_rows, 34) << "nothing of the budget is lost";
}

TEST(Scheduler, drafts_get_half_beside_prefill_and_never_more_than_the_rows_of_logits) {
  const std::vector<RunningView> running{decoding(1, 20, 50), decoding(2, 20, 50)};
  StepPlan plan = plan_step(kLimits, running, {}, 100, 0);
  EXPECT_EQ(item_of(plan, 0)->draft_nodes, 31);
  EXPECT_EQ(item_of(plan, 1)->draft_nodes, 31);
  plan = plan_step(kLimits, running, {waiting(3, 100)}, 100, 0);
  EXPECT_EQ(item_of(plan, 0)->draft_nodes + item_of(plan, 1)->draft_nodes, 31);
  EXPECT_EQ(item_of(plan, 2)->n_rows, 31);
  plan = plan_step({.step_tokens_max = 64, .logits_rows_max = 9, .max_sequences = 4}, running,
                   {waiting(3, 100)}, 100, 0);
  EXPECT_EQ(item_of(plan, 0)->draft_nodes + item_of(plan, 1)->draft_nodes, 6);
  EXPECT_EQ(item_of(plan, 2)->n_rows, 56);
}

TEST(Scheduler, prompts_that_are_scored_share_the_rows_of_logits_and_every_one_progresses) {
  RunningView scoring = prefilling(3, 100), other = prefilling(4, 9);
  scoring.scores = other.scores = true;
  constexpr SchedulerLimits kScored{
      .step_tokens_max = 64, .logits_rows_max = 40, .max_sequences = 4, .copied_rows_max = 16};
  // Beside no drafts: 16 rows and the one that each sequence has.
  StepPlan plan = plan_step(kScored, {scoring, other}, {}, 100, 0);
  EXPECT_EQ(item_of(plan, 0)->n_rows, 9);
  EXPECT_EQ(item_of(plan, 1)->n_rows, 9);
  EXPECT_TRUE(item_of(plan, 1)->wants_token);
  // A prompt that is not scored takes what is left of the rows.
  plan = plan_step(kScored, {scoring, prefilling(4, 100)}, {}, 100, 0);
  EXPECT_EQ(item_of(plan, 0)->n_rows, 17);
  EXPECT_EQ(item_of(plan, 1)->n_rows, 47);
  // Of 40 rows of logits 4 are roots and last rows; drafts leave as many as may be copied.
  const std::vector<RunningView> running{decoding(1, 20, 50), decoding(2, 20, 50), scoring, other};
  plan = plan_step(kScored, running, {}, 100, 0);
  EXPECT_EQ(item_of(plan, 0)->draft_nodes + item_of(plan, 1)->draft_nodes, 20);
  EXPECT_EQ(item_of(plan, 2)->n_rows + item_of(plan, 3)->n_rows, 18);
  // Drafts whose logits are copied take from the same 16, at most half.
  std::vector<RunningView> copying = running;
  copying[0].copies = true;
  plan = plan_step(kScored, copying, {}, 100, 0);
  EXPECT_EQ(item_of(plan, 0)->draft_nodes, 8);
  EXPECT_EQ(item_of(plan, 1)->draft_nodes, 12);
  EXPECT_EQ(item_of(plan, 2)->n_rows + item_of(plan, 3)->n_rows, 10);
  copying.resize(2);
  plan = plan_step(kScored, copying, {}, 100, 0);
  EXPECT_EQ(item_of(plan, 0)->draft_nodes, 16) << "all of them without a prompt to score";
  // Without any rows to spare each goes on by its own.
  plan = plan_step({.step_tokens_max = 64, .logits_rows_max = 4, .max_sequences = 4}, running, {},
                   100, 0);
  EXPECT_EQ(item_of(plan, 0)->draft_nodes, 0);
  EXPECT_EQ(item_of(plan, 2)->n_rows, 1);
  EXPECT_EQ(item_of(plan, 3)->n_rows, 1);
}

TEST(Scheduler, short_pages_cost_drafts_before_anything_else) {
  // Both need a page for their root; 20 nodes would take another two each.
  const std::vector<RunningView> running{decoding(1, 17, 20), decoding(2, 17, 20)};
  const StepPlan plan = plan_step(kLimits, running, {}, 3, 0);
  EXPECT_TRUE(plan.preempted.empty());
  EXPECT_EQ(item_of(plan, 0)->draft_nodes, 20);
  EXPECT_EQ(item_of(plan, 0)->n_new_pages, 2);
  EXPECT_EQ(item_of(plan, 1)->draft_nodes, 15) << "the page of its root has room for 15 more";
  EXPECT_EQ(item_of(plan, 1)->n_new_pages, 1);
  EXPECT_TRUE(plan.pages_short);
  EXPECT_FALSE(plan_step(kLimits, running, {}, 4, 0).pages_short);
}

TEST(Scheduler, asks_back_only_pages_that_change_the_plan) {
  // The one that waits needs 3 for itself and 1 for the other to grow; 2 are free. That 1 must be
  // there but is not taken yet.
  const std::vector<RunningView> running{decoding(1, 5)};
  EXPECT_EQ(plan_step(kLimits, running, {waiting(2, 40)}, 2, 8).n_pages_to_reclaim, 1);
  EXPECT_EQ(plan_step(kLimits, running, {waiting(2, 40)}, 2, 2).n_pages_to_reclaim, 1);
  const StepPlan in_vain = plan_step(kLimits, running, {waiting(2, 40)}, 2, 1);
  EXPECT_EQ(in_vain.n_pages_to_reclaim, 0) << "it would wait all the same";
  EXPECT_TRUE(in_vain.pages_short);
  constexpr SchedulerLimits kOne{.step_tokens_max = 64, .logits_rows_max = 64, .max_sequences = 1};
  EXPECT_EQ(plan_step(kOne, running, {waiting(2, 40)}, 2, 8).n_pages_to_reclaim, 0)
      << "it has no place";
  // The running one's root and the waiting one's tokens, each counted once.
  const StepPlan both = plan_step(kLimits, {decoding(1, 17)}, {waiting(2, 40)}, 0, 5);
  EXPECT_EQ(both.n_pages_to_reclaim, 4);
  EXPECT_EQ(both.n_admitted(), 1);
  // Roots first: no sequence is preempted while another page is available.
  const std::vector<RunningView> three{decoding(1, 33), decoding(2, 33), decoding(3, 33)};
  const StepPlan roots = plan_step(kLimits, three, {}, 0, 8);
  EXPECT_EQ(roots.n_pages_to_reclaim, 3);
  EXPECT_TRUE(roots.preempted.empty());
  EXPECT_EQ(roots.items.size(), 3u);
  EXPECT_EQ(plan_step(kLimits, three, {}, 0, 2).items.size(), 2u) << "the last one waits";
  const StepPlan one_short = plan_step(kLimits, three, {}, 0, 1);
  EXPECT_EQ(one_short.preempted, std::vector<int32_t>{2});
  EXPECT_EQ(one_short.n_pages_to_reclaim, 0) << "the preempted one's pages do";
  // A waiting sequence gets both: reclaimable pages, and the pages of sequences ranked after it.
  const StepPlan first = plan_step(kLimits, {decoding(5, 40)}, {waiting(1, 90)}, 1, 2);
  EXPECT_EQ(first.n_pages_to_reclaim, 2);
  EXPECT_EQ(first.preempted, std::vector<int32_t>{0});
  EXPECT_EQ(first.n_admitted(), 1);
  EXPECT_EQ(plan_step(kLimits, {decoding(5, 40)}, {waiting(1, 90)}, 1, 1).n_admitted(), 0);
  // Nodes and roots take what there is.
  const std::vector<RunningView> drafting{decoding(1, 17, 20), decoding(2, 17, 20)};
  EXPECT_EQ(plan_step(kLimits, drafting, {}, 2, 1).n_pages_to_reclaim, 1);
  EXPECT_EQ(plan_step(kLimits, drafting, {}, 2, 8).n_pages_to_reclaim, 2);
  EXPECT_EQ(plan_step(kLimits, drafting, {}, 4, 8).n_pages_to_reclaim, 0);
}

TEST(Scheduler, then_the_one_with_the_largest_rank_is_preempted) {
  // In any order; each needs a page, none is free.
  const std::vector<RunningView> running{decoding(2, 33), decoding(3, 33), decoding(1, 33)};
  const StepPlan plan = plan_step(kLimits, running, {}, 0, 0);
  EXPECT_EQ(plan.preempted, std::vector<int32_t>{1});
  ASSERT_EQ(plan.items.size(), 2u);
  EXPECT_NE(item_of(plan, 0), nullptr);
  EXPECT_NE(item_of(plan, 2), nullptr);
}

TEST(Scheduler, the_last_one_waits_rather_than_preempting_itself_or_others) {
  std::vector<RunningView> running{decoding(1, 33), decoding(2, 33)};
  running[1].n_own_pages = 0;  // shares all with the first
  const StepPlan plan = plan_step(kLimits, running, {}, 1, 0);
  EXPECT_TRUE(plan.preempted.empty());
  EXPECT_NE(item_of(plan, 0), nullptr);
  EXPECT_EQ(item_of(plan, 1), nullptr);
}

TEST(Scheduler, a_waiting_one_preempts_those_with_a_larger_rank_only) {
  const std::vector<RunningView> running{decoding(5, 40), decoding(6, 40), decoding(7, 40),
                                         decoding(8, 40)};
  StepPlan plan = plan_step(kLimits, running, {waiting(9, 10)}, 100, 0);
  EXPECT_TRUE(plan.preempted.empty());
  EXPECT_EQ(plan.n_admitted(), 0);
  plan = plan_step(kLimits, running, {waiting(1, 10)}, 100, 0);
  EXPECT_EQ(plan.preempted, std::vector<int32_t>{3}) << "for its place";
  EXPECT_EQ(plan.n_admitted(), 1);
  plan = plan_step(kLimits, running, {waiting(1, 90)}, 0, 0);
  EXPECT_EQ(plan.preempted, (std::vector<int32_t>{3, 2})) << "6 pages of 3 each";
  EXPECT_EQ(plan.n_admitted(), 1);
  plan = plan_step(kLimits, running, {waiting(1, 200)}, 0, 0);
  EXPECT_TRUE(plan.preempted.empty()) << "all of them together would not do";
  EXPECT_EQ(plan.items.size(), 4u);
}

TEST(Scheduler, what_an_admitted_one_shares_with_a_running_one_is_not_given_away_twice) {
  // The running one holds ten pages; the first waiting one shares eight of them, so that preempting
  // the running one for the second would free two.
  constexpr SchedulerLimits kWide{
      .step_tokens_max = 512, .logits_rows_max = 64, .max_sequences = 4};
  const StepPlan plan =
      plan_step(kWide, {decoding(9, 150)}, {waiting(1, 138, 8), waiting(2, 220)}, 10, 0);
  EXPECT_EQ(plan.n_admitted(), 1);
  EXPECT_TRUE(plan.preempted.empty());
  int32_t taken = 0;
  for (const PlanItem& item : plan.items) taken += item.n_new_pages;
  EXPECT_LE(taken, 10);
}

TEST(Scheduler, shares_are_even_and_nothing_is_lost) {
  std::mt19937 random(3);
  for (int round = 0; round < 5000; ++round) {
    std::vector<int32_t> wants(random() % 8);
    for (int32_t& want : wants) want = static_cast<int32_t>(random() % 20);
    const auto total = static_cast<int32_t>(random() % 80);
    const std::vector<int32_t> shares = share_evenly(wants, total);
    ASSERT_EQ(shares.size(), wants.size());
    ASSERT_EQ(std::accumulate(shares.begin(), shares.end(), 0),
              std::min(total, std::accumulate(wants.begin(), wants.end(), 0)));
    for (size_t i = 0; i < wants.size(); ++i) {
      ASSERT_LE(shares[i], wants[i]);
      ASSERT_GE(shares[i], 0);
      for (size_t j = 0; j < wants.size(); ++j) {
        if (shares[i] < wants[i]) {
          ASSERT_LE(shares[j], shares[i] + 1);
        }
        if (i < j && wants[i] == wants[j]) {
          ASSERT_GE(shares[i], shares[j]);
        }
      }
    }
  }
}

// Requests of random lengths and ranks in a cache that is far too small, to their ends.
void simulate(uint32_t seed) {
  struct Sim {
    Rank rank;
    int32_t n_tokens = 0, n_end = 0, n_computed = 0, n_pages = 0;
    int32_t n_draft_pages = 0;  // of a draft model: reclaimable
    bool scores = false;        // its prompt
    bool copies = false;
  };
  std::mt19937 random(seed);
  const auto pick = [&](int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random() % static_cast<uint32_t>(high - low + 1));
  };
  const int32_t max_sequences = pick(1, 8);
  const SchedulerLimits limits{.step_tokens_max = max_sequences + pick(0, 60),
                               .logits_rows_max = max_sequences + pick(0, 30),
                               .max_sequences = max_sequences,
                               .copied_rows_max = pick(0, 20)};
  const int32_t total = pick(10, 40);
  std::map<Rank, Sim> queue;
  std::vector<Sim> running;
  int32_t to_come = 40, free = total, preemptions = 0, reclaims = 0, steps = 0;
  uint64_t number = 0;
  while (to_come > 0 || !queue.empty() || !running.empty()) {
    ASSERT_LT(++steps, 20000) << "somebody starves, seed " << seed;
    for (; to_come > 0 && pick(0, 2) == 0; --to_come) {
      Sim sim{.rank = {pick(0, 30) + steps, number++}, .n_tokens = pick(1, total * 12)};
      sim.n_end = std::min(sim.n_tokens + pick(1, 60), total * kernels::kPageTokens);
      sim.scores = pick(0, 3) == 0;
      sim.copies = pick(0, 3) == 0;
      queue[sim.rank] = sim;
    }
    std::vector<RunningView> running_views;
    for (const Sim& sim : running) {
      running_views.push_back({.rank = sim.rank,
                               .n_tokens = sim.n_tokens,
                               .n_computed = sim.n_computed,
                               .n_pages = sim.n_pages,
                               .n_own_pages = sim.n_pages,
                               .draft_nodes_max = pick(0, 12),
                               .scores = sim.scores,
                               .copies = sim.copies});
    }
    std::vector<WaitingView> waiting_views;
    for (const auto& [key, sim] : queue)
      waiting_views.push_back({.rank = key, .n_tokens = sim.n_tokens, .scores = sim.scores});
    int32_t reclaimable = 0;
    for (const Sim& sim : running) reclaimable += sim.n_draft_pages;
    const StepPlan plan = plan_step(limits, running_views, waiting_views, free, reclaimable);

    ASSERT_LE(plan.n_pages_to_reclaim, reclaimable);
    // With ample pages, it does not matter which sequence owns which page.
    std::vector<RunningView> unknown = running_views;
    for (RunningView& view : unknown) view.n_own_pages = 0;
    const StepPlan quick = plan_step(limits, unknown, waiting_views, free, reclaimable);
    ASSERT_TRUE(quick.pages_short || !plan.pages_short);
    if (!quick.pages_short) {
      ASSERT_EQ(quick.n_pages_to_reclaim, 0);
      ASSERT_EQ(quick.preempted, plan.preempted);
      ASSERT_EQ(quick.n_admitted(), plan.n_admitted());
    }
    int32_t reclaimed = 0;
    for (Sim& sim : running) {
      if (reclaimed >= plan.n_pages_to_reclaim) break;
      reclaimed += std::exchange(sim.n_draft_pages, 0);
    }
    free += reclaimed;
    reclaims += reclaimed;
    for (const int32_t index : plan.preempted) {
      Sim& sim = running[static_cast<size_t>(index)];
      ASSERT_EQ(item_of(plan, index), nullptr);
      ASSERT_GT(sim.n_pages, 0) << "preempted twice, or for nothing";
      free += sim.n_pages + std::exchange(sim.n_draft_pages, 0);
      sim.n_pages = sim.n_computed = 0;
      queue[sim.rank] = sim;
      ++preemptions;
    }
    for (int32_t i = 0; i < plan.n_admitted(); ++i) {
      const Rank key = waiting_views[static_cast<size_t>(i)].rank;
      ASSERT_EQ(key, queue.begin()->first) << "a preempted one is overtaken";
      running.push_back(queue.at(key));
      queue.erase(key);
    }
    ASSERT_LE(static_cast<int32_t>(running.size() - plan.preempted.size()), max_sequences);
    int32_t rows = 0, logits = 0, copied = 0;
    std::vector<bool> planned(running.size(), false);
    for (const PlanItem& item : plan.items) {
      const auto index = static_cast<size_t>(item.sequence);
      Sim& sim = running.at(index);
      ASSERT_FALSE(planned[index]);
      planned[index] = true;
      const int32_t pending = sim.n_tokens - sim.n_computed;
      ASSERT_GE(item.n_rows, 1);
      ASSERT_LE(item.n_rows, pending);
      ASSERT_EQ(item.wants_token, item.n_rows == pending);
      ASSERT_GE(item.draft_nodes, 0);
      if (index < running_views.size()) {
        ASSERT_LE(item.draft_nodes, running_views[index].draft_nodes_max);
      }
      ASSERT_TRUE(item.draft_nodes == 0 || pending == 1);
      rows += item.n_rows + item.draft_nodes;
      logits += item.draft_nodes + (sim.scores ? item.n_rows : item.wants_token ? 1 : 0);
      copied += sim.scores ? item.n_rows - 1 : sim.copies ? item.draft_nodes : 0;
      free -= item.n_new_pages;
      sim.n_pages += item.n_new_pages;
      ASSERT_LE(sim.n_computed + item.n_rows + item.draft_nodes,
                sim.n_pages * kernels::kPageTokens);
    }
    ASSERT_LE(rows, limits.step_tokens_max);
    ASSERT_LE(logits, limits.logits_rows_max);
    ASSERT_LE(copied, limits.copied_rows_max);
    ASSERT_GE(free, 0) << "pages are overdrawn";

    // The first of all progresses.
    Rank first{INT64_MAX, 0};
    size_t first_running = running.size();
    for (size_t i = 0; i < running.size(); ++i) {
      if (running[i].n_pages > 0 && running[i].rank < first)
        first = running[i].rank, first_running = i;
    }
    if (!queue.empty()) {
      ASSERT_FALSE(queue.begin()->first < first) << "the first of all waits";
    }
    if (first_running < running.size()) {
      ASSERT_TRUE(planned[first_running]);
    }

    for (const PlanItem& item : plan.items) {
      Sim& sim = running[static_cast<size_t>(item.sequence)];
      sim.n_computed += item.n_rows;
      if (!item.wants_token) continue;
      sim.scores = false;
      const int32_t accepted = pick(0, item.draft_nodes);
      sim.n_computed += accepted;
      sim.n_tokens += accepted + 1;
    }
    for (Sim& sim : running) {
      if (sim.n_pages == 0) continue;
      const int32_t keep = sim.n_tokens >= sim.n_end ? 0 : pages_for(sim.n_computed + 1);
      if (keep < sim.n_pages) {
        free += sim.n_pages - keep;
        sim.n_pages = keep;
      }
      if (keep == 0) {
        free += std::exchange(sim.n_draft_pages, 0);
      } else if (free > 0 && pick(0, 2) == 0) {
        --free;
        ++sim.n_draft_pages;
      }
    }
    std::erase_if(running, [](const Sim& sim) { return sim.n_pages == 0; });
  }
  EXPECT_EQ(free, total);
  static int all_preemptions = 0, all_reclaims = 0;
  all_preemptions += preemptions;
  all_reclaims += reclaims;
  if (seed == 200) {
    EXPECT_GT(all_preemptions, 300) << "the cache was small";
    EXPECT_GT(all_reclaims, 300);
  }
}

TEST(Scheduler, everybody_finishes_the_first_always_progresses_and_nothing_is_overdrawn) {
  for (uint32_t seed = 1; seed <= 200 && !HasFatalFailure(); ++seed) simulate(seed);
}

}  // namespace
}  // namespace specd
