// Sessions of draft models against forwards made by hand, and every wrong argument a plugin can
// give.
#include "core/exec/model_service.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "core/exec/services.h"
#include "core/plugin/instance/tensor.h"
#include "tests/core/model/forward_rig.h"

namespace specd {
namespace {

constexpr int32_t kPages = 24;
constexpr int32_t kVocab = 4096;
using Logits = std::vector<std::vector<float>>;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The draft model of the zoo inside the pages of the target, and the service table over it.
class ModelServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    device_ = CpuDevice::create("", 2).value();
    const std::string zoo = SPECD_TEST_ZOO;
    config_ = load_model_config(zoo + "/pico-target").value();
    tokenizer_ = Tokenizer::load(zoo + "/pico-target/tokenizer.json").value();
    kv_ = std::make_unique<KvStore>(
        KvStore::create(*device_, config_, kernels::DType::kF32, kPages).value());
    pool_ = std::make_unique<PagePool>(kPages);
    services_ = std::make_unique<Services>(*device_, *device_, kVocab);
    models_ = std::make_unique<ModelService>(*device_, *pool_);
    // Small limits, so that one call takes several forwards.
    for (const char* name : {"draft", "second"}) {
      auto model = check_draft_model(name, zoo + "/pico-draft", kernels::DType::kF32,
                                     {config_, *tokenizer_});
      load_draft_model(*model, *device_, *kv_, 7, 3, {});
      ASSERT_TRUE(model->status.ok()) << model->status.to_string();
      models_->add(std::move(model));
    }
    services_->set_models(models_.get());
    host_ = make_host(services_.get());
    table_ = static_cast<const specd_models*>(host_->get_service(host_, SPECD_SERVICE_MODEL));
    ASSERT_NE(table_, nullptr);
    owner_.name = owner_.label = "inst";
    ASSERT_EQ(table_->open(host_, &owner_, "draft", &model_), SPECD_OK);
    for (size_t s = 0; s < 3; ++s) {
      sampling_[s].struct_size = sizeof(specd_sampling);
      sampling_[s].seed = 100 + s;
      sampling_[s].temperature = 0.8f;
      sampling_[s].top_p = 0.95f;
      sampling_[s].top_k = 50;
      sampling_ptr_[s] = &sampling_[s];
    }
    sampling_[1].flags = SPECD_SAMPLE_GREEDY;
    sampling_[1].temperature = 0;
    batch_.struct_size = sizeof(batch_);
    batch_.n_seqs = 3;
    batch_.step_id = 1;
    batch_.seq_id = ids_;
    batch_.call = &call_;
    call_.batch = &batch_;
    call_.sampling = sampling_ptr_;
    call_.owner = &owner_;
  }
  void TearDown() override {
    for (const uint64_t id : {1, 2, 3, 4, 5}) models_->end(id);
    EXPECT_EQ(pool_->n_free(), kPages);
    for (const auto& model : models_->models()) EXPECT_EQ(model->pages_held, 0);
    services_.reset();
  }

  struct Rows {
    std::vector<std::vector<int32_t>> token, parent;  // by sequence; parent empty = a chain
  };
  struct Result {
    specd_status status;
    std::vector<specd_status> of;
    Logits logits;  // of every row
    std::vector<int32_t> token, top;
    std::vector<float> logprob, top_logprob;
  };
  static constexpr int64_t kTop = 5;

  Result forward(const Rows& rows, specd_model* model = nullptr) {
    std::vector<uint32_t> offsets{0}, outputs;
    std::vector<int32_t> token, parent;
    for (size_t s = 0; s < rows.token.size(); ++s) {
      token.insert(token.end(), rows.token[s].begin(), rows.token[s].end());
      offsets.push_back(static_cast<uint32_t>(token.size()));
      if (!rows.parent.empty()) {
        parent.insert(parent.end(), rows.parent[s].begin(), rows.parent[s].end());
      }
    }
    outputs.resize(token.size());
    std::iota(outputs.begin(), outputs.end(), 0);
    const auto n = static_cast<int64_t>(token.size());
    Result r;
    r.of.assign(batch_.n_seqs, -1);
    r.token.assign(token.size(), -7);
    r.logprob.assign(token.size(), 7);
    r.top.assign(token.size() * kTop, -7);
    r.top_logprob.assign(token.size() * kTop, 7);
    std::vector<float> logits(token.size() * kVocab, -7);
    const specd_tensor token_t = host_i32(token.data(), {n});
    const specd_tensor drawn_t = host_i32(r.token.data(), {n});
    const specd_tensor logprob_t = host_tensor(r.logprob.data(), SPECD_DT_FLOAT, 32, {n});
    const specd_tensor top_t = host_i32(r.top.data(), {n, kTop});
    const specd_tensor top_logprob_t =
        host_tensor(r.top_logprob.data(), SPECD_DT_FLOAT, 32, {n, kTop});
    const specd_tensor logits_t = host_tensor(logits.data(), SPECD_DT_FLOAT, 32, {n, kVocab});
    specd_forward_args args{};
    args.struct_size = sizeof(args);
    args.n_rows = args.n_outputs = static_cast<uint32_t>(n);
    args.row_offsets = offsets.data();
    args.parent = rows.parent.empty() ? nullptr : parent.data();
    args.output_rows = outputs.data();
    args.token = &token_t;
    args.out_token = &drawn_t;
    args.out_logprob = &logprob_t;
    args.out_topk_token = &top_t;
    args.out_topk_logprob = &top_logprob_t;
    args.out_logits = &logits_t;
    args.seq_status = r.of.data();
    r.status = table_->forward(host_, &call_, model == nullptr ? model_ : model, &args);
    for (int64_t i = 0; i < n; ++i) {
      r.logits.emplace_back(logits.begin() + i * kVocab, logits.begin() + (i + 1) * kVocab);
    }
    return r;
  }
  specd_status keep(const std::vector<uint32_t>& kept,
                    const std::vector<std::vector<uint32_t>>& paths) {
    std::vector<uint32_t> offsets{0}, rows;
    for (const std::vector<uint32_t>& path : paths) {
      rows.insert(rows.end(), path.begin(), path.end());
      offsets.push_back(static_cast<uint32_t>(rows.size()));
    }
    return table_->keep(host_, &call_, model_, kept.data(),
                        paths.empty() ? nullptr : offsets.data(), rows.data());
  }
  std::vector<uint32_t> lengths() {
    std::vector<uint32_t> out(batch_.n_seqs, 99);
    EXPECT_EQ(table_->length(host_, &call_, model_, out.data()), SPECD_OK);
    return out;
  }
  static std::vector<uint32_t> upto(uint32_t n) {
    std::vector<uint32_t> all(n);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  // Feeds tokens of sequence 0 and keeps them.
  void feed(const std::vector<int32_t>& tokens) {
    const std::vector<uint32_t> have = lengths();
    ASSERT_EQ(forward({{tokens, {}, {}}, {}}).of[0], SPECD_OK) << call_.text;
    ASSERT_EQ(keep(have, {upto(static_cast<uint32_t>(tokens.size())), {}, {}}), SPECD_OK);
  }
  // The same model in a cache of its own, decoding plainly.
  static Logits plain(const std::vector<int32_t>& tokens) {
    ForwardRig rig("pico-draft", "", 1, false);
    rig.add_span(tokens, 0);
    return rig.run();
  }
  void expect_words(const std::string& words) {
    std::string all = call_.text;
    for (const auto& [s, text] : call_.sequence_text) all += text;
    EXPECT_NE(all.find(words), std::string::npos) << words << " not in: " << all;
    call_.clear();
  }

  std::unique_ptr<CpuDevice> device_;
  ModelConfig config_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<KvStore> kv_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<ModelService> models_;
  std::unique_ptr<Services> services_;
  const specd_host* host_ = nullptr;
  const specd_models* table_ = nullptr;
  specd_owner owner_;
  specd_model* model_ = nullptr;
  uint64_t ids_[3] = {1, 2, 3};
  specd_sampling sampling_[3] = {};
  const specd_sampling* sampling_ptr_[3] = {};
  specd_batch batch_{};
  specd_call call_;
};

TEST_F(ModelServiceTest, rows_have_the_bits_of_the_model_alone_in_any_portion) {
  EXPECT_EQ(models_->models()[0]->kv->parts_per_page(), 8) << "a draft page is an eighth";
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
  EXPECT_EQ(models_->models()[0]->pages_held, 3);
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
    device_->ops().draw(device_->stream(), {r.logits[i].data(), &row, &expected, 1, kVocab});
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
  draft.target_vocab_size = kVocab;
  draft.config.max_positions = 8;
  others_go_on({{{7, 8, 9}, {5}, {}}, {}}, SPECD_E_UNSUPPORTED,
               "position 8 is beyond the context of draft model 'draft', 8");
  draft.config.max_positions = 2048;
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
          "out_logprob is of out_token");
  refused([&](Args& a) { a.out_topk_logprob = &logits_t; }, "out_topk_logprob is of");
  refused([&](Args& a) { a.out_topk_token = &top_t, a.out_topk_logprob = &logits_t; },
          "out_topk_logprob has 16 columns, out_topk_token 3");
  refused([&](Args& a) { a.out_token = &token_t; }, "out_token has 3 rows, expected n_outputs 2");
  refused([&](Args& a) { a.out_token = &logprob_t; }, "out_token has dtype 2/32");
  top_t.shape[1] = 5000;
  refused([&](Args& a) { a.out_topk_token = &top_t; }, "out_topk_token reaches beyond");
  top_t.shape[1] = 0;
  refused([&](Args& a) { a.out_topk_token = &top_t; }, "out_topk_token has 0 columns");
  outputs[1] = 3;
  refused([](Args&) {}, "output_rows[1] is 3, expected increasing numbers of 0..2");
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
  kept_refused({4, 0, 0}, {{0}, {}, {}}, "sequence 0: kept is 4, expected with rows exactly 5");
  kept_refused({5, 0, 0}, {{1}, {}, {}},
               "sequence 0: row 1 of the round, which has 3, is no child");
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
    r.logits.assign(static_cast<size_t>(3 * kNodes * kVocab), -7);
    std::vector<uint32_t> places;
    for (const uint32_t s : wanted) places.push_back(s * kNodes);
    const specd_tensor token_t = host_i32(proposal_.data(), {3 * kNodes});
    const specd_tensor logits_t =
        host_tensor(r.logits.data(), SPECD_DT_FLOAT, 32, {3 * kNodes, kVocab});
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
    const float* found = &f.logits[size_t{s} * kNodes * kVocab];
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
  models_->models()[0]->config.max_positions = 20;
  std::vector<int32_t> a = some_tokens(20, 1);
  EXPECT_EQ(follow({a, b, c}, 12).of,
            (std::vector<specd_status>{SPECD_E_DEADLINE, SPECD_E_DEADLINE, SPECD_E_DEADLINE}));
  EXPECT_EQ(lengths(), (std::vector<uint32_t>{12, 0, 0}));
  EXPECT_EQ(models_->models()[0]->pages_held, 1);
  a.push_back(1);  // beyond the context
  for (int step = 0; step < 2; ++step) {
    const Followed f = follow({a, b, c}, 12);
    ASSERT_EQ(f.status, SPECD_OK) << call_.text;
    EXPECT_EQ(f.of, (std::vector<specd_status>{SPECD_E_UNSUPPORTED, SPECD_OK, SPECD_OK}));
    EXPECT_EQ(lengths(), (std::vector<uint32_t>{0, 3, 9}));
    EXPECT_EQ(proposal_[0], -1);
    EXPECT_EQ(proposal_[2 * kNodes], best(plain(c).back()));
    EXPECT_EQ(models_->models()[0]->pages_held, 2);
  }
  expect_words("draft model 'draft' cannot follow the text: it takes");
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
  expect_words("model.follow: only inside propose()");
  call_.committed = &committed_;
  const uint32_t offsets[4] = {};
  args.row_offsets = offsets;
  EXPECT_EQ(table_->follow(host_, &call_, model_, &args), SPECD_E_INVALID);
  expect_words("model.follow: row_offsets, parent, token and token_at are not null");
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
  expect_words("model.follow: output_rows[1] is 3, expected increasing numbers of 0..2");
  call_.committed = nullptr;
}

TEST_F(ModelServiceTest, the_first_token_that_differs_is_named) {
  const ModelConfig draft = load_model_config(std::string(SPECD_TEST_ZOO) + "/pico-draft").value();
  EXPECT_TRUE(check_same_tokens({config_, *tokenizer_}, draft, *tokenizer_).ok());
  Json json =
      parse_json_file(std::string(SPECD_TEST_ZOO) + "/pico-draft/tokenizer.json", 1 << 24).value();
  // Two tokens change places: the merges still find theirs.
  Json& vocab = json["model"]["vocab"];
  std::string first, second;
  for (const auto& [text, id] : vocab.items()) {
    if (id == 300) first = text;
    if (id == 3000) second = text;
  }
  ASSERT_FALSE(first.empty() || second.empty());
  vocab[first] = 3000;
  vocab[second] = 300;
  const auto other = Tokenizer::from_text(json.dump(), "other");
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  const Status status = check_same_tokens({config_, *tokenizer_}, draft, *other.value());
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_NE(status.message().find("its tokens are not the target's: id 300 is '"),
            std::string::npos)
      << status.message();
  ModelConfig moved = draft;
  moved.bos_token = -1;
  EXPECT_NE(check_same_tokens({config_, *tokenizer_}, moved, *tokenizer_)
                .message()
                .find("the BOS id is 0 in the target, none here"),
            std::string::npos);
  // As a model for chats beside its base: the target's own end the text.
  moved = draft;
  moved.eos_tokens = {2};
  EXPECT_TRUE(check_same_tokens({config_, *tokenizer_}, moved, *tokenizer_).ok());
}

TEST_F(ModelServiceTest, a_model_whose_page_is_larger_is_refused) {
  const KvStore small = KvStore::create(*device_, config_, kernels::DType::kBF16, 2).value();
  const auto inside = KvStore::inside(small, config_, kernels::DType::kF32);
  ASSERT_FALSE(inside.ok());
  EXPECT_EQ(inside.status().code(), Code::kUnsupported);
  EXPECT_NE(inside.status().message().find("a page of the target's cache has 65536"),
            std::string::npos)
      << inside.status().message();
}

}  // namespace
}  // namespace specd
