// Each thing that can be wrong with what a drafter says that it has drawn from.
#include "core/step/draft_law.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "core/plugin/instance/tensor.h"

namespace specd {
namespace {

constexpr int32_t kWords = 4;

class CheckQ : public testing::Test {
 protected:
  // A root with two children, 0 and 1, and a child of 0: rows 0 and 2.
  CheckQ() {
    tree_.token = {1, 2, 3};
    tree_.parent = {-1, -1, 0};
    tree_.depth = {1, 1, 2};
    tree_.flags = {0, 0, 0};
    for (float& each : values_) each = 5;
    for (float& each : lse_) each = 5 + std::log(4.0f);
    q_ = host_tensor(values_, SPECD_DT_FLOAT, 32, {3, kWords});
    q_lse_ = host_tensor(lse_, SPECD_DT_FLOAT, 32, {3});
  }
  void expect(int32_t n_nodes, const std::string& words, bool is_no_replace = false) {
    const QCheck check = check_q(*device_, q_, q_lse_, tree_, row_.data(), is_no_replace, kWords);
    EXPECT_EQ(check.n_nodes, n_nodes) << check.fault;
    if (words.empty()) {
      EXPECT_EQ(check.fault, "");
    } else {
      EXPECT_NE(check.fault.find(words), std::string::npos) << check.fault;
    }
  }

  std::unique_ptr<CpuDevice> device_ = CpuDevice::create("", 2).value();
  DraftTree tree_;
  std::vector<int32_t> row_ = {0, 2, -1, 77};  // a leaf may name any row
  float values_[3 * kWords], lse_[3];
  specd_tensor q_{}, q_lse_{};
};

TEST_F(CheckQ, a_distribution_may_have_any_scale_and_zeros) {
  expect(3, "");
  for (int i = 0; i < kWords; ++i) values_[i] = 1000;
  values_[0] = -HUGE_VALF;
  lse_[0] = 1000 + std::log(3.0f);
  expect(3, "");
  expect(3, "", true);
}

TEST_F(CheckQ, a_bad_row_ends_the_draft_before_what_is_drawn_from_it) {
  values_[2 * kWords] = std::nanf("");  // of the child of node 0
  expect(2, "node 2 is drawn from no distribution");
  values_[2 * kWords] = HUGE_VALF;
  expect(2, "node 2 is drawn from no distribution");
  values_[2 * kWords] = 5;
  lse_[2] += 0.1f;
  expect(2, "node 2 is drawn from no distribution: the logarithm of the sum is 6.386");
  lse_[2] = std::nanf("");
  expect(2, "q_lse is nan");
  row_[1] = 3;
  expect(2, "node 2 is drawn from row 3 of q, which has 3");
  row_[1] = -1;
  expect(2, "node 2 is drawn from row -1");
  row_[0] = INT32_MIN;
  expect(0, "node 0 is drawn from row -2147483648");
}

TEST_F(CheckQ, a_token_without_probability_was_not_drawn) {
  values_[2] = -HUGE_VALF;  // of node 1
  lse_[0] = 5 + std::log(3.0f);
  expect(1, "node 1 has token 2, which could not be drawn, by row 0 of q");
}

TEST_F(CheckQ, siblings_that_were_drawn_without_replacement_differ) {
  tree_.token = {1, 1, 1};
  expect(3, "");
  expect(1, "node 1 has the token of its sibling 0", true);
}

TEST_F(CheckQ, a_tensor_of_another_kind_is_no_q) {
  const specd_tensor good = q_, good_lse = q_lse_;
  const auto with = [&](auto edit, const std::string& words) {
    q_ = good, q_lse_ = good_lse;
    edit();
    expect(0, words);
  };
  with([&] { q_.rank = 1; }, "q has");
  with([&] { q_.dtype_bits = 16; }, "q has");
  with([&] { q_.device_type = SPECD_DEV_CUDA; }, "q has");
  with([&] { q_.byte_capacity -= 4; }, "q reaches beyond its capacity");
  with([&] { q_.shape[1] = kWords - 1; }, "expected [.., vocab_size 4]");
  with([&] { q_.stride[1] = 2, q_.shape[0] = 1; }, "q needs rows that are contiguous");
  with([&] { q_lse_.shape[0] = 2; }, "q_lse has 2 entries, expected at least 3");
  with([&] { q_lse_.dtype_code = SPECD_DT_INT; }, "q_lse has");
  with([&] { q_.struct_size = 8; }, "q.struct_size is 8");
  tree_.clear();
  q_.rank = 7;
  expect(0, "");  // nothing was drafted, so nobody reads it
}

TEST_F(CheckQ, only_rows_with_children_are_handed_on) {
  tree_.take_q(row_.data());
  EXPECT_EQ(tree_.q_row, (std::vector<int32_t>{0, 2, -1, -1}));
  tree_.cut(2);
  tree_.take_q(row_.data());
  EXPECT_EQ(tree_.q_row, (std::vector<int32_t>{0, -1, -1}));
}

}  // namespace
}  // namespace specd
