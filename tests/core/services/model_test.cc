// Sessions of draft models against forwards made by hand, and every wrong argument a plugin can
// give.
#include "core/services/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "core/request/sampling.h"
#include "specd/plugin_api/services/rng.h"
#include "tests/core/services/model_rig.h"

namespace specd {
namespace {

TEST_F(ModelServiceTest, rows_have_the_bits_of_the_model_alone_in_any_portion) {
  EXPECT_EQ(models_->models()[0]->kv.store->parts_per_page(), 8) << "a draft page is an eighth";
  const std::vector<int32_t> a = some_tokens(150, 1), b = some_tokens(40, 2);
  const Logits plain_a = plain(a), plain_b = plain(b);
  size_t at_a = 0, at_b = 0;
  for (const size_t n : {1u, 17u, 40u, 2u, 90u}) {
    const size_t n_b = std::min<size_t>(n, 8);
    const Rows rows{
        {{a.begin() + static_cast<ptrdiff_t>(at_a), a.begin() + static_cast<ptrdiff_t>(at_a + n)},
         {},
         {b.begin() + static_cast<ptrdiff_t>(at_b),
          b.begin() + static_cast<ptrdiff_t>(at_b + n_b)}},
        {}};
    const Result r = forward(rows);
    ASSERT_EQ(r.status, SPECD_OK) << call_.text;
    for (size_t i = 0; i < n; ++i) ASSERT_TRUE(same_bits(r.logits[i], plain_a[at_a + i])) << i;
    for (size_t i = 0; i < n_b; ++i) {
      ASSERT_TRUE(same_bits(r.logits[n + i], plain_b[at_b + i])) << i;
    }
    // Some portions are kept at once, some rounds go on.
    if (n != 17u) {
      std::vector<uint32_t> have = lengths();
      const auto whole = [&](size_t end, uint32_t kept) {
        return upto(static_cast<uint32_t>(end) - kept);
      };
      ASSERT_EQ(keep(have, {whole(at_a + n, have[0]), {}, whole(at_b + n_b, have[2])}), SPECD_OK)
          << call_.text;
      EXPECT_EQ(lengths(), (std::vector<uint32_t>{static_cast<uint32_t>(at_a + n), 0,
                                                  static_cast<uint32_t>(at_b + n_b)}));
    }
    at_a += n;
    at_b += n_b;
  }
  // 150 tokens are 10 pages of the draft model: 2 of the pool.
  EXPECT_EQ(models_->models()[0]->kv.pages_held, 3);
}

TEST_F(ModelServiceTest, a_tree_has_the_bits_of_its_paths_and_a_kept_path_goes_on) {
  const std::vector<int32_t> prompt = some_tokens(37, 3);
  feed(prompt);
  // Two forwards: branches, a chain among them, rows under earlier rows.
  const std::vector<int32_t> token = some_tokens(20, 4);
  std::vector<int32_t> parent = {-1, 0, -1, 1, 2,  2,  3, -1, 5,  8,
                                 0,  9, 11, 6, 12, 14, 4, 16, 13, 18};
  Logits logits;
  for (const auto& [from, to] : {std::pair<size_t, size_t>(0, 6), {6, 20}}) {
    const auto part = [from = from, to = to](const std::vector<int32_t>& all) {
      return std::vector<int32_t>(all.begin() + static_cast<ptrdiff_t>(from),
                                  all.begin() + static_cast<ptrdiff_t>(to));
    };
    const Result r = forward({{part(token), {}, {}}, {part(parent), {}, {}}});
    ASSERT_EQ(r.status, SPECD_OK) << call_.text;
    ASSERT_EQ(r.of[0], SPECD_OK);
    logits.insert(logits.end(), r.logits.begin(), r.logits.end());
  }
  std::vector<int32_t> best;  // tokens on the longest path
  std::vector<uint32_t> best_rows;
  for (size_t i = 0; i < token.size(); ++i) {
    std::vector<int32_t> text = prompt, path;
    std::vector<uint32_t> rows;
    for (int32_t each = static_cast<int32_t>(i); each >= 0;
         each = parent[static_cast<size_t>(each)]) {
      path.insert(path.begin(), token[static_cast<size_t>(each)]);
      rows.insert(rows.begin(), static_cast<uint32_t>(each));
    }
    text.insert(text.end(), path.begin(), path.end());
    ASSERT_TRUE(same_bits(logits[i], plain(text).back())) << "row " << i;
    if (path.size() > best.size()) {
      best = path;
      best_rows = rows;
    }
  }
  ASSERT_NE(best_rows, upto(static_cast<uint32_t>(best.size()))) << "nothing would have to move";
  ASSERT_EQ(keep({37, 0, 0}, {best_rows, {}, {}}), SPECD_OK) << call_.text;
  EXPECT_EQ(lengths()[0], 37 + best.size());
  std::vector<int32_t> text = prompt;
  text.insert(text.end(), best.begin(), best.end());
  text.push_back(11);
  EXPECT_TRUE(same_bits(forward({{{11}, {}, {}}, {}}).logits[0], plain(text).back()));
  // Truncation: back into the prompt, and on with another token.
  ASSERT_EQ(keep({20, 0, 0}, {}), SPECD_OK) << call_.text;
  EXPECT_EQ(lengths()[0], 20u);
  text.assign(prompt.begin(), prompt.begin() + 20);
  text.push_back(12);
  EXPECT_TRUE(same_bits(forward({{{12}, {}, {}}, {}}).logits[0], plain(text).back()));
}

TEST_F(ModelServiceTest, the_drawn_token_is_the_targets_draw_on_these_logits) {
  const std::vector<int32_t> tokens = some_tokens(9, 5);
  const Result r = forward({{tokens, tokens, {}}, {}});
  ASSERT_EQ(r.status, SPECD_OK) << call_.text;
  for (size_t i = 0; i < 18; ++i) {
    const specd_sampling& sampling = sampling_[i / 9];
    const kernels::DrawRow row{.temperature = sampling.temperature,
                               .top_p = sampling.top_p,
                               .top_k = sampling.top_k,
                               .position = static_cast<int32_t>(i % 9) + 1,
                               .seed = sampling.seed,
                               .greedy = i >= 9};
    int32_t expected = -1;
    device_->ops().draw(device_->stream(), {r.logits[i].data(), &row, &expected, 1, kModelVocab});
    EXPECT_EQ(r.token[i], expected) << i;
    double sum = 0;
    for (const float logit : r.logits[i]) sum += std::exp(static_cast<double>(logit));
    const auto logprob = [&](int32_t id) {
      return static_cast<double>(r.logits[i][static_cast<size_t>(id)]) - std::log(sum);
    };
    EXPECT_NEAR(r.logprob[i], logprob(r.token[i]), 1e-5);
    std::vector<float> sorted = r.logits[i];
    std::sort(sorted.rbegin(), sorted.rend());
    for (size_t k = 0; k < kTop; ++k) {
      const int32_t id = r.top[i * kTop + k];
      EXPECT_EQ(r.logits[i][static_cast<size_t>(id)], sorted[k]);
      EXPECT_NEAR(r.top_logprob[i * kTop + k], logprob(id), 1e-5);
    }
    if (i >= 9) {
      EXPECT_EQ(r.token[i], r.top[i * kTop]) << "greedy";
    }
  }
}

// With the temperature and cuts of the request; noise of its own, new in every step.
TEST_F(ModelServiceTest, what_a_token_is_drawn_from_comes_with_it) {
  std::vector<std::span<const int32_t>> committed;
  const std::vector<int32_t> text = some_tokens(6, 9), longer = some_tokens(7, 9);
  const std::vector<int32_t> tokens = some_tokens(4, 5);
  std::vector<int32_t> with_own_noise;
  for (const uint32_t purpose : {0u, uint32_t{SPECD_PURPOSE_DRAFT}}) {
    for (const auto* each : {&text, &longer}) {
      committed.assign(3, *each);
      call_.committed = &committed;
      ASSERT_EQ(keep({0, 0, 0}, {}), SPECD_OK);
      const Result raw = forward({{tokens, tokens, {}}, {}});
      ASSERT_EQ(keep({0, 0, 0}, {}), SPECD_OK);
      const int64_t width = kModelVocab + 3;
      std::vector<int32_t> input = tokens, drawn(8, -7);
      input.insert(input.end(), tokens.begin(), tokens.end());
      std::vector<float> law(static_cast<size_t>(8 * width), 7), lse(8, 7);
      uint32_t offsets[4] = {0, 4, 8, 8}, outputs[8];
      std::iota(outputs, outputs + 8, 0);
      specd_status status[3];
      const specd_tensor token_t = host_i32(input.data(), {8}),
                         drawn_t = host_i32(drawn.data(), {8});
      const specd_tensor law_t = host_tensor(law.data(), SPECD_DT_FLOAT, 32, {8, width});
      const specd_tensor lse_t = host_tensor(lse.data(), SPECD_DT_FLOAT, 32, {8});
      specd_forward_args args{};
      args.struct_size = sizeof(args);
      args.n_rows = args.n_outputs = 8;
      args.purpose = purpose;
      args.row_offsets = offsets;
      args.output_rows = outputs;
      args.token = &token_t;
      args.out_token = &drawn_t;
      args.out_law = &law_t;
      args.out_lse = &lse_t;
      args.seq_status = status;
      ASSERT_EQ(table_->forward(host_, &call_, model_, &args), SPECD_OK) << call_.text;
      for (size_t i = 0; i < 8; ++i) {
        kernels::DrawRow row = draw_row(sampling_[i / 4]);
        row.position = static_cast<int32_t>(i % 4) + 1;
        row.purpose = purpose;
        row.round = purpose == 0 ? 0 : static_cast<uint32_t>(each->size());
        row.law = true;
        int32_t expected = -1;
        std::vector<float> expected_law(kModelVocab);
        float expected_lse = 7;
        device_->ops().draw(device_->stream(), {.logits = raw.logits[i].data(),
                                                .row = &row,
                                                .token = &expected,
                                                .n_rows = 1,
                                                .vocab = kModelVocab,
                                                .law = expected_law.data(),
                                                .lse = &expected_lse});
        EXPECT_EQ(drawn[i], expected);
        EXPECT_EQ(lse[i], expected_lse);
        const float* own = law.data() + i * static_cast<size_t>(width);
        EXPECT_TRUE(std::equal(expected_law.begin(), expected_law.end(), own));
        for (int64_t beyond = kModelVocab; beyond < width; ++beyond) {
          EXPECT_EQ(own[beyond], -HUGE_VALF);
        }
        if (purpose == 0) {
          EXPECT_EQ(drawn[i], raw.token[i]) << "the target's noise";
        }
      }
      if (purpose != 0)
        with_own_noise.insert(with_own_noise.end(), drawn.begin(), drawn.begin() + 4);
    }
  }
  EXPECT_NE(std::vector<int32_t>(with_own_noise.begin(), with_own_noise.begin() + 4),
            std::vector<int32_t>(with_own_noise.begin() + 4, with_own_noise.end()))
      << "another root";
  call_.committed = nullptr;
}

TEST_F(ModelServiceTest, a_sequence_that_fails_is_alone_in_it_and_unchanged) {
  DraftModel& draft = *models_->models()[0];
  const std::vector<int32_t> a = some_tokens(6, 6);
  feed(a);
  const auto others_go_on = [&](const Rows& rows, specd_status expected, const std::string& words) {
    const Result r = forward(rows);
    EXPECT_EQ(r.status, SPECD_OK);
    EXPECT_EQ(r.of[0], expected);
    EXPECT_EQ(r.of[1], SPECD_OK);
    expect_words(words);
    EXPECT_EQ(r.token[0], -1);
    EXPECT_EQ(r.logits[0][0], -7.0f) << "nothing else is written";
    EXPECT_TRUE(same_bits(r.logits.back(), plain({5}).back()));
    EXPECT_EQ(keep({6, 0, 0}, {{}, {}, {}}), SPECD_OK) << call_.text;
    EXPECT_EQ(lengths()[0], 6u);
  };
  others_go_on({{{-1}, {5}, {}}, {}}, SPECD_E_INVALID, "token -1, expected 0..4095");
  others_go_on({{{4096}, {5}, {}}, {}}, SPECD_E_INVALID, "token 4096, expected 0..4095");
  others_go_on({{{7, 8}, {5}, {}}, {{-1, 1}, {-1}, {}}}, SPECD_E_INVALID,
               "row 1 of the round has parent 1, expected -1..0");
  others_go_on({{{7}, {5}, {}}, {{-2}, {-1}, {}}}, SPECD_E_INVALID, "has parent -2");
  draft.target_vocab_size = 5000;
  others_go_on({{{4999}, {5}, {}}, {}}, SPECD_E_UNSUPPORTED,
               "token 4999 is not in the vocabulary of draft model 'draft', which ends at 4096");
  draft.target_vocab_size = kModelVocab;
  draft.kv.positions_max = 8;
  others_go_on({{{7, 8, 9}, {5}, {}}, {}}, SPECD_E_UNSUPPORTED,
               "position 8 is beyond the context of draft model 'draft', 8");
  draft.kv.positions_max = 2048;
  std::vector<int32_t> held;
  ASSERT_TRUE(pool_->take(pool_->n_free() - 1, held));
  others_go_on({{some_tokens(300, 7), {5}, {}}, {}}, SPECD_E_EXHAUSTED,
               "KV pages are needed, 1 are");
  pool_->release(held);
  // The session goes on as if nothing had been.
  std::vector<int32_t> text = a;
  text.push_back(9);
  EXPECT_TRUE(same_bits(forward({{{9}, {}, {}}, {}}).logits[0], plain(text).back()));
}

TEST_F(ModelServiceTest, ids_beyond_the_targets_vocabulary_are_never_drawn) {
  DraftModel& draft = *models_->models()[0];
  const std::vector<int32_t> tokens = some_tokens(12, 8);
  const Result all = forward({{{}, tokens, {}}, {}});
  ASSERT_EQ(keep({0, 0, 0}, {}), SPECD_OK);
  // A target that lacks the greatest id drawn.
  const int32_t cut = *std::max_element(all.token.begin(), all.token.end());
  ASSERT_GT(cut, 8);
  draft.facts.info.vocab_size = static_cast<uint32_t>(cut);
  std::vector<int32_t> drawn(12), input = tokens;
  std::vector<uint32_t> offsets{0, 0, 12, 12}, outputs = upto(12);
  std::vector<specd_status> status(3);
  const specd_tensor token_t = host_i32(input.data(), {12}), drawn_t = host_i32(drawn.data(), {12});
  specd_forward_args args{};
  args.struct_size = sizeof(args);
  args.n_rows = args.n_outputs = 12;
  args.row_offsets = offsets.data();
  args.output_rows = outputs.data();
  args.token = &token_t;
  args.out_token = &drawn_t;
  args.seq_status = status.data();
  ASSERT_EQ(table_->forward(host_, &call_, model_, &args), SPECD_OK) << call_.text;
  for (size_t i = 0; i < 12; ++i) {
    const auto end = all.logits[i].begin() + cut;
    EXPECT_EQ(drawn[i], std::max_element(all.logits[i].begin(), end) - all.logits[i].begin());
  }
}

TEST_F(ModelServiceTest, sessions_end_with_the_sequence_with_close_and_with_the_instance) {
  const std::vector<int32_t> tokens = some_tokens(20, 9);
  feed(tokens);
  EXPECT_EQ(pool_->n_free(), kPages - 1);
  models_->end(1);
  EXPECT_EQ(pool_->n_free(), kPages);
  EXPECT_EQ(lengths()[0], 0u);

  feed(tokens);
  specd_model* other = nullptr;
  ASSERT_EQ(table_->open(host_, &owner_, "second", &other), SPECD_OK);
  ASSERT_EQ(forward({{tokens, {}, {}}, {}}, other).status, SPECD_OK);
  EXPECT_EQ(pool_->n_free(), kPages - 2);
  table_->close(host_, &owner_, other);
  table_->close(host_, &owner_, other);
  EXPECT_EQ(lengths()[0], 20u);
  EXPECT_EQ(pool_->n_free(), kPages - 1) << "the next call takes the pages of the closed one";
  EXPECT_EQ(forward({{tokens, {}, {}}, {}}, other).status, SPECD_E_INVALID);
  expect_words("not a model that this instance has open");
  {
    specd_owner brief;
    specd_model* its = nullptr;
    ASSERT_EQ(table_->open(host_, &brief, "draft", &its), SPECD_OK);
    EXPECT_EQ(forward({{tokens, {}, {}}, {}}, its).status, SPECD_E_INVALID)
        << "another instance's model";
    expect_words("not a model that this instance has open");
    call_.owner = &brief;
    ASSERT_EQ(forward({{tokens, {}, {}}, {}}, its).status, SPECD_OK) << call_.text;
    call_.owner = &owner_;
    EXPECT_EQ(pool_->n_free(), kPages - 2);
  }
  EXPECT_EQ(lengths()[0], 20u);
  EXPECT_EQ(pool_->n_free(), kPages - 1) << "its instance is gone";
}

TEST_F(ModelServiceTest, pages_are_reclaimed_from_those_that_drafted_longest_ago) {
  const std::vector<int32_t> tokens = some_tokens(20, 10);
  batch_.n_seqs = 1;
  for (uint64_t id = 1; id <= 4; ++id) {
    ids_[0] = id;
    batch_.step_id = 10 * id;
    ASSERT_EQ(forward({{tokens}, {}}).of[0], SPECD_OK);
    ASSERT_EQ(keep({0}, {upto(20)}), SPECD_OK);
  }
  EXPECT_EQ(models_->n_reclaimable(), 4);
  EXPECT_EQ(models_->reclaim(2), 2);
  EXPECT_EQ(models_->n_reclaimable(), 2);
  const auto length_of = [&](uint64_t id) {
    ids_[0] = id;
    return lengths()[0];
  };
  EXPECT_EQ(length_of(1), 0u);
  EXPECT_EQ(length_of(2), 0u);
  EXPECT_EQ(length_of(3), 20u);
  // The drafter of 2 comes back when no page is free: 3 has not drafted for long, 4 has just now.
  std::vector<int32_t> held;
  ASSERT_TRUE(pool_->take(pool_->n_free(), held));
  ids_[0] = 2;
  batch_.step_id = 41;
  EXPECT_EQ(forward({{tokens}, {}}).of[0], SPECD_OK);
  EXPECT_EQ(length_of(3), 0u);
  EXPECT_EQ(length_of(4), 20u);
  ids_[0] = 1;
  EXPECT_EQ(forward({{tokens}, {}}).of[0], SPECD_E_EXHAUSTED);
  expect_words("1 KV pages are needed, 0 are free");
  EXPECT_EQ(length_of(4), 20u);
  EXPECT_EQ(models_->reclaim(100), 2) << "the target may have all";
  pool_->release(held);
}

TEST_F(ModelServiceTest, every_bad_argument_is_refused_in_words_and_changes_nothing) {
  feed(some_tokens(5, 11));
  uint32_t offsets[4] = {0, 2, 2, 3}, outputs[2] = {0, 2};
  int32_t tokens[3] = {1, 2, 3}, drawn[2], top[2 * 3];
  float logprob[2], logits[2 * 16];
  specd_status status[3];
  specd_tensor token_t = host_i32(tokens, {3}), drawn_t = host_i32(drawn, {2});
  specd_tensor top_t = host_i32(top, {2, 3});
  specd_tensor logprob_t = host_tensor(logprob, SPECD_DT_FLOAT, 32, {2});
  specd_tensor logits_t = host_tensor(logits, SPECD_DT_FLOAT, 32, {2, 16});
  const auto refused = [&](auto edit, const std::string& words) {
    specd_forward_args args{};
    args.struct_size = sizeof(args);
    args.n_rows = 3;
    args.n_outputs = 2;
    args.row_offsets = offsets;
    args.output_rows = outputs;
    args.token = &token_t;
    args.out_token = &drawn_t;
    args.seq_status = status;
    edit(args);
    EXPECT_EQ(table_->forward(host_, &call_, model_, &args), SPECD_E_INVALID) << words;
    expect_words("model.forward: " + words);
  };
  using Args = specd_forward_args;
  refused([](Args& a) { a.struct_size = 8; }, "args of struct_size");
  refused([](Args& a) { a.row_offsets = nullptr; }, "row_offsets or seq_status is null");
  refused([](Args& a) { a.seq_status = nullptr; }, "row_offsets or seq_status is null");
  refused([](Args& a) { a.n_rows = UINT32_MAX; }, "4294967295 rows");
  refused([](Args& a) { a.n_outputs = 4; }, "3 rows and 4 outputs");
  refused([](Args& a) { a.n_rows = 2; }, "row_offsets end at 3, expected n_rows 2");
  refused([](Args& a) { a.token = nullptr; }, "token is null");
  refused([](Args& a) { a.output_rows = nullptr; }, "output_rows is null");
  refused([&](Args& a) { a.out_logits = &logits_t; }, "out_logits has 16 columns");
  refused([&](Args& a) { a.out_token = nullptr, a.out_logprob = &logprob_t; },
          "out_logprob needs out_token");
  refused([&](Args& a) { a.out_topk_logprob = &logits_t; }, "out_topk_logprob needs");
  refused([&](Args& a) { a.out_topk_token = &top_t, a.out_topk_logprob = &logits_t; },
          "out_topk_logprob has 16 columns, out_topk_token 3");
  refused([&](Args& a) { a.out_token = &token_t; }, "out_token has 3 rows, expected n_outputs 2");
  refused([&](Args& a) { a.out_token = &logprob_t; }, "out_token has dtype 2/32");
  refused([](Args& a) { a.purpose = 2; }, "purpose is 2, expected 0 or SPECD_PURPOSE_DRAFT (1)");
  refused([](Args& a) { a.purpose = 1; }, "a purpose is allowed only inside propose()");
  refused([&](Args& a) { a.out_law = &logits_t; }, "out_law and out_lse: one of them is null");
  refused([&](Args& a) { a.out_law = &logits_t, a.out_lse = &logprob_t; },
          "out_law has 16 columns, expected at least vocab_size 4096");
  refused(
      [&](Args& a) { a.out_law = &logits_t, a.out_lse = &logprob_t, a.out_logprob = &logprob_t; },
      "out_law needs out_token, and allows no out_logprob");
  top_t.shape[1] = 5000;
  refused([&](Args& a) { a.out_topk_token = &top_t; }, "out_topk_token reaches beyond");
  top_t.shape[1] = 0;
  refused([&](Args& a) { a.out_topk_token = &top_t; }, "out_topk_token has 0 columns");
  outputs[1] = 3;
  refused([](Args&) {}, "output_rows[1] is 3, expected increasing numbers in 0..2");
  outputs[1] = 0;
  refused([](Args&) {}, "output_rows[1] is 0");
  outputs[1] = 2;
  offsets[0] = 1;
  refused([](Args&) {}, "row_offsets[0] is 1");
  offsets[0] = 0, offsets[1] = 3;
  refused([](Args&) {}, "row_offsets decrease at 2");
  EXPECT_EQ(table_->forward(host_, &call_, model_, nullptr), SPECD_E_INVALID);

  const auto kept_refused = [&](const std::vector<uint32_t>& kept,
                                const std::vector<std::vector<uint32_t>>& paths,
                                const std::string& words) {
    EXPECT_EQ(keep(kept, paths), SPECD_E_INVALID) << words;
    expect_words("model.keep: " + words);
  };
  ASSERT_EQ(forward({{{1, 2, 3}, {}, {}}, {{-1, 0, 0}, {}, {}}}).of[0], SPECD_OK);
  kept_refused({6, 0, 0}, {}, "sequence 0: kept is 6, expected at most 5");
  kept_refused({0, 1, 0}, {}, "sequence 1: kept is 1, expected at most 0");
  kept_refused({4, 0, 0}, {{0}, {}, {}}, "sequence 0: kept is 4, expected with rows, exactly 5");
  kept_refused({5, 0, 0}, {{1}, {}, {}},
               "sequence 0: row 1 of the round, which has 3, is not a child");
  kept_refused({5, 0, 0}, {{0, 1, 2}, {}, {}}, "sequence 0: row 2 of the round");
  kept_refused({5, 0, 0}, {{0, 0}, {}, {}}, "sequence 0: row 0 of the round");
  kept_refused({5, 0, 0}, {{3}, {}, {}}, "sequence 0: row 3 of the round");
  kept_refused({5, 0, 0}, {{0}, {}, {0}}, "sequence 2: row 0 of the round, which has 0");
  EXPECT_EQ(table_->keep(host_, &call_, model_, nullptr, nullptr, nullptr), SPECD_E_INVALID);
  EXPECT_EQ(lengths()[0], 5u);
  EXPECT_EQ(keep({5, 0, 0}, {{0, 2}, {}, {}}), SPECD_OK) << call_.text;
  EXPECT_EQ(lengths()[0], 7u);

  call_.clear();
  uint32_t length[3];
  EXPECT_EQ(table_->length(host_, nullptr, model_, length), SPECD_E_PRECONDITION);
  EXPECT_EQ(table_->length(host_, &call_, nullptr, length), SPECD_E_INVALID);
  EXPECT_EQ(table_->length(host_, &call_, model_, nullptr), SPECD_E_INVALID);
  specd_call outside;
  EXPECT_EQ(table_->length(host_, &outside, model_, length), SPECD_E_PRECONDITION);
  specd_model* opened = nullptr;
  specd_target_info info{};
  std::string text;
  const PluginScope scope(owner_.label, &text);
  EXPECT_EQ(table_->open(host_, &owner_, "nobody", &opened), SPECD_E_PRECONDITION);
  EXPECT_NE(text.find("no draft model is called 'nobody'; draft_models has draft, second"),
            std::string::npos)
      << text;
  EXPECT_EQ(opened, nullptr);
  EXPECT_EQ(table_->open(host_, nullptr, "draft", &opened), SPECD_E_INVALID);
  EXPECT_EQ(table_->open(host_, &owner_, nullptr, &opened), SPECD_E_INVALID);
  EXPECT_EQ(table_->open(host_, &owner_, "draft", nullptr), SPECD_E_INVALID);
  EXPECT_EQ(table_->info(host_, &owner_, model_, &info), SPECD_E_INVALID) << "no struct_size";
  info.struct_size = sizeof(info);
  EXPECT_EQ(table_->info(host_, &owner_, nullptr, &info), SPECD_E_INVALID);
  ASSERT_EQ(table_->info(host_, &owner_, model_, &info), SPECD_OK);
  EXPECT_EQ(info.vocab_size, 4096u);
  EXPECT_STREQ(info.model_id, "draft");
}

}  // namespace
}  // namespace specd
