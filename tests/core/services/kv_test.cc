// kv/1 with weights/1 and ops/1: a whole model of the zoo, computed as a plugin would, against the
// host's own forward and against float64.
#include "tests/core/services/kv_rig.h"

#include <algorithm>
#include <functional>
#include <map>

#include "tests/core/model/forward_rig.h"

namespace specd {
namespace {

class Kv : public testing::TestWithParam<bool> {
 protected:
  KvRig rig_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Kv, Kv, testing::Bool(), testing::PrintToStringParamName());

// The host's forward over the tokens, in a cache of its own.
Logits plain(const std::vector<int32_t>& tokens) {
  ForwardRig rig("pico-draft", "", 1, false);
  rig.add_span(tokens, 0);
  return rig.run();
}

// o_proj and down_proj add their segments in another order than linear() does.
void expect_near(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-4) << i;
  EXPECT_EQ(argmax(a), argmax(b));
}

std::vector<int32_t> slice(const std::vector<int32_t>& all, size_t first, size_t end) {
  return {all.begin() + static_cast<ptrdiff_t>(first), all.begin() + static_cast<ptrdiff_t>(end)};
}

TEST_P(Kv, a_model_of_ops_and_kv_is_the_hosts_model_in_any_portion) {
  const std::vector<int32_t> a = some_tokens(70, 1), b = some_tokens(19, 2);
  const Logits whole_a = plain(a), whole_b = plain(b);
  specd_kv* kv = rig_.opened();
  // In portions of one call each, the first sequence alone in the last.
  Logits got_a, got_b;
  std::vector<uint32_t> kept = {0, 0, 0};
  for (const auto& [a0, a1, b0, b1] : std::vector<std::array<size_t, 4>>{
           {0, 17, 0, 1}, {17, 18, 1, 1}, {18, 50, 1, 19}, {50, 70, 19, 19}}) {
    rig_.next_call();
    EXPECT_EQ(rig_.lengths(kv), kept);
    const Logits rows = rig_.forward(kv, {{slice(a, a0, a1), slice(b, b0, b1), {}}});
    const auto n_a = static_cast<ptrdiff_t>(a1 - a0);
    got_a.insert(got_a.end(), rows.begin(), rows.begin() + n_a);
    got_b.insert(got_b.end(), rows.begin() + n_a, rows.end());
    ASSERT_EQ(rig_.keep(kv, kept,
                        {KvRig::upto(static_cast<uint32_t>(a1 - a0)),
                         KvRig::upto(static_cast<uint32_t>(b1 - b0)),
                         {}}),
              SPECD_OK)
        << rig_.call_.text;
    kept = {static_cast<uint32_t>(a1), static_cast<uint32_t>(b1), 0};
  }
  for (size_t i = 0; i < a.size(); ++i) expect_near(got_a[i], whole_a[i]);
  for (size_t i = 0; i < b.size(); ++i) expect_near(got_b[i], whole_b[i]);
  // In one call, with the same bits.
  rig_.next_call();
  ASSERT_EQ(rig_.keep(kv, {0, 0, 0}), SPECD_OK);
  const Logits at_once = rig_.forward(kv, {{b, a, {}}});
  for (size_t i = 0; i < b.size(); ++i) ASSERT_TRUE(same_bits(at_once[i], got_b[i])) << i;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(same_bits(at_once[b.size() + i], got_a[i])) << i;
  }
}

TEST_P(Kv, a_tree_has_the_bits_of_its_paths_and_a_kept_path_goes_on) {
  const std::vector<int32_t> text = some_tokens(21, 3);
  specd_kv* kv = rig_.opened();
  rig_.forward(kv, {{text, {}, {}}});
  ASSERT_EQ(rig_.keep(kv, {0, 0, 0}, {KvRig::upto(21), {}, {}}), SPECD_OK);
  // Levels in calls of their own:  5 6 | 7 8 below 5, 9 below 6 | 10 below 8
  const std::vector<int32_t> token = {5, 6, 7, 8, 9, 10}, parent = {-1, -1, 0, 0, 1, 3};
  Logits tree;
  for (const auto& [first, end] : std::vector<std::pair<size_t, size_t>>{{0, 2}, {2, 5}, {5, 6}}) {
    const Logits level =
        rig_.forward(kv, {{slice(token, first, end), {}, {}}, {slice(parent, first, end), {}, {}}});
    tree.insert(tree.end(), level.begin(), level.end());
  }
  // The path 5 8 10, kept, and a row after it.
  ASSERT_EQ(rig_.keep(kv, {21, 0, 0}, {{0, 3, 5}, {}, {}}), SPECD_OK) << rig_.call_.text;
  EXPECT_EQ(rig_.lengths(kv)[0], 24u);
  const Logits after = rig_.forward(kv, {{{11}, {}, {}}});
  for (const std::vector<size_t>& path :
       std::vector<std::vector<size_t>>{{0, 2}, {1, 4}, {0, 3, 5}}) {
    std::vector<int32_t> tokens = text;
    for (const size_t node : path) tokens.push_back(token[node]);
    rig_.next_call();
    ASSERT_EQ(rig_.keep(kv, {0, 0, 0}), SPECD_OK);
    const Logits alone = rig_.forward(kv, {{tokens, {}, {}}});
    for (size_t i = 0; i < path.size(); ++i) {
      EXPECT_TRUE(same_bits(alone[text.size() + i], tree[path[i]])) << path[i];
    }
    if (path.size() < 3) continue;
    tokens.push_back(11);
    ASSERT_EQ(rig_.keep(kv, {0, 0, 0}), SPECD_OK);
    EXPECT_TRUE(same_bits(rig_.forward(kv, {{tokens, {}, {}}}).back(), after[0]));
  }
}

TEST_P(Kv, only_the_rows_asked_for_attend_and_all_are_kept) {
  const std::vector<int32_t> a = some_tokens(18, 4), b = some_tokens(5, 5);
  specd_kv* kv = rig_.opened();
  const Logits all = rig_.forward(kv, {{a, b, {}}});
  ASSERT_EQ(rig_.keep(kv, {0, 0, 0}), SPECD_OK);
  const Logits some = rig_.forward(kv, {{a, b, {}}, {}, {0, 17, 22}});
  ASSERT_EQ(some.size(), 3u);
  EXPECT_TRUE(same_bits(some[0], all[0]));
  EXPECT_TRUE(same_bits(some[1], all[17]));
  EXPECT_TRUE(same_bits(some[2], all[22]));
  // What follows sees the rows that did not attend.
  const Logits next = rig_.forward(kv, {{{7}, {}, {}}});
  ASSERT_EQ(rig_.keep(kv, {0, 0, 0}), SPECD_OK);
  std::vector<int32_t> longer = a;
  longer.push_back(7);
  EXPECT_TRUE(same_bits(rig_.forward(kv, {{longer, {}, {}}}).back(), next[0]));
}

TEST_P(Kv, a_sequence_that_fails_has_zeros_and_is_alone_in_it) {
  const std::vector<int32_t> text = some_tokens(6, 6);
  const auto heads = static_cast<uint32_t>(rig_.config_.n_heads);
  const int64_t q = rig_.config_.n_heads * rig_.config_.head_dim, width = q + 128;
  specd_kv_open_args args = rig_.open_args();
  args.positions_max = 8;
  specd_kv* kv = nullptr;
  ASSERT_EQ(rig_.open(args, &kv).first, SPECD_OK);
  rig_.forward(kv, {{text, text, {}}});
  ASSERT_EQ(rig_.keep(kv, {0, 0, 0}, {KvRig::upto(6), KvRig::upto(6), {}}), SPECD_OK);
  const auto attended = [&](const KvRows& rows, int64_t n) {
    EXPECT_EQ(rig_.rows(kv, rows), SPECD_OK);
    std::vector<float> values(static_cast<size_t>(n * width));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 13) - 6;
    const specd_tensor qkv = rig_.tensor(values, {n, width}), out = rig_.floats(n, q);
    EXPECT_EQ(rig_.append(kv, 0, heads, qkv), SPECD_OK) << rig_.call_.text;
    EXPECT_EQ(rig_.attend(kv, 0, heads, qkv, out), SPECD_OK) << rig_.call_.text;
    return rig_.values_of<float>(out);
  };
  const auto is_zero = [&](const std::vector<float>& values, int64_t row) {
    const auto begin = values.begin() + row * q;
    return std::all_of(begin, begin + q, [](float each) { return each == 0; });
  };
  // Three rows are one too many for the context.
  std::vector<float> out = attended({{{1, 2, 3}, {4}, {}}}, 4);
  EXPECT_EQ(rig_.of_, (std::vector<specd_status>{SPECD_E_UNSUPPORTED, SPECD_OK, SPECD_OK}));
  rig_.expect_words("kv: position 8 is beyond the context of the layers of inst, 8");
  for (int64_t r = 0; r < 3; ++r) EXPECT_TRUE(is_zero(out, r)) << r;
  EXPECT_FALSE(is_zero(out, 3));
  ASSERT_EQ(rig_.keep(kv, {6, 6, 0}), SPECD_OK);
  out = attended({{{1}, {4}, {}}, {{0}, {-1}, {}}}, 2);
  EXPECT_EQ(rig_.of_[0], SPECD_E_INVALID);
  rig_.expect_words("row 0 of the round has parent 0, expected -1..-1");
  EXPECT_TRUE(is_zero(out, 0));
  // No pages: what is held stays, and the sequence goes on when there are some.
  ASSERT_EQ(rig_.keep(kv, {6, 6, 0}), SPECD_OK);
  std::vector<int32_t> held;
  ASSERT_TRUE(rig_.pool_.take(rig_.pool_.n_free(), held));
  out = attended({{{1}, {}, {4}}}, 2);
  EXPECT_EQ(rig_.of_, (std::vector<specd_status>{SPECD_OK, SPECD_OK, SPECD_E_EXHAUSTED}));
  rig_.expect_words("KV pages are needed, 0 are free");
  EXPECT_TRUE(is_zero(out, 1));
  EXPECT_FALSE(is_zero(out, 0));
  rig_.pool_.release(held);
  ASSERT_EQ(rig_.keep(kv, {6, 6, 0}), SPECD_OK);
  EXPECT_EQ(rig_.lengths(kv), (std::vector<uint32_t>{6, 6, 0}));
  out = attended({{{1}, {}, {4}}}, 2);
  EXPECT_EQ(rig_.of_[2], SPECD_OK);
}

TEST_P(Kv, rows_keep_their_pages_in_a_call_and_lose_them_after_it) {
  specd_kv* kv = rig_.opened();
  specd_kv* other = rig_.opened();
  rig_.forward(kv, {{some_tokens(20, 7), {}, {}}});
  std::vector<int32_t> held;
  ASSERT_TRUE(rig_.pool_.take(rig_.pool_.n_free(), held));
  // The page of the first KV is not taken for the second.
  EXPECT_EQ(rig_.rows(other, {{{}, {1}, {}}}), SPECD_OK);
  EXPECT_EQ(rig_.of_[1], SPECD_E_EXHAUSTED);
  ASSERT_EQ(rig_.keep(kv, {0, 0, 0}, {KvRig::upto(20), {}, {}}), SPECD_OK) << rig_.call_.text;
  rig_.next_call();
  EXPECT_EQ(rig_.lengths(kv)[0], 20u);
  const specd_tensor qkv = rig_.floats(20, 320);
  EXPECT_EQ(rig_.append(kv, 0, 3, qkv), SPECD_E_PRECONDITION);
  rig_.expect_words("kv.append: rows() comes first, in the same call to the plugin");
  // Two steps later it is.
  rig_.batch_.step_id += 2;
  rig_.next_call();
  EXPECT_EQ(rig_.rows(other, {{{}, {1}, {}}}), SPECD_OK);
  EXPECT_EQ(rig_.of_[1], SPECD_OK) << rig_.call_.text;
  EXPECT_EQ(rig_.lengths(kv)[0], 0u) << "and its drafter begins again";
  rig_.pool_.release(held);
  // Between steps everything can be had.
  EXPECT_EQ(rig_.models_->n_reclaimable(), 1);
  EXPECT_EQ(rig_.models_->reclaim(1), 1);
  EXPECT_EQ(rig_.lengths(other)[1], 0u);
}

TEST_P(Kv, sequences_of_a_call_do_not_take_each_others_pages) {
  specd_kv* kv = rig_.opened();
  rig_.forward(kv, {{{}, some_tokens(20, 7), {}}});
  ASSERT_EQ(rig_.keep(kv, {0, 0, 0}, {{}, KvRig::upto(20), {}}), SPECD_OK);
  std::vector<int32_t> held;
  ASSERT_TRUE(rig_.pool_.take(rig_.pool_.n_free(), held));
  // Long after it drafted, the second sequence has rows behind the first one's in the same call.
  rig_.batch_.step_id += 10;
  rig_.next_call();
  EXPECT_EQ(rig_.lengths(kv)[1], 20u);
  EXPECT_EQ(rig_.rows(kv, {{{1}, {2}, {}}}), SPECD_OK);
  EXPECT_EQ(rig_.of_, (std::vector<specd_status>{SPECD_E_EXHAUSTED, SPECD_OK, SPECD_OK}));
  EXPECT_EQ(rig_.lengths(kv)[1], 20u);
  rig_.pool_.release(held);
}

// One of sixteen ranks has one head of one of the target's layers.
TEST_P(Kv, that_fits_no_page_of_a_rank_has_pages_of_its_own) {
  KvRig rig(GetParam(), kernels::KvDType::kF32, split_of(0, 2, 8));
  specd_kv* kv = rig.opened();
  const std::vector<int32_t> tokens = some_tokens(70, 1);
  const Logits whole = plain(tokens);
  const Logits rows = rig.forward(kv, {{tokens, {}, {}}});
  for (size_t i = 0; i < tokens.size(); ++i) expect_near(rows[i], whole[i]);
  ASSERT_EQ(rig.keep(kv, {0, 0, 0}, {KvRig::upto(70), {}, {}}), SPECD_OK) << rig.call_.text;
  EXPECT_EQ(rig.pool_.n_free(), KvRig::kPages) << "none of the target's is taken";
  EXPECT_EQ(rig.models_->n_reclaimable(), 0);
  // As many as the target has; the first sequence has five.
  constexpr size_t kLeft = KvRig::kPages - 5;
  const std::vector<int32_t> rest(kLeft * kernels::kPageTokens, 1);
  rig.next_call();
  ASSERT_EQ(rig.rows(kv, {{{}, rest, {}}}), SPECD_E_INVALID) << "more rows than open() was for";
  for (size_t at = 0; at < rest.size(); at += 152) {
    rig.next_call();
    ASSERT_EQ(rig.rows(kv, {{{1}, slice(rest, 0, std::min<size_t>(152, rest.size() - at)), {}}}),
              SPECD_OK);
    EXPECT_EQ(rig.of_[1], SPECD_OK) << rig.call_.text;
  }
  rig.next_call();
  EXPECT_EQ(rig.rows(kv, {{{1}, {1}, {}}}), SPECD_OK);
  EXPECT_EQ(rig.of_[1], SPECD_E_EXHAUSTED);
  rig.models_->end(rig.ids_[0]);
  rig.next_call();
  EXPECT_EQ(rig.rows(kv, {{{}, {1}, {}}}), SPECD_OK);
  EXPECT_EQ(rig.of_[1], SPECD_OK) << "it takes what the other one has left";
}

TEST_P(Kv, rows_end_with_their_round) {
  specd_kv* kv = rig_.opened();
  ASSERT_EQ(rig_.rows(kv, {{{1, 2}, {}, {}}}), SPECD_OK);
  ASSERT_EQ(rig_.keep(kv, {0, 0, 0}, {{0, 1}, {}, {}}), SPECD_OK);
  EXPECT_EQ(rig_.append(kv, 0, 3, rig_.floats(2, 320)), SPECD_E_PRECONDITION);
  rig_.expect_words("rows() comes first");
}

TEST_P(Kv, every_bad_argument_is_refused_in_words_and_changes_nothing) {
  specd_kv* kv = rig_.opened();
  const auto refused_open = [&](specd_status status, const std::string& words,
                                const std::function<void(specd_kv_open_args&)>& edit) {
    specd_kv_open_args args = rig_.open_args();
    edit(args);
    specd_kv* out = kv;
    const auto [got, text] = rig_.open(args, &out);
    EXPECT_EQ(got, status) << words;
    EXPECT_EQ(out, nullptr);
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  using Open = specd_kv_open_args;
  refused_open(SPECD_E_INVALID, "args of struct_size", [](Open& a) { a.struct_size = 3; });
  refused_open(SPECD_E_INVALID, "n_layers is 0, expected 1..256", [](Open& a) { a.n_layers = 0; });
  refused_open(SPECD_E_INVALID, "n_kv_heads is 0", [](Open& a) { a.n_kv_heads = 0; });
  refused_open(SPECD_E_INVALID, "rows_max is 65536", [](Open& a) { a.rows_max = 65536; });
  refused_open(SPECD_E_INVALID, "positions_max is 0", [](Open& a) { a.positions_max = 0; });
  refused_open(SPECD_E_INVALID, "head_dim is 40, expected a multiple of 16, at most 256",
               [](Open& a) { a.head_dim = 40; });
  refused_open(SPECD_E_INVALID, "rope_scale is not finite",
               [](Open& a) { a.rope_scale = std::nan(""); });
  refused_open(SPECD_E_UNSUPPORTED, "bytes, a page of the target's cache has",
               [](Open& a) { a.n_layers = 200; });
  std::vector<float> damaged(32, 1);
  damaged[3] = std::nanf("");
  refused_open(SPECD_E_INVALID, "inv_freq[3] is not finite",
               [&](Open& a) { a.inv_freq = damaged.data(); });
  rig_.owner_.quota_bytes = rig_.owner_.used_bytes + 100;
  refused_open(SPECD_E_EXHAUSTED, "kv.open: 76800 bytes requested, 100 of the quota", [](Open&) {});
  rig_.owner_.quota_bytes = 1 << 30;
  rig_.owner_.device_type = rig_.on_device_ ? SPECD_DEV_CPU : SPECD_DEV_CUDA;
  refused_open(SPECD_E_UNSUPPORTED, "where this instance does not work", [](Open&) {});
  rig_.owner_.device_type = 0;
  refused_open(SPECD_E_PRECONDITION, "allowed from activate() on", [](Open&) {});
  rig_.owner_.device_type = rig_.on_device_ ? SPECD_DEV_CUDA : SPECD_DEV_CPU;

  const uint32_t offsets[] = {0, 2, 2, 3}, some[] = {0, 2};
  specd_status of[3];
  const auto refused_rows = [&](const std::string& words,
                                const std::function<void(specd_kv_rows_args&)>& edit) {
    specd_kv_rows_args args{};
    args.struct_size = sizeof(args);
    args.n_rows = 3;
    args.n_queries = 2;
    args.row_offsets = offsets;
    args.query_rows = some;
    args.seq_status = of;
    edit(args);
    EXPECT_EQ(rig_.api_->rows(rig_.host_, &rig_.call_, kv, &args), SPECD_E_INVALID) << words;
    rig_.expect_words("kv.rows: " + words);
  };
  using Rows = specd_kv_rows_args;
  refused_rows("args of struct_size", [](Rows& a) { a.struct_size = 1; });
  refused_rows("row_offsets or seq_status is null", [](Rows& a) { a.seq_status = nullptr; });
  refused_rows("301 rows, open() was for at most 300", [](Rows& a) { a.n_rows = 301; });
  refused_rows("row_offsets end at 3, expected n_rows 2", [](Rows& a) { a.n_rows = 2; });
  refused_rows("flags are 6, expected SPECD_KV_*", [](Rows& a) { a.flags = 6; });
  const int32_t parent[] = {-1, 0, -1};
  refused_rows("SPECD_KV_BLOCK is for rows without parents", [&](Rows& a) {
    a.flags = SPECD_KV_BLOCK;
    a.parent = parent;
  });
  refused_rows("query_rows is null", [](Rows& a) { a.query_rows = nullptr; });
  const uint32_t back[] = {2, 2};
  refused_rows("query_rows[1] is 2, expected increasing numbers below 3",
               [&](Rows& a) { a.query_rows = back; });

  ASSERT_EQ(rig_.rows(kv, {{{1, 2}, {}, {3}}}), SPECD_OK);
  const specd_tensor qkv = rig_.floats(3, 320), out = rig_.floats(3, 192);
  const auto refused = [&](specd_status got, const std::string& words) {
    EXPECT_EQ(got, SPECD_E_INVALID) << words;
    rig_.expect_words(words);
  };
  refused(rig_.append(kv, 2, 3, qkv), "kv.append: layer 2, expected 0..1");
  refused(rig_.append(kv, 0, 2, qkv), "kv.append: qkv has shape [3, 320], expected [3, 256]");
  refused(rig_.append(kv, 0, 5000, qkv), "n_heads is 5000, expected at most 4096");
  refused(rig_.append(nullptr, 0, 3, qkv), "kv.append: not KV that this instance has open");
  refused(rig_.attend(kv, 0, 0, qkv, out), "kv.attend: n_heads is 0, expected a multiple of 1");
  refused(rig_.attend(kv, 0, 3, qkv, out, 2), "queries is 2, expected SPECD_ATTEND_*");
  refused(rig_.attend(kv, 0, 3, qkv, out, SPECD_ATTEND_QUERIES), "expected [0, 320]");
  refused(rig_.attend(kv, 0, 3, qkv, KvRig::columns(qkv, 0, 192)), "out has shape");
  specd_tensor within = qkv;
  within.shape[1] = within.stride[0] = 192;
  refused(rig_.attend(kv, 0, 3, qkv, within), "qkv and out overlap");
  refused(rig_.keep(kv, {1, 0, 0}), "kv.keep: sequence 0: kept is 1, expected at most 0");
  refused(rig_.keep(kv, {0, 0, 0}, {{1}, {}, {}}), "is not a child of row -1");
  specd_kv_view view{};
  view.struct_size = sizeof(view);
  refused(rig_.api_->view(rig_.host_, &rig_.call_, kv, 2, &view), "a layer in 0..1");
  EXPECT_EQ(rig_.lengths(kv), (std::vector<uint32_t>{0, 0, 0}));
  rig_.call_.batch = nullptr;
  uint32_t length[3];
  EXPECT_EQ(rig_.api_->length(rig_.host_, &rig_.call_, kv, length), SPECD_E_PRECONDITION);
  rig_.call_.batch = &rig_.batch_;
}

// What view() says, read as its header says, in float64.
TEST(KvView, a_kernel_of_the_plugins_own_finds_every_row) {
  KvRig rig(false);
  specd_kv* kv = rig.opened();
  const int64_t dim = rig.config_.head_dim, heads = rig.config_.n_heads, q = heads * dim,
                width = q + 2 * dim;
  const auto numbers = [](size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<float> values(n);
    for (float& each : values) each = static_cast<float>(random() % 2001) / 1000 - 1;
    return values;
  };
  const auto check = [&](const KvRows& what, uint32_t window, const std::vector<int32_t>& last) {
    ASSERT_EQ(rig.rows(kv, what), SPECD_OK) << rig.call_.text;
    const auto n = static_cast<int64_t>(last.size());
    const specd_tensor qkv = rig.tensor(numbers(static_cast<size_t>(n * width), 9), {n, width}),
                       out = rig.floats(n, q);
    ASSERT_EQ(rig.append(kv, 1, static_cast<uint32_t>(heads), qkv), SPECD_OK);
    ASSERT_EQ(rig.attend(kv, 1, static_cast<uint32_t>(heads), qkv, out, SPECD_ATTEND_ALL, window),
              SPECD_OK)
        << rig.call_.text;
    specd_kv_view view{};
    view.struct_size = sizeof(view);
    ASSERT_EQ(rig.api_->view(rig.host_, &rig.call_, kv, 1, &view), SPECD_OK) << rig.call_.text;
    ASSERT_EQ(view.n_rows, last.size());
    ASSERT_EQ(view.dtype_bits, 32);
    const auto tokens = static_cast<int32_t>(view.page_tokens);
    const auto *k = static_cast<const float*>(view.k), *v = static_cast<const float*>(view.v);
    const auto *rotated = static_cast<const float*>(qkv.data), *got = static_cast<float*>(out.data);
    for (int64_t r = 0; r < n; ++r) {
      ASSERT_EQ(view.last[r], last[static_cast<size_t>(r)]) << r;
      for (int64_t h = 0; h < heads; ++h) {
        std::vector<double> acc(static_cast<size_t>(dim));
        double sum = 0;
        for (int32_t p = 0; p <= view.last[r]; ++p) {
          if (window > 0 && p <= view.last[r] - static_cast<int32_t>(window)) continue;
          const int32_t slot = p < view.span[r]
                                   ? view.pages[view.table[r] + p / tokens] * tokens + p % tokens
                                   : view.tail[view.tail_begin[r] + p - view.span[r]];
          const size_t page = static_cast<size_t>(slot / tokens) * view.page_stride;
          double score = 0;
          for (int64_t d = 0; d < dim; ++d) {
            score += double{rotated[r * width + h * dim + d]} *
                     k[page + static_cast<size_t>(d * tokens + slot % tokens)];
          }
          const double p_of = std::exp(score / std::sqrt(static_cast<double>(dim)));
          sum += p_of;
          for (int64_t d = 0; d < dim; ++d) {
            acc[static_cast<size_t>(d)] +=
                p_of * v[page + static_cast<size_t>(slot % tokens * dim + d)];
          }
        }
        for (int64_t d = 0; d < dim; ++d) {
          ASSERT_NEAR(got[r * q + h * dim + d], acc[static_cast<size_t>(d)] / sum, 1e-5);
        }
      }
    }
  };
  check({{std::vector<int32_t>(18, 1), {1}, {}}}, 0,
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 0});
  ASSERT_EQ(rig.keep(kv, {0, 0, 0}, {KvRig::upto(18), {0}, {}}), SPECD_OK);
  check({{{1, 1, 1}, {1, 1}, {}}, {{-1, -1, 0}, {-1, -1}, {}}}, 0, {18, 18, 19, 1, 1});
  check({{{1}, {}, {}}, {{2}, {}, {}}}, 5, {20});
  // A block: from here on every row sees the whole of it.
  ASSERT_EQ(rig.keep(kv, {18, 1, 0}), SPECD_OK);
  check({{{1, 1, 1}, {1, 1}, {}}, {}, {}, SPECD_KV_BLOCK}, 0, {20, 20, 20, 2, 2});
  specd_kv_view view{};
  view.struct_size = sizeof(view);
  ASSERT_EQ(rig.api_->view(rig.host_, &rig.call_, kv, 0, &view), SPECD_OK);
  EXPECT_EQ(std::vector<int32_t>(view.position, view.position + 5),
            (std::vector<int32_t>{18, 19, 20, 1, 2}));
  // And one behind a branch.
  ASSERT_EQ(rig.keep(kv, {18, 1, 0}), SPECD_OK);
  check({{{1, 1}, {}, {}}, {{-1, -1}, {}, {}}}, 0, {18, 18});
  check({{{1, 1}, {}, {}}, {}, {}, SPECD_KV_BLOCK}, 0, {20, 20});
}

// Its numbers are codes and scales: a plugin has them through append() and attend() alone.
TEST(KvView, of_a_cache_of_8_bits_is_refused_while_attention_over_it_works) {
  const auto attended = [](kernels::KvDType dtype) {
    KvRig rig(false, dtype);
    specd_kv* kv = rig.opened();
    const int64_t dim = rig.config_.head_dim, heads = rig.config_.n_heads, q = heads * dim,
                  width = q + 2 * dim;
    EXPECT_EQ(rig.rows(kv, {{std::vector<int32_t>(20, 1), {}, {}}}), SPECD_OK) << rig.call_.text;
    std::mt19937 random(3);
    std::vector<float> numbers(static_cast<size_t>(20 * width));
    for (float& each : numbers) each = static_cast<float>(random() % 2001) / 1000 - 1;
    const specd_tensor qkv = rig.tensor(numbers, {20, width}), out = rig.floats(20, q);
    EXPECT_EQ(rig.append(kv, 1, static_cast<uint32_t>(heads), qkv), SPECD_OK) << rig.call_.text;
    EXPECT_EQ(rig.attend(kv, 1, static_cast<uint32_t>(heads), qkv, out), SPECD_OK);
    specd_kv_view view{};
    view.struct_size = sizeof(view);
    const specd_status viewed = rig.api_->view(rig.host_, &rig.call_, kv, 1, &view);
    EXPECT_EQ(viewed, kernels::kv_dtype_bytes(dtype) == 1 ? SPECD_E_UNSUPPORTED : SPECD_OK);
    if (viewed != SPECD_OK) rig.expect_words("use append() and attend()");
    const auto* from = static_cast<const float*>(out.data);
    return std::vector<float>(from, from + 20 * q);
  };
  const std::vector<float> exact = attended(kernels::KvDType::kF32);
  for (const auto dtype : {kernels::KvDType::kF8E4M3, kernels::KvDType::kInt8}) {
    const std::vector<float> rounded = attended(dtype);
    for (size_t i = 0; i < exact.size(); ++i) {
      ASSERT_NEAR(rounded[i], exact[i], dtype == kernels::KvDType::kInt8 ? 0.01 : 0.07);
    }
  }
}

// On the stand-in device, where a graph repeats what propose() asked for.
TEST(KvRecord, a_repeated_round_has_the_same_columns_in_the_same_places) {
  KvRig rig(true);
  specd_kv* kv = rig.opened();
  std::vector<uint32_t> kept = {20, 9, 0};
  rig.forward(kv, {{some_tokens(20, 1), some_tokens(9, 2), {}}});
  ASSERT_EQ(rig.keep(kv, {0, 0, 0}, {KvRig::upto(20), KvRig::upto(9), {}}), SPECD_OK);
  const KvRows first{{{1, 2}, {3, 4}, {}}, {{-1, -1}, {-1, -1}, {}}},
      second{{{5}, {6}, {}}, {{0}, {1}, {}}, {0}};
  // What propose() does, and the columns of its last rows.
  const auto propose = [&] {
    EXPECT_EQ(rig.rows(kv, first), SPECD_OK) << rig.call_.text;
    EXPECT_EQ(rig.rows(kv, second), SPECD_OK) << rig.call_.text;
    const auto drawn = rig.models_->kv().draws(rig.call_);
    EXPECT_TRUE(drawn.ok());
    return drawn.value();
  };
  const auto view_of = [&] {
    specd_kv_view view{};
    view.struct_size = sizeof(view);
    EXPECT_EQ(rig.api_->view(rig.host_, &rig.call_, kv, 0, &view), SPECD_OK) << rig.call_.text;
    return view;
  };
  const auto step_is_over = [&] {
    EXPECT_TRUE(rig.device().synchronize().ok());
    rig.models_->passed();
    rig.models_->step_is_over();
    ++rig.batch_.step_id;
    rig.next_call();
  };
  ModelRecord record;
  const kernels::DrawRow* drawn = nullptr;
  specd_kv_view was{};
  std::vector<uint64_t> layout;
  for (int turn = 0; turn < 2; ++turn) {  // the staging grows in the first one
    step_is_over();
    record = ModelRecord();
    const auto reserved = rig.models_->reserve(record, rig.call_);
    ASSERT_TRUE(reserved.has_value());
    rig.models_->watch(&record, false);
    drawn = propose();
    rig.models_->watch(nullptr, false);
    was = view_of();
    ASSERT_TRUE(record.repeatable);
    ASSERT_EQ(record.calls.size(), 3u);
    step_is_over();
    ASSERT_EQ(rig.keep(kv, kept), SPECD_OK);
  }
  // A round that is not ended yet is an ancestor of the next: it cannot be repeated.
  rig.next_call();
  ASSERT_EQ(rig.rows(kv, first), SPECD_OK);
  EXPECT_FALSE(rig.models_->reserve(record, rig.call_).has_value());
  ASSERT_EQ(rig.keep(kv, kept), SPECD_OK);
  // update() has kept two more rows: other positions in the same columns.
  rig.next_call();
  rig.forward(kv, {{{7, 8}, {9}, {}}});
  ASSERT_EQ(rig.keep(kv, kept, {{0, 1}, {0}, {}}), SPECD_OK);
  rig.next_call();
  const auto reserved = rig.models_->reserve(record, rig.call_);
  ASSERT_TRUE(reserved.has_value());
  rig.models_->repeat(record, rig.call_);
  const specd_kv_view is = view_of();
  EXPECT_EQ(is.position, was.position);
  EXPECT_EQ(is.pages, was.pages);
  EXPECT_EQ(is.tail, was.tail);
  EXPECT_EQ(rig.models_->kv().draws(rig.call_).value(), drawn);
  EXPECT_EQ(rig.lengths(kv), (std::vector<uint32_t>{22, 10, 0}));
  step_is_over();
  ASSERT_EQ(rig.keep(kv, {22, 10, 0}), SPECD_OK);
  // While it is captured, what reads or ends a round is refused.
  rig.models_->watch(&record, true);
  uint32_t length[3];
  EXPECT_EQ(rig.api_->length(rig.host_, &rig.call_, kv, length), SPECD_E_PRECONDITION);
  rig.expect_words("kv.length: not allowed while propose() is captured");
  EXPECT_EQ(rig.keep(kv, {22, 10, 0}), SPECD_E_PRECONDITION);
  rig.models_->watch(nullptr, false);
}

// Two drafters on the device in one step: both are reserved before either is repeated.
TEST(KvRecord, two_calls_that_are_repeated_in_one_step_keep_their_columns_apart) {
  KvRig rig(true);
  specd_kv* kvs[2] = {rig.opened(), rig.opened()};
  const KvRows rows{{{1, 2}, {3}, {}}, {{-1, -1}, {-1}, {}}};
  specd_batch batches[2] = {rig.batch_, rig.batch_};
  const uint64_t ids[2][3] = {{1, 2, 3}, {2, 3, 1}};
  specd_call calls[2];
  const auto enter = [&](size_t i) {  // whose call the rig makes
    calls[i].owner = &rig.owner_;
    calls[i].sampling = rig.sampling_ptr_;
    batches[i].step_id = rig.batch_.step_id;
    batches[i].seq_id = ids[i];
    batches[i].call = &calls[i];
    calls[i].batch = &batches[i];
  };
  struct Columns {
    const int32_t *position, *slot, *pages;
    const kernels::DrawRow* draws;
    bool operator==(const Columns&) const = default;
  };
  const auto columns_of = [&](size_t i) {
    const KvColumns& all = reinterpret_cast<const KvUse*>(kvs[i])->columns;
    return Columns{all.position, all.slot, all.pages, nullptr};
  };
  ModelRecord records[2];
  Columns first[2], second[2];
  for (int turn = 0; turn < 3; ++turn) {  // grown, recorded, repeated
    ASSERT_TRUE(rig.device().synchronize().ok());
    rig.models_->passed();
    rig.models_->step_is_over();
    ++rig.batch_.step_id;
    for (size_t i : {0u, 1u}) {
      calls[i].clear();
      enter(i);
      std::vector<uint32_t> kept(3);
      ASSERT_EQ(rig.api_->length(rig.host_, &calls[i], kvs[i], kept.data()), SPECD_OK);
      ASSERT_EQ(rig.api_->keep(rig.host_, &calls[i], kvs[i], kept.data(), nullptr, nullptr),
                SPECD_OK);
    }
    if (turn < 2) {
      for (size_t i : {0u, 1u}) ASSERT_TRUE(rig.models_->reserve(ModelRecord(), calls[i]));
      for (size_t i : {0u, 1u}) {
        records[i] = ModelRecord();
        std::swap(rig.call_, calls[i]);
        rig.models_->watch(&records[i], false);
        ASSERT_EQ(rig.rows(kvs[i], rows), SPECD_OK) << rig.call_.text;
        first[i] = columns_of(i);
        first[i].draws = rig.models_->kv().draws(rig.call_).value();
        rig.models_->watch(nullptr, false);
        std::swap(rig.call_, calls[i]);
      }
      continue;
    }
    for (size_t i : {0u, 1u}) ASSERT_TRUE(rig.models_->reserve(records[i], calls[i]).has_value());
    for (size_t i : {0u, 1u}) {
      rig.models_->repeat(records[i], calls[i]);
      second[i] = columns_of(i);
      second[i].draws = rig.models_->kv().draws(calls[i]).value();
    }
  }
  for (size_t i : {0u, 1u}) EXPECT_TRUE(second[i] == first[i]) << i;
  EXPECT_NE(first[0].draws, first[1].draws);
  ASSERT_TRUE(rig.device().synchronize().ok());
  rig.models_->passed();
}

// A graph cannot make room: the step is submitted without one, which does.
TEST(KvRecord, columns_that_have_outgrown_their_room_are_not_promised_to_a_graph) {
  KvRig rig(true);
  specd_kv* kv = rig.opened();
  ModelRecord record;
  const KvRows rows{{{1}, {2}, {}}};
  rig.models_->watch(&record, false);
  ASSERT_EQ(rig.rows(kv, rows), SPECD_OK);
  rig.models_->watch(nullptr, false);
  ASSERT_EQ(rig.keep(kv, {0, 0, 0}), SPECD_OK);
  ASSERT_TRUE(rig.device().synchronize().ok());
  rig.models_->passed();
  rig.next_call();
  ASSERT_EQ(rig.rows(kv, rows), SPECD_OK);
  ASSERT_EQ(rig.keep(kv, {0, 0, 0}, {{0}, {0}, {}}), SPECD_OK);
  rig.next_call();
  EXPECT_TRUE(rig.models_->reserve(record, rig.call_).has_value());
  record.calls[0].n_tail = 1 << 20;  // as if its rows had that many ancestors
  EXPECT_FALSE(rig.models_->reserve(record, rig.call_).has_value());
  ASSERT_TRUE(rig.device().synchronize().ok());
  rig.models_->passed();
}

}  // namespace
}  // namespace specd
