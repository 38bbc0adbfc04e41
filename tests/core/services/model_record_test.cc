// What a repeated propose() asks of draft models, on the fake CUDA device.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/device/cuda_device.h"
#include "core/services/directory.h"
#include "core/services/model.h"
#include "core/plugin/instance/tensor.h"
#include "tests/core/model/forward_rig.h"

namespace specd {
namespace {

class ModelRecordTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("SPECD_CUDA_LIBRARY", SPECD_TEST_FAKE_CUDA, 1);
    unsetenv("SPECD_FAKE_CUDA");
    device_ = open_cuda_device(0, {}).value();
  }
  std::unique_ptr<Device> device_;
};

TEST_F(ModelRecordTest, what_is_reserved_for_one_sequence_is_not_reclaimed_for_another) {
  const std::string path = std::string(SPECD_TEST_ZOO) + "/pico-draft";
  const ModelConfig config = load_model_config(path).value();
  const auto tokenizer = Tokenizer::load(path + "/tokenizer.json").value();
  const KvStore kv = KvStore::create(*device_, config, kernels::KvDType::kF32, 3).value();
  PagePool pool(3);
  const auto cpu = CpuDevice::create("", 1).value();
  Services services(*cpu, *device_, config.vocab_size);
  ModelService models(*device_, pool);
  auto draft = check_draft_model("draft", path, kernels::KvDType::kF32, {config, *tokenizer});
  load_draft_model(*draft, *device_, kv, 64, 8, {});
  ASSERT_TRUE(draft->status.ok()) << draft->status.to_string();
  models.add(std::move(draft));
  services.set_models(&models);

  specd_owner owner;
  specd_model* model = nullptr;
  ASSERT_EQ(models.open(&owner, "draft", &model), SPECD_OK);
  specd_sampling sampling{};
  sampling.struct_size = sizeof(sampling);
  sampling.flags = SPECD_SAMPLE_GREEDY;
  const specd_sampling* const samplings[2] = {&sampling, &sampling};
  const uint64_t ids[2] = {1, 2};
  specd_batch batch{};
  batch.struct_size = sizeof(batch);
  batch.n_seqs = 2;
  batch.seq_id = ids;
  specd_call call;
  call.owner = &owner;
  call.batch = &batch;
  call.sampling = samplings;

  const std::vector<int32_t> tokens = some_tokens(40, 1);
  std::vector<std::span<const int32_t>> texts;
  call.committed = &texts;
  const auto set_texts = [&](size_t a, size_t b) {
    texts = {std::span(tokens).first(a), std::span(tokens).first(b)};
    ++batch.step_id;
  };
  const Buffer out = device_->allocate(2 * sizeof(int32_t), "tokens").value();
  specd_tensor out_t = host_i32(out.as<int32_t>(), {2});
  out_t.device_type = SPECD_DEV_CUDA;
  const uint32_t wanted[2] = {0, 1};
  specd_status of[2];
  specd_forward_args args{};
  args.struct_size = sizeof(args);
  args.n_rows = 64;
  args.n_outputs = 2;
  args.output_rows = wanted;
  args.out_token = &out_t;
  args.seq_status = of;
  ModelRecord steady;
  for (const auto& [a, b] : {std::pair<size_t, size_t>(10, 15), {11, 16}}) {
    set_texts(a, b);
    steady = ModelRecord();
    models.watch(&steady, false);
    ASSERT_EQ(models.follow(&call, model, &args), SPECD_OK) << call.text;
    models.watch(nullptr, false);
    ASSERT_TRUE(device_->synchronize().ok());
    models.passed();
  }
  // The second sequence crosses into a page, and there is none but the first one's.
  std::vector<int32_t> others;
  ASSERT_TRUE(pool.take(pool.n_free(), others));
  set_texts(12, 17);
  EXPECT_FALSE(models.reserve(steady, call).has_value());
  uint32_t kept[2] = {};
  ASSERT_EQ(models.length(&call, model, kept), SPECD_OK);
  EXPECT_EQ(kept[0], 11u);
  // With a page it can be had, and asks for what it asked for.
  pool.release(others);
  set_texts(12, 17);
  ASSERT_TRUE(models.reserve(steady, call).has_value());
  models.repeat(steady, call);
  ASSERT_EQ(models.length(&call, model, kept), SPECD_OK);
  EXPECT_EQ(kept[0], 12u);
  EXPECT_EQ(kept[1], 17u);
  models.passed();
  models.close(&owner, model);
  models.end(1);
  EXPECT_EQ(pool.n_free(), 3);
}

}  // namespace
}  // namespace specd
