#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "specd/kernels/cpu.h"
#include "specd/kernels/draw.h"
#include "specd/plugin_api/services/rng.h"
#include "tests/core/services/services_rig.h"

namespace specd {
namespace {

TEST_F(ServicesTest, draw_noise_is_that_of_the_draw_and_zero_when_greedy) {
  const auto& rng = table<specd_rng>(SPECD_SERVICE_RNG);
  int32_t index[] = {2, 0, 1, 0}, position[] = {5, 0, 5, 9};
  std::vector<float> values(4 * kVocab, -7), expected(kVocab);
  const specd_tensor indices = host_i32(index, {4}), positions = host_i32(position, {4});
  const specd_tensor out = host_f32(values.data(), {4, kVocab});
  ASSERT_EQ(rng.draw_noise(host_, &call_, &indices, &positions, &out), SPECD_OK) << call_.text;
  for (size_t i = 0; i < 4; ++i) {
    const specd_sampling& one = sampling_[index[i]];
    std::fill(expected.begin(), expected.end(), 0.0f);
    if (index[i] != 1) {
      kernels::cpu_ops(kernels::Isa::kScalar)
          .draw_noise(cpu_->stream(), {&one.seed, &position[i], expected.data(), 1, kVocab});
    }
    for (size_t t = 0; t < kVocab; ++t)
      EXPECT_EQ(values[i * kVocab + t], expected[t]) << i << " " << t;
  }
  EXPECT_NE(values[0], values[kVocab]);
}

TEST_F(ServicesTest, draw_noise_keeps_to_the_rows_of_a_strided_tensor) {
  const auto& rng = table<specd_rng>(SPECD_SERVICE_RNG);
  int32_t index[] = {0, 2}, position[] = {5, 6};
  constexpr size_t kStride = kVocab + 3;
  std::vector<float> wide(2 * kStride, -7), dense(2 * kVocab);
  const specd_tensor indices = host_i32(index, {2}), positions = host_i32(position, {2});
  const specd_tensor out = host_f32(dense.data(), {2, kVocab});
  specd_tensor strided = host_f32(wide.data(), {2, kVocab});
  strided.stride[0] = kStride;
  strided.byte_capacity = wide.size() * sizeof(float);
  ASSERT_EQ(rng.draw_noise(host_, &call_, &indices, &positions, &out), SPECD_OK);
  ASSERT_EQ(rng.draw_noise(host_, &call_, &indices, &positions, &strided), SPECD_OK) << call_.text;
  for (size_t row = 0; row < 2; ++row) {
    for (size_t t = 0; t < kStride; ++t) {
      EXPECT_EQ(wide[row * kStride + t], t < kVocab ? dense[row * kVocab + t] : -7.0f);
    }
  }
}

TEST_F(ServicesTest, uniform_is_keyed_and_in_range) {
  const auto& rng = table<specd_rng>(SPECD_SERVICE_RNG);
  int32_t index[] = {0, 2, 1}, position[] = {4, 4, 5};
  constexpr size_t kLanes = 10;
  std::vector<float> values(3 * kLanes), again(3 * kLanes);
  const specd_tensor indices = host_i32(index, {3}), positions = host_i32(position, {3});
  const specd_tensor out = host_f32(values.data(), {3, kLanes});
  const specd_tensor out_again = host_f32(again.data(), {3, kLanes});
  ASSERT_EQ(rng.uniform(host_, &call_, &indices, &positions, SPECD_PURPOSE_ACCEPT, &out), SPECD_OK);
  for (size_t row = 0; row < 3; ++row) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t counter[4] = {static_cast<uint32_t>(lane / 4),
                                   static_cast<uint32_t>(position[row]), SPECD_PURPOSE_ACCEPT, 0};
      uint32_t words[4];
      kernels::philox4x32(sampling_[index[row]].seed, counter, words);
      const float value = values[row * kLanes + lane];
      EXPECT_EQ(value, std::ldexp(static_cast<float>(words[lane % 4] >> 8), -24));
      EXPECT_GE(value, 0.0f);
      EXPECT_LT(value, 1.0f);
    }
  }
  ASSERT_EQ(rng.uniform(host_, &call_, &indices, &positions, SPECD_PURPOSE_ACCEPT, &out_again),
            SPECD_OK);
  EXPECT_EQ(values, again);
  ASSERT_EQ(rng.uniform(host_, &call_, &indices, &positions, SPECD_PURPOSE_DRAFT, &out_again),
            SPECD_OK);
  EXPECT_NE(values, again);
  EXPECT_EQ(rng.uniform(host_, &call_, &indices, &positions, 0, &out), SPECD_E_INVALID);
  expect_text("purpose 0 belongs to the host");
}

// Drafts drawn with the numbers that judge them would be accepted too often.
TEST_F(ServicesTest, the_numbers_of_a_verifier_are_not_for_drafts) {
  const auto& rng = table<specd_rng>(SPECD_SERVICE_RNG);
  int32_t index[] = {0}, position[] = {4};
  float value[4];
  const specd_tensor indices = host_i32(index, {1}), positions = host_i32(position, {1});
  const specd_tensor out = host_f32(value, {1, 4});
  const std::vector<std::span<const int32_t>> committed(3);
  call_.committed = &committed;  // as in propose()
  for (const uint32_t purpose : {SPECD_PURPOSE_ACCEPT, SPECD_PURPOSE_RESIDUAL}) {
    EXPECT_EQ(rng.uniform(host_, &call_, &indices, &positions, purpose, &out), SPECD_E_INVALID);
    expect_text("rng.uniform: purpose " + std::to_string(purpose) + " in propose()");
  }
  EXPECT_EQ(rng.uniform(host_, &call_, &indices, &positions, SPECD_PURPOSE_DRAFT, &out), SPECD_OK);
  call_.committed = nullptr;
}

TEST_F(ServicesTest, keys_that_the_numbers_would_overwrite_are_refused) {
  const auto& rng = table<specd_rng>(SPECD_SERVICE_RNG);
  int32_t memory[4] = {0, 1, 4, 4}, elsewhere[2] = {0, 1};
  const specd_tensor shared = host_i32(memory, {2}), apart = host_i32(elsewhere, {2});
  const specd_tensor out = host_f32(reinterpret_cast<float*>(memory + 1), {2, 1});
  EXPECT_EQ(rng.uniform(host_, &call_, &shared, &apart, SPECD_PURPOSE_ACCEPT, &out),
            SPECD_E_INVALID);
  expect_text("rng.uniform: seq_index and out overlap");
  EXPECT_EQ(rng.uniform(host_, &call_, &apart, &shared, SPECD_PURPOSE_ACCEPT, &out),
            SPECD_E_INVALID);
  expect_text("rng.uniform: position and out overlap");
  const specd_tensor behind = host_f32(reinterpret_cast<float*>(memory + 2), {2, 1});
  EXPECT_EQ(rng.uniform(host_, &call_, &shared, &apart, SPECD_PURPOSE_ACCEPT, &behind), SPECD_OK);
}

TEST_F(ServicesTest, every_bad_tensor_is_refused_in_words) {
  const auto& rng = table<specd_rng>(SPECD_SERVICE_RNG);
  int32_t index[] = {0, 2}, position[] = {4, 4};
  std::vector<float> values(2 * kVocab);
  const specd_tensor good_index = host_i32(index, {2}), good_position = host_i32(position, {2});
  const specd_tensor good_out = host_f32(values.data(), {2, kVocab});
  const auto expect = [&](const specd_tensor* i, const specd_tensor* p, const specd_tensor* o,
                          const std::string& words) {
    EXPECT_EQ(rng.draw_noise(host_, &call_, i, p, o), SPECD_E_INVALID);
    expect_text("rng.draw_noise: " + words);
  };
  const auto expect_out = [&](auto edit, const std::string& words) {
    specd_tensor out = good_out;
    edit(out);
    expect(&good_index, &good_position, &out, words);
  };
  expect(nullptr, &good_position, &good_out, "seq_index is null");
  expect(&good_index, nullptr, &good_out, "position is null");
  expect(&good_index, &good_position, nullptr, "out is null");
  expect_out([](specd_tensor& t) { t.struct_size = 1; }, "out.struct_size is 1");
  expect_out([](specd_tensor& t) { t.dtype_code = SPECD_DT_INT; }, "out has dtype 0/32");
  expect_out([](specd_tensor& t) { t.dtype_bits = 16; }, "out has dtype 2/16");
  expect_out([](specd_tensor& t) { t.device_type = SPECD_DEV_CUDA; }, "out has dtype");
  expect_out([](specd_tensor& t) { t.rank = 1; }, "out has dtype");
  expect_out([](specd_tensor& t) { t.rank = 900; }, "out has dtype");
  expect_out([](specd_tensor& t) { t.shape[0] = -1; }, "out has a size or stride out of range");
  expect_out([](specd_tensor& t) { t.shape[1] = INT64_MAX; },
             "out has a size or stride out of range");
  expect_out([](specd_tensor& t) { t.stride[0] = -1; }, "out has a size or stride out of range");
  expect_out([](specd_tensor& t) { t.shape[0] = 3; }, "out reaches beyond its capacity");
  expect_out([](specd_tensor& t) { t.shape[0] = t.stride[0] = int64_t{1} << 31; },
             "out reaches beyond its capacity");
  expect_out([](specd_tensor& t) { t.byte_capacity -= 4; }, "out reaches beyond its capacity");
  expect_out([](specd_tensor& t) { t.shape[1] = kVocab - 1; },
             "out has 36 columns, expected vocab_size 37");
  expect_out([](specd_tensor& t) { t.stride[0] = 1; }, "out needs rows that are contiguous");
  expect_out([](specd_tensor& t) { t.data = nullptr; }, "out has no data");
  expect_out([](specd_tensor& t) { t.shape[0] = 1; },
             "seq_index has 2 entries, position 2, out has 1");
  index[1] = 3;
  expect(&good_index, &good_position, &good_out, "seq_index[1] is 3, expected 0..2");
  index[1] = -1;
  expect(&good_index, &good_position, &good_out, "seq_index[1] is -1");
  index[1] = 2;
  position[0] = -3;
  expect(&good_index, &good_position, &good_out, "position[0] is -3");
  position[0] = 1;
  EXPECT_EQ(rng.draw_noise(host_, &call_, &good_index, &good_position, &good_out), SPECD_OK);
  specd_call outside;
  EXPECT_EQ(rng.draw_noise(host_, &outside, &good_index, &good_position, &good_out),
            SPECD_E_INVALID);
  EXPECT_NE(outside.text.find("the call has no batch"), std::string::npos);
}

}  // namespace
}  // namespace specd
