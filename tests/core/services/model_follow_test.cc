// follow(): what is committed is fed once, whatever was guessed before.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/core/services/model_rig.h"

namespace specd {
namespace {

// follow() through the columns of a proposal: [3 sequences, kNodes].
class Follow : public ModelServiceTest {
 protected:
  static constexpr uint32_t kNodes = 4;
  void SetUp() override {
    ModelServiceTest::SetUp();
    for (specd_sampling& each : sampling_) each.flags = SPECD_SAMPLE_GREEDY;
  }

  struct Followed {
    specd_status status;
    std::vector<specd_status> of;
    std::vector<float> logits;
  };
  // Outputs of `wanted` into node 0 of their proposals.
  Followed follow(const std::vector<std::vector<int32_t>>& texts, uint32_t rows_max,
                  std::vector<uint32_t> wanted = {0, 1, 2}) {
    committed_.assign(texts.begin(), texts.end());
    call_.committed = &committed_;
    Followed r;
    r.of.assign(3, -1);
    r.logits.assign(static_cast<size_t>(3 * kNodes * kModelVocab), -7);
    std::vector<uint32_t> places;
    for (const uint32_t s : wanted) places.push_back(s * kNodes);
    const specd_tensor token_t = host_i32(proposal_.data(), {3 * kNodes});
    const specd_tensor logits_t =
        host_tensor(r.logits.data(), SPECD_DT_FLOAT, 32, {3 * kNodes, kModelVocab});
    specd_forward_args args{};
    args.struct_size = sizeof(args);
    args.n_rows = rows_max;
    args.n_outputs = static_cast<uint32_t>(wanted.size());
    args.output_rows = wanted.data();
    args.output_at = places.data();
    args.out_token = &token_t;
    args.out_logits = &logits_t;
    args.seq_status = r.of.data();
    r.status = table_->follow(host_, &call_, model_, &args);
    call_.committed = nullptr;
    return r;
  }
  // Node `node` of the sequences from node - 1.
  std::vector<specd_status> draft(uint32_t node, const std::vector<uint32_t>& sequences) {
    std::vector<uint32_t> offsets(4, 0), rows, from, to;
    for (const uint32_t s : sequences) {
      for (uint32_t i = s + 1; i < 4; ++i) ++offsets[i];
      rows.push_back(static_cast<uint32_t>(rows.size()));
      from.push_back(s * kNodes + node - 1);
      to.push_back(s * kNodes + node);
    }
    std::vector<specd_status> of(3, -1);
    const specd_tensor token_t = host_i32(proposal_.data(), {3 * kNodes});
    specd_forward_args args{};
    args.struct_size = sizeof(args);
    args.n_rows = args.n_outputs = static_cast<uint32_t>(rows.size());
    args.row_offsets = offsets.data();
    args.output_rows = rows.data();
    args.token_at = from.data();
    args.output_at = to.data();
    args.token = args.out_token = &token_t;
    args.seq_status = of.data();
    EXPECT_EQ(table_->forward(host_, &call_, model_, &args), SPECD_OK) << call_.text;
    return of;
  }
  uint64_t rows() const { return models_->models()[0]->rows; }
  static int32_t best(const std::vector<float>& logits) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  std::vector<int32_t> proposal_ = std::vector<int32_t>(3 * kNodes, -7);
  std::vector<std::span<const int32_t>> committed_;
};

TEST_F(Follow, committed_text_is_fed_once_in_portions_with_the_bits_of_the_model_alone) {
  const std::vector<int32_t> a = some_tokens(21, 1), b = some_tokens(1, 2), c = some_tokens(9, 3);
  // a and c miss more than two tokens: 16 rows go to them, in their order.
  Followed f = follow({a, b, c}, 16);
  ASSERT_EQ(f.status, SPECD_OK) << call_.text;
  EXPECT_EQ(f.of, (std::vector<specd_status>{SPECD_E_DEADLINE, SPECD_OK, SPECD_E_DEADLINE}));
  EXPECT_EQ(lengths(), (std::vector<uint32_t>{16, 1, 0}));
  EXPECT_EQ(proposal_[0], -1);
  EXPECT_EQ(proposal_[kNodes], best(plain(b).back()));
  EXPECT_EQ(proposal_[2 * kNodes], -1);
  f = follow({a, b, c}, 16);
  EXPECT_EQ(f.of, (std::vector<specd_status>(3, SPECD_OK)));
  EXPECT_EQ(lengths(), (std::vector<uint32_t>{21, 1, 9}));
  EXPECT_EQ(rows(), 17u + 5 + 1 + 9) << "the last token of b is fed again";
  for (const auto& [s, text] : {std::pair(0u, &a), {1u, &b}, {2u, &c}}) {
    const std::vector<float> expected = plain(*text).back();
    const float* found = &f.logits[size_t{s} * kNodes * kModelVocab];
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), found)) << s;
    EXPECT_EQ(proposal_[s * kNodes], best(expected));
    EXPECT_EQ(proposal_[s * kNodes + 1], -7) << "written beside its place";
  }
}

TEST_F(Follow, what_was_guessed_right_is_kept_and_what_was_not_is_fed_again) {
  std::vector<std::vector<int32_t>> texts = {some_tokens(5, 4), some_tokens(6, 5),
                                             some_tokens(7, 6)};
  for (int round = 0; round < 6; ++round) {
    ASSERT_EQ(follow(texts, 64).status, SPECD_OK) << call_.text;
    for (uint32_t node = 1; node < kNodes; ++node) {
      EXPECT_EQ(draft(node, {0, 1, 2}), (std::vector<specd_status>(3, SPECD_OK)));
    }
    for (uint32_t s = 0; s < 3; ++s) {
      // What the model draws alone, token by token.
      std::vector<int32_t> text = texts[s];
      for (uint32_t node = 0; node < kNodes; ++node) {
        ASSERT_EQ(proposal_[s * kNodes + node], best(plain(text).back())) << round << " " << s;
        text.push_back(proposal_[s * kNodes + node]);
      }
      // Sequence s accepts (round + s) % 5 of the four, then something else comes.
      const auto accepted = (static_cast<size_t>(round) + s) % 5;
      text.resize(texts[s].size() + accepted);
      text.push_back(static_cast<int32_t>(100 + round));
      texts[s] = text;
    }
    const uint64_t before = rows();
    ASSERT_EQ(follow(texts, 0).status, SPECD_OK);
    uint64_t expected = 0;
    for (uint32_t s = 0; s < 3; ++s) expected += (static_cast<size_t>(round) + s) % 5 == 4 ? 2 : 1;
    EXPECT_EQ(rows() - before, expected) << "the fourth guess was never fed";
  }
}

TEST_F(Follow, who_cannot_be_fed_takes_no_rows_from_the_others_and_holds_no_pages) {
  const std::vector<int32_t> b = some_tokens(3, 2), c = some_tokens(9, 3);
  models_->models()[0]->kv.positions_max = 20;
  std::vector<int32_t> a = some_tokens(20, 1);
  EXPECT_EQ(follow({a, b, c}, 12).of,
            (std::vector<specd_status>{SPECD_E_DEADLINE, SPECD_E_DEADLINE, SPECD_E_DEADLINE}));
  EXPECT_EQ(lengths(), (std::vector<uint32_t>{12, 0, 0}));
  EXPECT_EQ(models_->models()[0]->kv.pages_held, 1);
  a.push_back(1);  // beyond the context
  for (int step = 0; step < 2; ++step) {
    const Followed f = follow({a, b, c}, 12);
    ASSERT_EQ(f.status, SPECD_OK) << call_.text;
    EXPECT_EQ(f.of, (std::vector<specd_status>{SPECD_E_UNSUPPORTED, SPECD_OK, SPECD_OK}));
    EXPECT_EQ(lengths(), (std::vector<uint32_t>{0, 3, 9}));
    EXPECT_EQ(proposal_[0], -1);
    EXPECT_EQ(proposal_[2 * kNodes], best(plain(c).back()));
    EXPECT_EQ(models_->models()[0]->kv.pages_held, 2);
  }
  expect_words("draft model 'draft' cannot follow the text: it supports");
}

TEST_F(Follow, a_token_that_the_draft_model_lacks_takes_no_rows_from_the_others) {
  models_->models()[0]->target_vocab_size = 5000;
  std::vector<int32_t> a = some_tokens(30, 1);
  const std::vector<int32_t> b = some_tokens(3, 2), c = some_tokens(9, 3);
  a[10] = 4999;
  for (int step = 0; step < 2; ++step) {
    const Followed f = follow({a, b, c}, 12);
    ASSERT_EQ(f.status, SPECD_OK) << call_.text;
    EXPECT_EQ(f.of, (std::vector<specd_status>{SPECD_E_UNSUPPORTED, SPECD_OK, SPECD_OK}));
    EXPECT_EQ(lengths(), (std::vector<uint32_t>{0, 3, 9}));
  }
}

TEST_F(Follow, bad_arguments_are_refused_in_words) {
  const std::vector<int32_t> a = some_tokens(3, 1);
  EXPECT_EQ(follow({a, a, a}, 8, {0, 2, 1}).status, SPECD_E_INVALID);
  expect_words("model.follow: output_at[2] does not increase");
  specd_status of[3];
  specd_forward_args args{};
  args.struct_size = sizeof(args);
  args.seq_status = of;
  EXPECT_EQ(table_->follow(host_, &call_, model_, &args), SPECD_E_PRECONDITION);
  expect_words("model.follow: allowed only inside propose()");
  call_.committed = &committed_;
  const uint32_t offsets[4] = {};
  args.row_offsets = offsets;
  EXPECT_EQ(table_->follow(host_, &call_, model_, &args), SPECD_E_INVALID);
  expect_words("model.follow: row_offsets, parent, token and token_at must be null");
  args.row_offsets = nullptr;
  args.n_outputs = 4;
  EXPECT_EQ(table_->follow(host_, &call_, model_, &args), SPECD_E_INVALID);
  expect_words("0 rows and 4 outputs");
  const uint32_t rows[2] = {0, 1}, beyond[2] = {0, 3}, same[2] = {5, 5}, far[2] = {0, 12};
  const specd_tensor token_t = host_i32(proposal_.data(), {3 * kNodes});
  args.n_outputs = 2;
  args.output_rows = rows;
  args.out_token = &token_t;
  args.output_at = same;
  EXPECT_EQ(table_->follow(host_, &call_, model_, &args), SPECD_E_INVALID);
  expect_words("output_at[1] does not increase");
  args.output_at = far;
  EXPECT_EQ(table_->follow(host_, &call_, model_, &args), SPECD_E_INVALID);
  expect_words("out_token has 12 rows, output_at asks for row 12");
  args.output_at = rows;
  args.output_rows = beyond;
  EXPECT_EQ(table_->follow(host_, &call_, model_, &args), SPECD_E_INVALID);
  expect_words("model.follow: output_rows[1] is 3, expected increasing numbers in 0..2");
  call_.committed = nullptr;
}

}  // namespace
}  // namespace specd
