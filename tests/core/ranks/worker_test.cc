#include "core/ranks/worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/device/cuda_device.h"
#include "tests/core/model/forward_rig.h"

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
        KvStore::create(*device, config, kernels::DType::kF32, kPages).value());
    worker = Worker::create(*device, *model, *kv).value();
  }
  StepOutput run(const StepInput& input) {
    worker->new_columns();
    StepOutput output;
    const Status status = worker->run(
        input, {}, [] {}, output);
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
  input.wants_top1 = true;
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
    EXPECT_EQ(output.top1[i], best);
  }
  ASSERT_EQ(output.taps.size(), 1u);
  EXPECT_EQ(0,
            std::memcmp(output.taps[0].data(), plain.model->tap(0), output.taps[0].size_bytes()));
}

TEST_P(WorkerTest, penalties_change_what_is_drawn_and_not_top1) {
  WorkerRig rig(GetParam());
  StepInput input = span_of(some_tokens(8, 5), 0);
  input.wants_top1 = true;
  const StepOutput before = rig.run(input);
  input.penalty_row.resize(8);
  input.penalty_row[7] = {.presence = 1000, .seen_begin = 0, .seen_end = 1};
  input.penalty_seen = {{.token = before.drawn[7], .count = 1}};
  const StepOutput after = rig.run(input);
  EXPECT_NE(after.drawn[7], before.drawn[7]);
  EXPECT_EQ(after.top1, before.top1);
  EXPECT_TRUE(std::equal(after.drawn.begin(), after.drawn.end() - 1, before.drawn.begin()));
}

TEST_P(WorkerTest, a_copied_page_is_as_good_as_the_page) {
  WorkerRig rig(GetParam());
  const std::vector<int32_t> tokens = some_tokens(17, 9);
  const StepOutput whole = rig.run(span_of(tokens, 0));
  ASSERT_TRUE(rig.worker->copy_page(0, 8).ok());
  const StepOutput behind = rig.run(span_of({tokens[16]}, 16, 8));
  EXPECT_EQ(behind.drawn[0], whole.drawn[16]);
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
  GTEST_SKIP() << "not a debug build; StepInput.every_damage_is_named tests the check itself";
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

INSTANTIATE_TEST_SUITE_P(Devices, WorkerTest, testing::Bool(),
                         [](const auto& fake) { return fake.param ? "fake_cuda" : "cpu"; });

}  // namespace
}  // namespace specd
