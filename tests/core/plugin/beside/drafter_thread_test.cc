#include "core/plugin/beside/drafter_thread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "tests/core/plugin/beside/driver.h"
#include "tests/core/plugin/beside/recording_drafter.h"

namespace specd {
namespace {

std::unique_ptr<DrafterThread> start(Drafter& drafter, uint64_t wait_ns = 60 * kSecondNs,
                                     uint64_t hang_ns = 60 * kSecondNs, OnCalled on_called = {},
                                     ShadowObserver* observer = nullptr) {
  if (!on_called) on_called = [](CallKind, const Status&, uint64_t) {};
  const BesideTerms terms{.vocab_size = 1000,
                          .hidden_size = kHidden,
                          .max_positions = 1000,
                          .limits = {.wait_ns = wait_ns, .hang_ns = hang_ns},
                          .on_called = std::move(on_called)};
  return DrafterThread::start(drafter, terms, CpuDevice::create("scalar", 1).value(), observer)
      .value();
}

void wait_for(const std::function<bool()>& is_so) {
  const uint64_t end = now_ns() + 60 * kSecondNs;
  bool is = is_so();
  for (; !is && now_ns() < end; is = is_so())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(is);
}

// Under load a thread may answer later than the step waits; it does some time.
void expect_drafts(DrafterThread& thread, Driver& driver) {
  wait_for([&] {
    return thread.calls().take_answers().ok() && thread.calls().is_ready() &&
           !driver.propose(4, false, false).empty();
  });
}

struct Kind {
  bool is_tree, with_probes, with_hidden, with_top;
};

// A drafter beside the step gets the very calls that it would get in the step, and its proposals arrive.
class SameCalls : public testing::TestWithParam<Kind> {};

TEST_P(SameCalls, as_in_the_step_also_when_sequences_fail) {
  const Kind kind = GetParam();
  RecordingDrafter in_step, beside;
  for (RecordingDrafter* each : {&in_step, &beside}) {
    each->n_taps = kind.with_hidden ? 2 : 0;
    each->top_k = kind.with_top ? kTopK : 0;
    each->begin_fails = 7;
    each->update_fails = 5;
  }
  const std::unique_ptr<Drafter> one = in_step.make(kind.is_tree, kind.with_probes);
  const std::unique_ptr<Drafter> two = beside.make(kind.is_tree, kind.with_probes);
  std::unique_ptr<DrafterThread> thread = start(*two);
  Driver first(*one), second(thread->calls());
  std::mt19937 random(1);
  uint64_t id = 0;
  int n_proposed = 0;
  for (int step = 0; step < 400; ++step) {
    for (uint32_t slot = 0; slot < 4; ++slot) {
      if (!first.is_free(slot) || random() % 3 != 0) continue;
      std::vector<int32_t> tokens(1 + random() % 900);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 1000);
      ++id;
      first.begin(slot, id, tokens);
      second.begin(slot, id, tokens);
    }
    if (random() % 4 != 0) {
      const auto budget = static_cast<int32_t>(1 + random() % kNodes);
      // One round of waiting, so that both know which sequences are lost.
      const std::string wanted = first.propose(budget, kind.is_tree, kind.with_probes);
      std::string found = second.propose(budget, kind.is_tree, kind.with_probes);
      // A sequence that is lost, and is not known to be, has an empty draft.
      std::string rest;
      for (size_t at = 0; at < found.size();) {
        const size_t end = found.find('\n', at);
        const std::string line = found.substr(at, end + 1 - at);
        if (wanted.find(line) != std::string::npos) rest += line;
        at = end + 1;
      }
      ASSERT_EQ(rest, wanted) << "step " << step << ", all:\n" << found;
      n_proposed += wanted.empty() ? 0 : 1;
    }
    const auto n_rows = static_cast<uint32_t>(random() % 6);
    first.update(n_rows, kind.with_hidden, kind.with_top);
    second.update(n_rows, kind.with_hidden, kind.with_top);
    for (uint32_t slot = 0; slot < 4; ++slot) {
      if (first.is_free(slot) || random() % 8 != 0) continue;
      const auto reason = static_cast<uint32_t>(random() % 4);
      first.leave(slot, reason);
      second.leave(slot, reason);
    }
  }
  for (uint32_t slot = 0; slot < 4; ++slot) {
    if (first.is_free(slot)) continue;
    first.leave(slot, SPECD_END_FINISHED);
    second.leave(slot, SPECD_END_FINISHED);
  }
  wait_for([&] { return beside.n_ended == in_step.n_ended; });
  thread.reset();
  EXPECT_GT(n_proposed, 200);
  EXPECT_GT(id, 100u);
  ASSERT_EQ(in_step.log.size(), beside.log.size());
  for (const auto& [sequence, log] : in_step.log) ASSERT_EQ(beside.log[sequence], log) << sequence;
  for (const RecordingDrafter* each : {&in_step, &beside})
    EXPECT_EQ(each->n_begun, each->n_ended.load());
}

INSTANTIATE_TEST_SUITE_P(Kinds, SameCalls,
                         testing::Values(Kind{false, false, false, false},
                                         Kind{true, true, false, true},
                                         Kind{true, false, true, true},
                                         Kind{false, false, true, false}));

TEST(DrafterThread, a_late_proposal_costs_one_draft_and_is_dropped) {
  RecordingDrafter recording;
  const std::unique_ptr<Drafter> drafter = recording.make(false, false);
  const std::unique_ptr<DrafterThread> thread = start(*drafter, 20'000'000);
  Driver driver(thread->calls());
  driver.begin(0, 1, {1, 2, 3});
  expect_drafts(*thread, driver);
  recording.holds = true;
  Status late;
  const uint64_t start_ns = now_ns();
  EXPECT_EQ(driver.propose(4, false, false, &late), "");
  EXPECT_GE(now_ns() - start_ns, 20'000'000u);
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_NE(late.message().find("20000 us (step_budget_us)"), std::string::npos);
  EXPECT_FALSE(thread->calls().is_ready()) << "the buffers are in use";
  driver.update(3, false, false);  // waits there
  recording.holds = false;
  expect_drafts(*thread, driver);
  driver.leave(0, SPECD_END_FINISHED);
}

TEST(DrafterThread, a_call_that_does_not_return_is_noticed_by_who_asks) {
  RecordingDrafter recording;
  const std::unique_ptr<Drafter> drafter = recording.make(false, false);
  const std::unique_ptr<DrafterThread> thread = start(*drafter, 1'000'000, 50'000'000);
  Driver driver(thread->calls());
  driver.begin(0, 1, {1});
  recording.holds = true;
  Status late;
  driver.propose(4, false, false, &late);
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(thread->calls().take_answers().ok()) << "not long enough";
  Status hung;
  wait_for([&] { return !(hung = thread->calls().take_answers()).ok(); });
  EXPECT_EQ(hung.to_string(),
            "DEADLINE_EXCEEDED: a call has not returned within call_ms_max, 50 ms");
  recording.holds = false;
  wait_for([&] { return thread->calls().take_answers().ok(); });
  driver.leave(0, SPECD_END_FINISHED);
  // A pause of the engine is no hang of the drafter.
  wait_for([&] { return recording.n_ended == 1; });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  driver.begin(1, 2, {1});
  EXPECT_TRUE(thread->calls().take_answers().ok());
  driver.leave(1, SPECD_END_FINISHED);
}

TEST(DrafterThread, one_that_is_far_behind_loses_its_sequences_and_may_begin_again) {
  RecordingDrafter recording;
  recording.n_taps = 2;
  const std::unique_ptr<Drafter> drafter = recording.make(false, false);
  std::unique_ptr<DrafterThread> thread = start(*drafter, 1'000'000);
  Driver driver(thread->calls());
  driver.begin(0, 1, {1});
  driver.begin(1, 2, {1});
  recording.holds = true;
  driver.propose(4, false, false);
  wait_for([&] { return recording.is_inside.load(); });
  for (int i = 0; i < 100'000 && !driver.is_lost(0); ++i) driver.update(1, true, false);
  EXPECT_TRUE(driver.is_lost(0));
  EXPECT_TRUE(driver.is_lost(1));
  EXPECT_EQ(thread->calls().loss_of(0, 1), SequenceLoss::kMayBegin);
  EXPECT_NE(std::string(thread->calls().why_lost()).find("far behind"), std::string::npos);
  recording.holds = false;
  wait_for([&] { return thread->calls().take_answers().ok() && thread->calls().is_ready(); });
  driver.begin(0, 1, {1, 2, 3, 4});
  expect_drafts(*thread, driver);
  driver.leave(0, SPECD_END_FINISHED);
  thread.reset();
  EXPECT_EQ(recording.n_begun, 3);
  EXPECT_EQ(recording.n_ended.load(), 3);
}

// The answer to a call of before must not be taken for one about the sequence that is there now.
TEST(DrafterThread, a_sequence_that_begins_again_is_not_lost_by_what_failed_before) {
  RecordingDrafter recording;
  const std::unique_ptr<Drafter> drafter = recording.make(false, false);
  std::unique_ptr<DrafterThread> thread = start(*drafter, 1'000'000);
  Driver driver(thread->calls());
  driver.begin(0, 1, {1});
  recording.holds = true;
  driver.propose(4, false, false);  // keeps the drafter while the rest is sent
  recording.update_fails = 1;
  driver.update(1, false, false);
  driver.update(1, false, false);  // fails
  driver.leave(0, SPECD_END_PREEMPTED);
  driver.begin(0, 1, {1, 2, 3});
  recording.holds = false;
  expect_drafts(*thread, driver);
  EXPECT_FALSE(driver.is_lost(0)) << thread->calls().why_lost();
  driver.leave(0, SPECD_END_FINISHED);
  driver.begin(0, 2, {1});
  driver.leave(0, SPECD_END_FINISHED);
  wait_for([&] { return recording.n_ended == 3; });
  thread.reset();
  EXPECT_EQ(recording.n_begun, 3);
}

TEST(DrafterThread, one_that_is_abandoned_is_called_no_more) {
  RecordingDrafter recording;
  const std::unique_ptr<Drafter> drafter = recording.make(false, false);
  std::unique_ptr<DrafterThread> thread = start(*drafter, 1'000'000);
  Driver driver(thread->calls());
  driver.begin(0, 1, {1});
  recording.holds = true;
  driver.propose(4, false, false);
  wait_for([&] { return recording.is_inside.load(); });
  driver.update(2, false, false);
  driver.leave(0, SPECD_END_FINISHED);
  thread->abandon();
  EXPECT_FALSE(thread->stop(std::chrono::milliseconds(20)));
  recording.holds = false;
  EXPECT_TRUE(thread->stop(std::chrono::minutes(1)));
  thread.reset();
  EXPECT_EQ(recording.n_ended.load(), 0);
  EXPECT_EQ(recording.log[1].find("row"), std::string::npos);
}

TEST(DrafterThread, a_proposal_that_was_skipped_is_not_awaited_for_ever) {
  RecordingDrafter recording;
  recording.n_taps = 2;
  const std::unique_ptr<Drafter> drafter = recording.make(false, false);
  std::unique_ptr<DrafterThread> thread = start(*drafter, 1'000'000);
  Driver driver(thread->calls());
  recording.begin_waits = true;
  driver.begin(0, 1, {1});
  Status late;
  driver.propose(4, false, false, &late);  // lies behind a begin() that takes long
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  for (int i = 0; i < 100'000 && !driver.is_lost(0); ++i) driver.update(1, true, false);
  EXPECT_TRUE(driver.is_lost(0));
  EXPECT_FALSE(thread->calls().is_ready());
  recording.begin_waits = false;
  wait_for([&] { return thread->calls().take_answers().ok() && thread->calls().is_ready(); });
  driver.begin(0, 1, {1, 2});
  expect_drafts(*thread, driver);
  driver.leave(0, SPECD_END_FINISHED);
  thread.reset();
  EXPECT_EQ(recording.n_begun, recording.n_ended.load());
}

TEST(DrafterThread, how_calls_end_is_told_when_the_step_asks) {
  RecordingDrafter recording;
  const std::unique_ptr<Drafter> drafter = recording.make(false, false);
  std::vector<std::string> told;
  const std::unique_ptr<DrafterThread> thread =
      start(*drafter, kSecondNs, kSecondNs, [&](CallKind kind, const Status& status, uint64_t) {
        told.push_back((kind == CallKind::kBegin ? "begin " : "update ") + status.to_string());
      });
  Driver driver(thread->calls());
  driver.begin(0, 1, {1});
  EXPECT_TRUE(told.empty());
  driver.propose(4, false, false);
  EXPECT_EQ(told, std::vector<std::string>{"begin OK"});
  recording.call_fails = true;
  driver.update(1, false, false);
  wait_for([&] { return thread->calls().take_answers().ok() && told.size() == 2; });
  EXPECT_EQ(told[1],
            "update INTERNAL: plugin recording: update() returned SPECD_E_INTERNAL (11), reported "
            "no reason");
  EXPECT_EQ(thread->calls().loss_of(0, 1), SequenceLoss::kFinal);
  EXPECT_NE(std::string(thread->calls().why_lost()).find("SPECD_E_INTERNAL"), std::string::npos);
  driver.take_losses();
  driver.leave(0, SPECD_END_FINISHED);
}

struct Watching final : ShadowObserver {
  std::mutex mutex;
  std::vector<std::string> seen;
  void note(std::string text) {
    const std::lock_guard lock(mutex);
    seen.push_back(std::move(text));
  }
  void called(CallKind, const Status& status, uint64_t) override {
    if (!status.ok()) note("failed: " + status.message());
  }
  void lost(uint32_t n, const std::string&) override { note("lost " + std::to_string(n)); }
  void refused(uint32_t n, const std::string& defect) override {
    note("refused " + std::to_string(n) + ": " + defect);
  }
  void scored(int32_t n_nodes, int32_t n_accepted) override {
    note(std::to_string(n_accepted) + " of " + std::to_string(n_nodes));
  }
};

TEST(DrafterThread, a_shadow_is_never_waited_for_and_its_proposals_are_scored) {
  RecordingDrafter recording;
  const std::unique_ptr<Drafter> drafter = recording.make(false, false);
  Watching watching;
  std::unique_ptr<DrafterThread> thread = start(*drafter, 0, 60 * kSecondNs, {}, &watching);
  Driver driver(thread->calls());
  recording.holds = true;
  const uint64_t start_ns = now_ns();
  driver.begin(0, 1, {5, 6, 7});
  driver.propose(8, false, false);  // proposes 3, 4, 5, 6: its id and position, and so on
  driver.update(3, false, false);
  EXPECT_LT(now_ns() - start_ns, 10 * kSecondNs);
  EXPECT_TRUE(thread->calls().is_ready());
  recording.holds = false;
  driver.leave(0, SPECD_END_FINISHED);
  driver.begin(0, 1000 * 7, {1});
  driver.leave(0, SPECD_END_FINISHED);
  wait_for([&] { return recording.n_ended == 2; });
  thread.reset();
  // The text goes on with 12 + 1.
  EXPECT_EQ(watching.seen, std::vector<std::string>{"0 of 4"});
}

TEST(DrafterThread, a_shadow_that_does_not_keep_up_misses_proposals_first) {
  RecordingDrafter recording;
  const std::unique_ptr<Drafter> drafter = recording.make(false, false);
  Watching watching;
  std::unique_ptr<DrafterThread> thread = start(*drafter, 0, 60 * kSecondNs, {}, &watching);
  Driver driver(thread->calls());
  driver.begin(0, 1, {1});
  recording.holds = true;
  driver.propose(4, false, false);
  wait_for([&] { return recording.is_inside.load(); });
  // Four times as many proposals as there is room for.
  for (int i = 0; i < 4000; ++i) driver.propose(4, false, false);
  EXPECT_FALSE(driver.is_lost(0)) << "there is room for the text still";
  recording.holds = false;
  driver.leave(0, SPECD_END_FINISHED);
  thread.reset();
  EXPECT_EQ(recording.n_ended.load(), 1);
  EXPECT_LT(std::count(recording.log[1].begin(), recording.log[1].end(), '\n'), 4000);
}

TEST(DrafterThread, its_rings_are_counted_while_it_lives) {
  RecordingDrafter plugin;
  const std::unique_ptr<Drafter> drafter = plugin.make(false, false);
  std::atomic<uint64_t> bytes{0};
  const BesideTerms terms{.vocab_size = 1000,
                          .hidden_size = kHidden,
                          .max_positions = 1000,
                          .limits = {.wait_ns = kSecondNs, .hang_ns = kSecondNs},
                          .on_called = [](CallKind, const Status&, uint64_t) {},
                          .ring_bytes = &bytes};
  const CallShape shape = shape_of(drafter->caps(), drafter->grant(), 1000, kHidden);
  const uint64_t planned = rings_bytes(shape, rows_max_of(drafter->grant(), shape), 1000);
  for (int i = 0; i < 2; ++i) {
    auto thread =
        DrafterThread::start(*drafter, terms, CpuDevice::create("scalar", 1).value(), nullptr);
    ASSERT_TRUE(thread.ok());
    EXPECT_EQ(bytes, planned);
    thread.value().reset();
    EXPECT_EQ(bytes, 0u);
  }
}

}  // namespace
}  // namespace specd
