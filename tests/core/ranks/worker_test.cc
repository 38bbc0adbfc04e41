#include "core/ranks/worker.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device/cuda_device.h"
#include "tests/core/model/forward_rig.h"
#include "tests/core/ranks/step_record.h"

namespace specd {
namespace {

constexpr int32_t kPages = 40;

struct WorkerRig {
  std::unique_ptr<Device> device;
  std::unique_ptr<Transformer> model;
  std::unique_ptr<KvStore> kv;
  std::unique_ptr<Worker> worker;

  explicit WorkerRig(bool fake_cuda) {
    setenv("SPECD_CUDA_LIBRARY", SPECD_TEST_FAKE_CUDA, 1);
    unsetenv("SPECD_FAKE_CUDA");
    if (fake_cuda) {
      device = open_cuda_device(0, {}).value();
    } else {
      device = CpuDevice::create("", 1).value();
    }
    const std::string path = std::string(SPECD_TEST_ZOO) + "/pico-draft";
    const ModelConfig config = load_model_config(path).value();
    model = Transformer::load(*device, path, config, 64, 64, {}).value();
    kv = std::make_unique<KvStore>(
        KvStore::create(*device, config, kernels::KvDType::kF32, kPages).value());
    worker = Worker::create(*device, *model, *kv).value();
  }
  StepOutput run(const StepInput& input, std::span<StreamPart* const> parts = {}) {
    worker->new_columns();
    StepOutput output;
    const Status status = worker->run(
        input, parts, [] {}, output);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return output;
  }
};

// Tokens at positions [first, first + n) in pages 0, 1, ..., each of which draws greedily.
StepInput span_of(const std::vector<int32_t>& tokens, int32_t first, int32_t first_page = 0) {
  StepInput input;
  for (int32_t page = 0; page < 4; ++page) input.rows.pages.push_back(first_page + page);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t position = first + static_cast<int32_t>(i);
    input.rows.token.push_back(tokens[i]);
    input.rows.position.push_back(position);
    input.rows.slot.push_back(first_page * kernels::kPageTokens + position);
    input.rows.span.push_back(position + 1);
    input.rows.table.push_back(0);
    input.rows.tail_begin.push_back(0);
    input.rows.logits_rows.push_back(static_cast<int32_t>(i));
    input.draws.push_back({.position = position + 1});
  }
  return input;
}

class WorkerTest : public testing::TestWithParam<bool> {};

TEST_P(WorkerTest, draws_the_argmax_of_a_plain_forward_and_gives_its_taps) {
  WorkerRig rig(GetParam());
  rig.model->add_tap(rig.model->make_tap(1).value());
  const std::vector<int32_t> tokens = some_tokens(24, 3);
  StepInput input = span_of(tokens, 0);
  input.top_k = 3;
  input.taps_to_host = true;
  input.rows.tap_rows = {2, 20};
  const StepOutput output = rig.run(input);

  ForwardRig plain("pico-draft", "", 1, false);
  plain.model->add_tap(plain.model->make_tap(1).value());
  plain.add_span(tokens, 0);
  plain.rows.tap_rows = {2, 20};
  const auto logits = plain.run();
  ASSERT_EQ(output.drawn.size(), logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto best = std::max_element(logits[i].begin(), logits[i].end()) - logits[i].begin();
    EXPECT_EQ(output.drawn[i], best);
    std::vector<int32_t> ids(logits[i].size());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
      return logits[i][static_cast<size_t>(a)] > logits[i][static_cast<size_t>(b)];
    });
    ids.resize(3);
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), output.top.host + 3 * i)) << i;
  }
  ASSERT_EQ(output.taps.size(), 1u);
  ASSERT_EQ(output.taps[0].n, 2 * static_cast<size_t>(plain.config.hidden_size));
  EXPECT_EQ(0, std::memcmp(output.taps[0].host, plain.model->tap(0), output.taps[0].bytes()));
}

TEST_P(WorkerTest, taps_are_copied_to_host_memory_only_when_somebody_reads_them_there) {
  WorkerRig rig(GetParam());
  rig.model->add_tap(rig.model->make_tap(1).value());
  StepInput input = span_of(some_tokens(4, 3), 0);
  input.rows.tap_rows = {2};
  const StepOutput kept = rig.run(input);
  EXPECT_EQ(kept.taps[0].host == nullptr, !rig.device->is_host());
  EXPECT_EQ(kept.taps[0].device, rig.model->tap(0));
  input.taps_to_host = true;
  const StepOutput copied = rig.run(input);
  EXPECT_NE(copied.taps[0].host, nullptr);
  EXPECT_EQ(copied.taps[0].device, rig.model->tap(0));
}

TEST_P(WorkerTest, penalties_change_what_is_drawn_and_not_the_most_likely_tokens) {
  WorkerRig rig(GetParam());
  StepInput input = span_of(some_tokens(8, 5), 0);
  input.top_k = 1;
  const StepOutput before = rig.run(input);
  const std::vector<int32_t> top(before.top.host, before.top.host + before.top.n);
  EXPECT_EQ(top, before.drawn);
  input.penalty_row.resize(8);
  input.penalty_row[7] = {.presence = 1000, .seen_begin = 0, .seen_end = 1};
  input.penalty_seen = {{.token = before.drawn[7], .count = 1}};
  const StepOutput after = rig.run(input);
  EXPECT_NE(after.drawn[7], before.drawn[7]);
  EXPECT_TRUE(std::equal(top.begin(), top.end(), after.top.host));
  EXPECT_TRUE(std::equal(after.drawn.begin(), after.drawn.end() - 1, before.drawn.begin()));
}

// In two runs of rows, again and again, so that on a device a graph is replayed too.
TEST_P(WorkerTest,
       raw_logits_are_those_of_a_plain_forward_whatever_penalties_and_laws_make_of_them) {
  WorkerRig rig(GetParam());
  const std::vector<int32_t> tokens = some_tokens(8, 5);
  StepInput input = span_of(tokens, 0);
  input.penalty_row.resize(8, {.presence = 1000, .seen_begin = 0, .seen_end = 1});
  input.penalty_seen = {{.token = 3, .count = 1}};
  for (kernels::DrawRow& each : input.draws) each.law = true;
  input.raw_to_host = {1, 2, 6};
  ForwardRig plain("pico-draft", "", 1, false);
  plain.add_span(tokens, 0);
  const auto logits = plain.run();
  for (int turn = 0; turn < 4; ++turn) {
    if (turn == 3) input.raw_to_host = {0, 2, 7};
    const StepOutput output = rig.run(input);
    for (size_t i = 0; i < input.raw_to_host.size(); ++i) {
      const std::vector<float>& row = logits[static_cast<size_t>(input.raw_to_host[i])];
      EXPECT_EQ(0, std::memcmp(output.raw + i * row.size(), row.data(), row.size() * sizeof(float)))
          << "turn " << turn << ", row " << input.raw_to_host[i];
    }
  }
}

// Copies the laws of n rows as a verifier on the device would read them: in the stream, behind the draw.
class LawReader final : public StreamPart {
 public:
  LawReader(Device& device, int32_t n, int32_t vocab) : device_(device), n_(n), vocab_(vocab) {
    staging_ = Staging::create(device, 1 << 20, "laws").value();
    law = staging_.add<float>(static_cast<size_t>(n * vocab));
    lse = staging_.add<float>(static_cast<size_t>(n));
  }
  uint64_t submitter() const override { return 1; }
  void add_shape(StepShape&) const override {}
  bool may_capture() const override { return false; }
  const Column<int32_t>& tokens() const override { return tokens_; }
  std::unique_ptr<StreamRecord> submit(bool) override { return nullptr; }
  bool submit_behind(const DrawnColumns& drawn, bool) override {
    const auto copy = [&](const float* from, const Column<float>& to, int32_t width) {
      device_.ops().copy_rows(device_.stream(), {.from = from,
                                                 .to = to.device,
                                                 .n_rows = n_,
                                                 .n = width,
                                                 .from_rows = n_,
                                                 .to_rows = n_,
                                                 .from_stride = width,
                                                 .to_stride = width});
      staging_.download(to);
    };
    copy(drawn.law, law, vocab_);
    copy(drawn.lse.device, lse, 1);
    return false;
  }
  std::optional<std::vector<uint64_t>> reserve(const StreamRecord&) override { return {}; }
  void repeat(const StreamRecord&) override {}
  bool repeats(const StreamRecord&, const StreamRecord&) const override { return false; }
  void drop() override {}

  Column<float> law, lse;

 private:
  Device& device_;
  int32_t n_, vocab_;
  Staging staging_;
  Column<int32_t> tokens_;
};

// exp(law - lse) is what the row's token was drawn from: of a greedy row that token alone.
TEST_P(WorkerTest, a_part_behind_the_draw_finds_the_law_of_each_row_where_the_logits_were) {
  WorkerRig rig(GetParam()), host(false);
  StepInput input = span_of(some_tokens(6, 5), 0);
  for (size_t i = 0; i < input.draws.size(); ++i) {
    kernels::DrawRow& draw = input.draws[i];
    draw.law = true;
    if (i % 2 == 0) continue;
    draw.greedy = false;
    draw.temperature = 0.7f;
    draw.top_k = 40;
    draw.seed = i;
  }
  const int32_t vocab = rig.model->config().vocab_size;
  LawReader reader(*rig.device, 6, vocab);
  StreamPart* const parts[] = {&reader};
  const StepOutput drawn = rig.run(input, parts);
  input.law_to_host = {0, 1, 2, 3, 4, 5};
  const StepOutput expected = host.run(input);
  EXPECT_EQ(drawn.drawn, expected.drawn);
  for (size_t i = 0; i < 6; ++i) {
    const size_t row = i * static_cast<size_t>(vocab);
    double mass = 0;
    for (size_t t = 0; t < static_cast<size_t>(vocab); ++t) {
      const double p = std::exp(double{reader.law.host[row + t]} - double{reader.lse.host[i]});
      const double q = std::exp(double{expected.law[row + t]} - double{expected.lse[i]});
      ASSERT_NEAR(p, q, 1e-6) << "row " << i << ", token " << t;
      mass += p;
    }
    EXPECT_NEAR(mass, 1, 1e-5) << i;
    const auto token = static_cast<size_t>(drawn.drawn[i]);
    EXPECT_GT(std::exp(double{reader.law.host[row + token]} - double{reader.lse.host[i]}),
              i % 2 == 0 ? 0.999 : 0);
  }
}

// A toy grammar over the target's own ids: behind an even token only odd ones may follow, behind an odd
// one only multiples of four. Each row masks by the tokens of its own path, so the draws of a tree
// obey the grammar as those of plain decoding do.
TEST_P(WorkerTest, a_mask_of_each_rows_own_path_keeps_every_draw_of_a_tree_in_a_grammar) {
  WorkerRig rig(GetParam());
  const int32_t vocab = rig.model->config().vocab_size;
  const auto may_follow = [](int32_t before, int32_t next) {
    return before % 2 == 0 ? next % 2 == 1 : next % 4 == 0;
  };
  const auto mask = [&](StepInput& input) {  // the last token of a row's path is its own
    input.penalty_row.resize(input.draws.size());
    for (size_t r = 0; r < input.draws.size(); ++r) {
      const int32_t own = input.rows.token[static_cast<size_t>(input.rows.logits_rows[r])];
      input.penalty_row[r].bias_begin = static_cast<int32_t>(input.penalty_bias.size());
      for (int32_t t = 0; t < vocab; ++t) {
        if (!may_follow(own, t)) input.penalty_bias.push_back({.token = t, .add = -HUGE_VALF});
      }
      input.penalty_row[r].bias_end = static_cast<int32_t>(input.penalty_bias.size());
    }
  };
  StepInput prompt = span_of(some_tokens(9, 5), 0);
  const StepOutput free = rig.run(prompt);
  mask(prompt);
  const StepOutput bound = rig.run(prompt);
  EXPECT_NE(bound.drawn, free.drawn) << "the grammar changes something";
  // The tree: a root at position 9 with two children and a grandchild, which attends to its path.
  StepInput tree = span_of({bound.drawn[8], 6, 7, 9}, 9);
  tree.rows.position = {9, 10, 10, 11};
  tree.rows.span = {10, 11, 10, 10};
  tree.rows.tail_begin = {0, 0, 0, 1};
  tree.rows.tail = {11, 11, 12};
  for (size_t r = 0; r < 4; ++r) {
    tree.draws[r] = {.position = tree.rows.position[r] + 1, .seed = 3, .greedy = r % 2 == 0};
  }
  mask(tree);
  const StepOutput drawn = rig.run(tree);
  for (size_t r = 0; r < 4; ++r) {
    EXPECT_TRUE(may_follow(tree.rows.token[r], drawn.drawn[r])) << r << ": " << drawn.drawn[r];
  }
  // The same text row by row.
  const std::vector<int32_t> path = {bound.drawn[8], 7, 9};
  for (int32_t i = 0; i < 3; ++i) {
    StepInput plain = span_of({path[static_cast<size_t>(i)]}, 9 + i);
    const size_t row = i == 0 ? 0 : static_cast<size_t>(i) + 1;
    plain.draws[0] = tree.draws[row];
    mask(plain);
    EXPECT_EQ(rig.run(plain).drawn[0], drawn.drawn[row]) << i;
  }
}

TEST_P(WorkerTest, a_copied_page_is_as_good_as_the_page) {
  WorkerRig rig(GetParam());
  const std::vector<int32_t> tokens = some_tokens(17, 9);
  const StepOutput whole = rig.run(span_of(tokens, 0));
  ASSERT_TRUE(rig.worker->copy_page(0, 8).ok());
  const StepOutput behind = rig.run(span_of({tokens[16]}, 16, 8));
  EXPECT_EQ(behind.drawn[0], whole.drawn[16]);
}

// More than one submission takes, in one call and in many calls without a step between them.
TEST_P(WorkerTest, any_number_of_moves_needs_no_more_memory) {
  WorkerRig rig(GetParam());
  const std::vector<int32_t> tokens = some_tokens(17, 9);
  const StepOutput whole = rig.run(span_of(tokens, 0));
  constexpr int32_t kFirst = 8, kCopies = 29, kRounds = 40;
  std::vector<int32_t> from, to;
  for (int32_t copy = 0; copy < kRounds * kCopies; ++copy) {
    for (int32_t slot = 0; slot < kernels::kPageTokens; ++slot) {
      from.push_back(slot);
      to.push_back((kFirst + copy % kCopies) * kernels::kPageTokens + slot);
    }
  }
  ASSERT_TRUE(rig.worker->move({from, to}).ok());
  // Page after page, so that each copy needs the one before.
  for (int32_t hop = 0; hop < kRounds * kCopies; ++hop) {
    ASSERT_TRUE(rig.worker->copy_page(kFirst + hop % kCopies, kFirst + (hop + 1) % kCopies).ok());
  }
  for (const int32_t page : {kFirst, kFirst + kCopies - 1}) {
    const StepOutput behind = rig.run(span_of({tokens[16]}, 16, page));
    EXPECT_EQ(behind.drawn[0], whole.drawn[16]);
  }
}

TEST_P(WorkerTest, steps_of_one_shape_again_and_again_give_what_they_gave_alone) {
  WorkerRig rig(GetParam());
  for (uint32_t round = 0; round < 5; ++round) {
    const std::vector<int32_t> tokens = some_tokens(6, 100 + round);
    WorkerRig alone(false);
    EXPECT_EQ(rig.run(span_of(tokens, 0)).drawn, alone.run(span_of(tokens, 0)).drawn) << round;
  }
}

TEST_P(WorkerTest, a_damaged_input_is_refused_in_debug_builds) {
#ifndef SPECD_DEBUG_CHECKS
  GTEST_SKIP() << "not a debug build; StepInput.every_damage_is_named_with_what_was_expected "
                  "tests the check itself";
#else
  WorkerRig rig(GetParam());
  StepInput input = span_of(some_tokens(4, 1), 0);
  input.rows.slot[2] = kPages * kernels::kPageTokens;
  rig.worker->new_columns();
  StepOutput output;
  const Status status = rig.worker->run(
      input, {}, [] {}, output);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(), "step input: rows.slot[2] is 640, expected 0..639");
  rig.run(span_of(some_tokens(4, 1), 0));
#endif
}

// Without debug checks only the check itself is tested: such a worker trusts its input.
TEST_P(WorkerTest, a_recorded_input_gives_the_same_bits_and_is_refused_when_damaged) {
  const std::string path = testing::TempDir() + "specd-steps-" + std::to_string(getpid());
  const auto tapped_rig = [] {
    WorkerRig rig(GetParam());
    rig.model->add_tap(rig.model->make_tap(1).value());
    return rig;
  };
  {
    WorkerRig rig = tapped_rig();
    StepRecorder recorder(path);
    StepInput prompt = span_of(some_tokens(17, 4), 0);
    prompt.rows.tap_rows = {3, 16};
    prompt.top_k = 2;
    prompt.taps_to_host = true;
    prompt.penalty_row.resize(17);
    prompt.penalty_row[16] = {.presence = 1, .seen_begin = 0, .seen_end = 1};
    prompt.penalty_seen = {{.token = 7, .count = 1}};
    rig.run(prompt);
    ASSERT_TRUE(rig.worker->copy_page(0, 8).ok());
    rig.run(span_of({11}, 16, 8));
    const StepRecordCounts counts = recorder.close();
    EXPECT_EQ(counts.runs, 2);
    EXPECT_EQ(counts.moved_slots, static_cast<size_t>(kernels::kPageTokens));
    EXPECT_EQ(counts.penalized, 1u);
    EXPECT_EQ(counts.top, 2 * 17u);
    EXPECT_EQ(counts.tap_rows, 2u);
  }
  struct Damage {
    std::function<void(StepInput&)> make;
    std::string fault;
  };
  const std::vector<Damage> damages = {
      {[](StepInput& i) { i.rows.slot[0] = kPages * kernels::kPageTokens; },
       "rows.slot[0] is 640, expected 0..639"},
      {[](StepInput& i) { i.rows.pages[0] = -1; }, "rows.pages[0] is -1, expected 0..39"},
      {[](StepInput& i) { i.rows.token[0] ^= 1 << 30; }, "expected 0..4095"},
      {[](StepInput& i) { i.rows.table[0] = 4; }, "rows.table[0] is 4, expected 0.."},
      {[](StepInput& i) { i.top_k = 4097; }, "top_k is 4097, expected 0..4096"},
      {[](StepInput& i) { i.draws.clear(); }, "draws has 0 entries, expected "},
      {[](StepInput& i) { i.picks = {{.part = 0, .from = {0}, .to = {0}}}; },
       "picks has 1 entries, expected at most 0"},
  };
  WorkerRig rig = tapped_rig();
  StepRecordReader record(path);
  StepRecordEntry entry;
  int runs = 0;
  while (record.next(entry)) {
    if (entry.kind == StepRecordKind::kMove) {
      ASSERT_TRUE(rig.worker->move({entry.from, entry.to}).ok());
      continue;
    }
    for (const Damage& damage : damages) {
      StepInput damaged = entry.input;
      damage.make(damaged);
      const std::string fault = step_input_fault(damaged, rig.worker->limits());
      EXPECT_NE(fault.find(damage.fault), std::string::npos) << fault << " for " << damage.fault;
#ifdef SPECD_DEBUG_CHECKS
      rig.worker->new_columns();
      StepOutput output;
      const Status status = rig.worker->run(
          damaged, {}, [] {}, output);
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << fault;
      EXPECT_EQ(status.message(), "step input: " + fault);
#endif
    }
    const StepOutput output = rig.run(entry.input);
    EXPECT_EQ(output.drawn, entry.output.drawn);
    EXPECT_TRUE(std::ranges::equal(on_host(output.top), entry.top));
    ASSERT_EQ(output.taps.size(), 1u);
    EXPECT_TRUE(std::ranges::equal(on_host(output.taps[0]), entry.taps[0]));
    ++runs;
  }
  EXPECT_EQ(runs, 2);
  std::remove(path.c_str());
}

INSTANTIATE_TEST_SUITE_P(Devices, WorkerTest, testing::Bool(),
                         [](const auto& fake) { return fake.param ? "fake_cuda" : "cpu"; });

}  // namespace
}  // namespace specd
