#include "core/plugin/beside/drafter_thread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/plugin/instance/tensor.h"
#include "tests/core/plugin/beside/recording_drafter.h"

namespace specd {
namespace {

constexpr int32_t kHidden = 3, kTopK = 2, kNodes = 8;
constexpr uint64_t kSecondNs = 1'000'000'000;

// A batch, and the columns of one call.
struct Call {
  explicit Call(const std::vector<std::pair<uint64_t, uint32_t>>& sequences) {
    for (const auto& [id, its_slot] : sequences) {
      ids.push_back(id);
      slot.push_back(its_slot);
      slot_column.push_back(static_cast<int32_t>(its_slot));
      specd_sampling& its = sampling.emplace_back();
      its.struct_size = sizeof(its);
      its.seed = 1000 + id;
    }
    for (const specd_sampling& each : sampling) sampling_ptr.push_back(&each);
    status.assign(ids.size(), SPECD_OK);
    state.assign(ids.size(), nullptr);
    slots = ints(slot_column);
    batch.struct_size = sizeof(batch);
    batch.n_seqs = static_cast<uint32_t>(ids.size());
    batch.call = &call;
    batch.seq_id = ids.data();
    batch.seq_state = state.data();
    batch.seq_status = status.data();
    batch.slot = slot.data();
    batch.slots = &slots;
    call.batch = &batch;
    call.sampling = sampling_ptr.data();
  }
  static specd_tensor ints(std::vector<int32_t>& column) {
    return host_i32(column.data(), {static_cast<int64_t>(column.size())});
  }

  specd_call call;
  specd_batch batch{};
  specd_tensor slots{};
  std::vector<uint64_t> ids;
  std::vector<uint32_t> slot;
  std::vector<int32_t> slot_column;
  std::vector<specd_sampling> sampling;
  std::vector<const specd_sampling*> sampling_ptr;
  std::vector<specd_status> status;
  std::vector<void*> state;
};

// The sequences of a drafter, as a step keeps them.
struct Seats {
  struct Seat {
    uint64_t id = 0;  // 0 = free
    bool is_lost = false;
    void* state = nullptr;
    int32_t position = 0;
  };
  std::array<Seat, 4> seats{};
  // Those that it has.
  std::vector<uint32_t> on() const {
    std::vector<uint32_t> all;
    for (uint32_t slot = 0; slot < 4; ++slot) {
      if (seats[slot].id != 0 && !seats[slot].is_lost) all.push_back(slot);
    }
    return all;
  }
  Call call(const std::vector<uint32_t>& slots) const {
    std::vector<std::pair<uint64_t, uint32_t>> sequences;
    for (const uint32_t slot : slots) sequences.emplace_back(seats[slot].id, slot);
    return Call(sequences);
  }
};

// Makes the calls of a step on one drafter.
class Driver {
 public:
  explicit Driver(DrafterCalls& calls) : calls_(calls) {}

  void begin(uint32_t slot, uint64_t id, const std::vector<int32_t>& tokens) {
    Call c({{id, slot}});
    const uint64_t offsets[2] = {0, tokens.size()};
    specd_begin_args args{};
    args.struct_size = sizeof(args);
    args.attach_mode = SPECD_ATTACH_FRESH;
    args.batch = &c.batch;
    args.token_offsets = offsets;
    args.tokens = tokens.data();
    args.sampling = c.sampling_ptr.data();
    args.seq_state = c.state.data();
    EXPECT_TRUE(calls_.begin(args, c.call).ok());
    seats_.seats[slot] = {.id = id,
                          .is_lost = c.status[0] != SPECD_OK,
                          .state = c.state[0],
                          .position = static_cast<int32_t>(tokens.size()) - 1};
  }
  // `n_rows` rows for each sequence that has begun, with numbers that tell where they are from.
  void update(uint32_t n_rows, bool with_hidden, bool with_top) {
    const std::vector<uint32_t> slots = take_losses();
    if (slots.empty()) return;
    Call c = call(slots);
    std::vector<uint32_t> offsets{0};
    std::vector<int32_t> seq_index, position, token, next_token, node, last_row, hidden_row,
        last_hidden_row, top_row;
    for (size_t s = 0; s < slots.size(); ++s) {
      Seats::Seat& seat = seats_.seats[slots[s]];
      for (uint32_t r = 0; r < n_rows; ++r) {
        seq_index.push_back(static_cast<int32_t>(s));
        position.push_back(seat.position++);
        token.push_back(static_cast<int32_t>(seat.id) * 10 + position.back());
        next_token.push_back(token.back() + 1);
        node.push_back(static_cast<int32_t>(r) - 1);
        hidden_row.push_back(static_cast<int32_t>(2 * (slots[s] * 6 + r) + 1));  // with gaps
      }
      last_row.push_back(n_rows == 0 ? -1 : static_cast<int32_t>(position.size()) - 1);
      last_hidden_row.push_back(n_rows == 0 ? -1 : hidden_row.back());
      offsets.push_back(static_cast<uint32_t>(position.size()));
      for (int32_t cell = 0; cell <= kNodes; ++cell)
        top_row.push_back(cell % 3 == 0 ? static_cast<int32_t>(slots[s]) * 9 + cell : -1);
    }
    constexpr int64_t kRows = 2 * 4 * 6, kTops = 9 * 4;
    std::vector<float> values(kRows * 5 + 1);  // rows of 5, of which 3 count
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    std::vector<int32_t> tops(kTops * 4);  // rows of 4, of which 2 count
    for (size_t i = 0; i < tops.size(); ++i) tops[i] = static_cast<int32_t>(i);
    specd_tensor first = host_tensor(values.data(), SPECD_DT_FLOAT, 32, {kRows, kHidden});
    first.stride[0] = 5;
    specd_tensor second = first;
    second.data = values.data() + 1;
    const specd_tensor* hidden[2] = {&first, &second};
    const auto n = static_cast<int64_t>(slots.size());
    specd_tensor seq_indices = Call::ints(seq_index), positions = Call::ints(position),
                 tokens = Call::ints(token), next_tokens = Call::ints(next_token),
                 nodes = Call::ints(node), last_rows = Call::ints(last_row),
                 hidden_rows = Call::ints(hidden_row),
                 last_hidden_rows = Call::ints(last_hidden_row),
                 top_rows = host_i32(top_row.data(), {n, kNodes + 1}),
                 top_token = host_i32(tops.data(), {kTops, kTopK});
    top_token.stride[0] = 4;
    specd_update_args args{};
    args.struct_size = sizeof(args);
    args.n_rows = static_cast<uint32_t>(position.size());
    args.batch = &c.batch;
    args.row_offsets = offsets.data();
    args.seq_index = &seq_indices;
    args.position = &positions;
    args.token = &tokens;
    args.next_token = &next_tokens;
    args.node = &nodes;
    args.last_row = &last_rows;
    args.host_position = position.data();
    args.host_token = token.data();
    args.host_next_token = next_token.data();
    args.host_node = node.data();
    if (with_hidden) {
      args.hidden_row = &hidden_rows;
      args.host_hidden_row = hidden_row.data();
      args.last_hidden_row = &last_hidden_rows;
      args.hidden = hidden;
    }
    if (with_top) {
      args.top_row = &top_rows;
      args.host_top_row = top_row.data();
      args.top_token = &top_token;
      args.host_top_token = tops.data();
    }
    const Status status = calls_.update(args, c.call);
    for (size_t s = 0; s < slots.size(); ++s) {
      if (status.ok() && c.status[s] == SPECD_OK) continue;
      end(slots[s], SPECD_END_QUARANTINED);
      seats_.seats[slots[s]].is_lost = true;
    }
  }
  // Every proposal in words.
  std::string propose(int32_t budget, bool has_parents, bool has_flags, Status* failed = nullptr) {
    const std::vector<uint32_t> slots = take_losses();
    if (slots.empty()) return "";
    Call c = call(slots);
    const size_t n = slots.size();
    std::vector<int32_t> root_token, root_position, budgets(n, budget), n_nodes(n, budget),
        token(n * kNodes, SPECD_NO_TOKEN), parent(n * kNodes, -9), flags(n * kNodes, 0);
    for (const uint32_t slot : slots) {
      root_token.push_back(static_cast<int32_t>(seats_.seats[slot].id) +
                           seats_.seats[slot].position);
      root_position.push_back(seats_.seats[slot].position);
    }
    const auto rows = static_cast<int64_t>(n);
    specd_tensor root_tokens = Call::ints(root_token), root_positions = Call::ints(root_position),
                 node_budgets = Call::ints(budgets), counts = Call::ints(n_nodes),
                 tokens = host_i32(token.data(), {rows, kNodes}),
                 parents = host_i32(parent.data(), {rows, kNodes}),
                 all_flags = host_i32(flags.data(), {rows, kNodes});
    specd_proposal out{};
    out.struct_size = sizeof(out);
    out.node_capacity = kNodes;
    out.n_nodes = &counts;
    out.token = &tokens;
    out.parent = &parents;
    out.flags = has_flags ? &all_flags : nullptr;
    specd_propose_args args{};
    args.struct_size = sizeof(args);
    args.batch = &c.batch;
    args.root_token = &root_tokens;
    args.root_position = &root_positions;
    args.node_budget = &node_budgets;
    args.sampling = c.sampling_ptr.data();
    args.out = &out;
    const Status status = calls_.propose(args, c.call);
    if (failed != nullptr) *failed = status;
    std::string text;
    for (size_t s = 0; s < n && status.ok(); ++s) {
      text += std::to_string(c.ids[s]) + " " + status_text(c.status[s]) + ":";
      for (int32_t i = 0; c.status[s] == SPECD_OK && i < n_nodes[s]; ++i) {
        const size_t cell = s * kNodes + static_cast<size_t>(i);
        text += " " + std::to_string(token[cell]);
        if (has_parents) text += "<" + std::to_string(parent[cell]);
        if (has_flags) text += "!" + std::to_string(flags[cell]);
      }
      text += "\n";
    }
    return text;
  }
  void end(uint32_t slot, uint32_t reason) {
    Call c = call({slot});
    specd_end_args args{};
    args.struct_size = sizeof(args);
    args.reason = reason;
    args.batch = &c.batch;
    calls_.end(args, c.call);
  }
  void leave(uint32_t slot, uint32_t reason) {
    if (!seats_.seats[slot].is_lost) end(slot, reason);
    seats_.seats[slot] = {};
  }
  bool is_free(uint32_t slot) const { return seats_.seats[slot].id == 0; }
  bool is_lost(uint32_t slot) const { return seats_.seats[slot].is_lost; }
  // What a step asks before its calls.
  std::vector<uint32_t> take_losses() {
    EXPECT_TRUE(calls_.take_answers().ok());
    for (const uint32_t slot : seats_.on()) {
      if (calls_.loss_of(slot, seats_.seats[slot].id) != SequenceLoss::kNone)
        seats_.seats[slot].is_lost = true;
    }
    return seats_.on();
  }

 private:
  Call call(const std::vector<uint32_t>& slots) const {
    Call c = seats_.call(slots);
    for (size_t s = 0; s < slots.size(); ++s) c.state[s] = seats_.seats[slots[s]].state;
    return c;
  }
  DrafterCalls& calls_;
  Seats seats_;
};

std::unique_ptr<DrafterThread> start(Drafter& drafter, uint64_t wait_ns = 60 * kSecondNs,
                                     uint64_t hang_ns = 60 * kSecondNs, OnCalled on_called = {},
                                     ShadowObserver* observer = nullptr) {
  if (!on_called) on_called = [](CallKind, const Status&, uint64_t) {};
  const DrafterThread::Terms terms{.vocab_size = 1000,
                                   .hidden_size = kHidden,
                                   .max_positions = 1000,
                                   .limits = {.wait_ns = wait_ns, .hang_ns = hang_ns},
                                   .on_called = std::move(on_called)};
  return DrafterThread::start(drafter, terms, CpuDevice::create("scalar", 1).value(), observer)
      .value();
}

void wait_for(const std::function<bool()>& is_so) {
  const uint64_t end = now_ns() + 60 * kSecondNs;
  while (!is_so() && now_ns() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(is_so());
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
  EXPECT_NE(driver.propose(4, false, false), "");
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
  wait_for([&] { return thread->calls().take_answers().ok() && thread->calls().is_ready(); });
  EXPECT_NE(driver.propose(4, false, false), "");
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
  EXPECT_NE(driver.propose(4, false, false), "");
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
  wait_for([&] { return thread->calls().take_answers().ok() && thread->calls().is_ready(); });
  EXPECT_NE(driver.propose(4, false, false), "");
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
  EXPECT_NE(driver.propose(4, false, false), "");
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

}  // namespace
}  // namespace specd
