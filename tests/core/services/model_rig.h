// model/1 over the draft model of the zoo, called as a plugin calls it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/plugin/instance/tensor.h"
#include "core/services/directory.h"
#include "core/services/model.h"
#include "tests/core/model/forward_rig.h"

namespace specd {

constexpr int32_t kPages = 24;
constexpr int32_t kModelVocab = 4096;
using Logits = std::vector<std::vector<float>>;

// The draft model of the zoo inside the pages of the target, and the service table over it.
class ModelServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    device_ = CpuDevice::create("", 2).value();
    const std::string zoo = SPECD_TEST_ZOO;
    config_ = load_model_config(zoo + "/pico-target").value();
    tokenizer_ = Tokenizer::load(zoo + "/pico-target/tokenizer.json").value();
    kv_ = std::make_unique<KvStore>(
        KvStore::create(*device_, config_, kernels::KvDType::kF32, kPages).value());
    pool_ = std::make_unique<PagePool>(kPages);
    services_ = std::make_unique<Services>(*device_, *device_, kModelVocab);
    models_ = std::make_unique<ModelService>(*device_, *pool_);
    // Small limits, so that one call takes several forwards.
    for (const char* name : {"draft", "second"}) {
      auto model = check_draft_model(name, zoo + "/pico-draft", kernels::KvDType::kF32,
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
      sampling_[s].typical_p = 1;
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
    for (const auto& model : models_->models()) EXPECT_EQ(model->kv.pages_held, 0);
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
    std::vector<float> logits(token.size() * kModelVocab, -7);
    const specd_tensor token_t = host_i32(token.data(), {n});
    const specd_tensor drawn_t = host_i32(r.token.data(), {n});
    const specd_tensor logprob_t = host_tensor(r.logprob.data(), SPECD_DT_FLOAT, 32, {n});
    const specd_tensor top_t = host_i32(r.top.data(), {n, kTop});
    const specd_tensor top_logprob_t =
        host_tensor(r.top_logprob.data(), SPECD_DT_FLOAT, 32, {n, kTop});
    const specd_tensor logits_t = host_tensor(logits.data(), SPECD_DT_FLOAT, 32, {n, kModelVocab});
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
      r.logits.emplace_back(logits.begin() + i * kModelVocab,
                            logits.begin() + (i + 1) * kModelVocab);
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

}  // namespace specd
