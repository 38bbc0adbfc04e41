// A model that several ranks share: the bits of one rank, and which models can be shared.
#include "core/model/split.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/device/thread_ranks.h"
#include "tests/core/family_models.h"
#include "tests/core/model/forward_rig.h"
#include "tests/core/model/safetensors_rig.h"
#include "tests/core/model_of_eight_heads.h"
#include "tests/core/ranks/forwards.h"

namespace specd {
namespace {

// Passes everything on, but swaps the first two parts of what is gathered.
class Swapping final : public Collective {
 public:
  explicit Swapping(Collective& all) : all_(all) {}
  int32_t rank() const override { return all_.rank(); }
  int32_t n_ranks() const override { return all_.n_ranks(); }
  void all_gather(void* data, uint64_t bytes) override {
    all_.all_gather(data, bytes);
    // Of two ranks with four segments each, segments 3 and 4.
    auto* const segments = static_cast<char*>(data);
    const uint64_t size = bytes / 4;
    std::swap_ranges(segments + 3 * size, segments + 4 * size, segments + 4 * size);
  }
  void gather(const void* part, void* parts, uint64_t bytes, int32_t root) override {
    all_.gather(part, parts, bytes, root);
  }
  void broadcast(void* data, uint64_t bytes, int32_t root) override {
    all_.broadcast(data, bytes, root);
  }
  void send(const void* data, uint64_t bytes, int32_t to) override { all_.send(data, bytes, to); }
  void receive(void* data, uint64_t bytes, int32_t from) override {
    all_.receive(data, bytes, from);
  }
  void mark_progress() override { all_.mark_progress(); }
  void command(std::span<const int32_t> words) override { all_.command(words); }
  bool next_command(std::vector<int32_t>& words) override { return all_.next_command(words); }
  void set_timeout(std::chrono::milliseconds timeout) override { all_.set_timeout(timeout); }
  std::chrono::milliseconds timeout() const override { return all_.timeout(); }
  Status status() const override { return all_.status(); }
  void give_up(const Status& why) noexcept override { all_.give_up(why); }
  std::unique_ptr<Collective> group(int32_t, int32_t) override { return nullptr; }

 private:
  Collective& all_;
};

// The same on ranks.
std::vector<Found> on_ranks(const Setting& setting, int32_t n_ranks, int32_t n_stages = 1,
                            bool swapped = false) {
  auto all = make_thread_ranks(n_ranks * n_stages, std::chrono::milliseconds(600'000), {});
  std::vector<Found> found(all.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < found.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto rank = static_cast<int32_t>(i);
      const auto stage = all[i]->group(rank / n_ranks * n_ranks, n_ranks);
      Swapping swapping(*stage);
      found[i] = forwards(setting, {.all = all[i].get(),
                                    .stage = swapped ? &swapping : stage.get(),
                                    .split = split_of(rank, n_ranks, n_stages)});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(all[0]->status().ok()) << all[0]->status().to_string();
  return found;
}

bool all_same_bits(const std::vector<std::vector<float>>& a,
                   const std::vector<std::vector<float>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_bits);
}

struct Count {
  int32_t ranks, stages = 1;
};

void expect_equal_to_one(const Setting& setting, const std::vector<Count>& counts) {
  const Found one = forwards(setting, {});
  ASSERT_EQ(one.logits.size(), 35u + 1 + 1 + 9 + 6);
  for (const auto& [n, n_stages] : counts) {
    const std::string what =
        setting.path + ", " + std::to_string(n_stages) + " stages of " + std::to_string(n);
    const std::vector<Found> all = on_ranks(setting, n, n_stages);
    EXPECT_TRUE(all_same_bits(all[0].logits, one.logits)) << what;
    EXPECT_TRUE(all_same_bits(all[0].taps, one.taps)) << what;
    for (const Found& each : all) {
      EXPECT_EQ(each.parameters, one.parameters) << what;
      EXPECT_LT(each.weight_bytes, one.weight_bytes) << what;
    }
  }
}

class SplitModel : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/specd-split-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(SplitModel, of_every_family_has_the_bits_of_one_rank) {
  for (const std::string& name : families()) {
    expect_equal_to_one({kFamilyModels + name, ""}, {{2}, {4}, {1, 2}, {1, 3}, {2, 2}});
  }
}

TEST_F(SplitModel, has_the_bits_of_one_rank_with_every_instruction_set_and_kind_of_kv) {
  for (const std::string& isa : available_isas()) {
    for (const kernels::KvDType kv : {kernels::KvDType::kF32, kernels::KvDType::kBF16}) {
      expect_equal_to_one({kFamilyModels + "qwen3", isa, kv}, {{4}});
    }
  }
  expect_equal_to_one({std::string(SPECD_TEST_ZOO) + "/pico-target", ""}, {{2}, {2, 3}});
  if (kernels::bf16_available()) {
    expect_equal_to_one({kFamilyModels + "llama31", "", kernels::KvDType::kF32, true}, {{2}, {4}});
  }
}

// Codes: x and the outputs are exchanged, so that no sum depends on the ranks. `ct_mixed` has matrices of
// three kinds.
TEST_F(SplitModel, of_codes_has_the_bits_of_one_rank_over_every_kind_of_kv) {
  for (const std::string name : {"ct_int8_dynamic_qwen3", "ct_int4_actorder_llama", "gptq_llama",
                                 "fp8_block_qwen3", "ct_mixed_llama"}) {
    for (const kernels::KvDType kv :
         {kernels::KvDType::kF32, kernels::KvDType::kF8E4M3, kernels::KvDType::kInt8}) {
      expect_equal_to_one({SPECD_TEST_REFERENCE "/quantized/" + name, "", kv}, {{2}, {4}, {2, 2}});
    }
  }
}

// Matrices in F32, and the same values in three types: within q, k and v, and of those whose k is shared.
TEST_F(SplitModel, of_several_types_has_the_bits_of_one_type) {
  const std::string whole = model_of_eight_heads(folder_ + "/whole", 4);
  shorten_values(whole + "/model.safetensors");
  std::string mixed = folder_ + "/mixed";
  std::filesystem::copy(whole, mixed);
  const std::string first = "model.layers.0.", second = "model.layers.1.";
  EXPECT_EQ(store_as(mixed + "/model.safetensors", {{first + "self_attn.q_proj.weight", "BF16"},
                                                    {first + "self_attn.k_proj.weight", "F16"},
                                                    {first + "self_attn.o_proj.weight", "BF16"},
                                                    {first + "mlp.down_proj.weight", "F16"},
                                                    {second + "self_attn.v_proj.weight", "F16"},
                                                    {second + "mlp.gate_proj.weight", "F16"},
                                                    {second + "mlp.up_proj.weight", "BF16"},
                                                    {"lm_head.weight", "BF16"}}),
            8u);
  const auto expect_same = [&] {
    for (const std::string& isa : available_isas()) {
      EXPECT_TRUE(
          all_same_bits(forwards({mixed, isa}, {}).logits, forwards({whole, isa}, {}).logits))
          << isa;
    }
    expect_equal_to_one({mixed, ""}, {{2}, {4}, {1, 2}, {2, 2}});
  };
  expect_same();
  EXPECT_EQ(store_as(mixed + "/model.safetensors", {{"model.embed_tokens.weight", "F16"}}), 1u);
  expect_same();
  const ModelConfig config = load_model_config(mixed).value();
  const auto device = CpuDevice::create("", 1).value();
  const std::vector<Found> all = on_ranks({mixed, ""}, 2);
  for (int32_t rank = 0; rank < 2; ++rank) {
    const Split split{.rank = rank, .n_ranks = 2};
    EXPECT_EQ(Transformer::plan(*device, mixed, config, 80, 80, split).value().weights,
              all[static_cast<size_t>(rank)].weight_bytes);
  }
}

TEST_F(SplitModel, is_cut_where_the_type_of_the_matrices_allows_it_whose_k_is_shared) {
  const std::string folder = model_of_eight_heads(folder_ + "/model", 4);
  shorten_values(folder + "/model.safetensors");
  const ModelConfig config = load_model_config(folder).value();
  kernels::Ops ops = CpuDevice::create("", 1).value()->ops();
  ops.split_rule = [](kernels::DType type) {  // as on a GPU
    return kernels::SplitRule{.grain = type == kernels::DType::kBF16 ? 16 : 1};
  };
  const auto grain = [&] { return grain_of(folder, config, ops).value(); };
  EXPECT_EQ(grain(), 1);
  for (const std::string name : {"model.embed_tokens", "model.layers.0.mlp.up_proj"}) {
    EXPECT_EQ(store_as(folder + "/model.safetensors", {{name + ".weight", "BF16"}}), 1u);
    EXPECT_EQ(grain(), 1) << name;
  }
  EXPECT_EQ(
      store_as(folder + "/model.safetensors", {{"model.layers.1.mlp.down_proj.weight", "BF16"}}),
      1u);
  EXPECT_EQ(grain(), 16);
  // All k of codes are on each rank.
  const std::string codes = SPECD_TEST_REFERENCE "/quantized/ct_int8_dynamic_llama";
  EXPECT_EQ(grain_of(codes, load_model_config(codes).value(), ops).value(), 1);
}

// One kv head for several ranks, and for all; a vocabulary that eight does not divide.
TEST_F(SplitModel, has_the_bits_of_one_rank_on_eight_ranks_with_few_kv_heads) {
  for (const int32_t n_kv_heads : {8, 4, 1}) {
    const std::string path =
        model_of_eight_heads(folder_ + "/" + std::to_string(n_kv_heads), n_kv_heads);
    expect_equal_to_one({path, ""}, {{2}, {4}, {8}, {8, 2}});
    const uint64_t one = forwards({path, ""}, {}).kv_bytes;
    EXPECT_EQ(on_ranks({path, ""}, 8)[7].kv_bytes * static_cast<uint64_t>(n_kv_heads), one);
  }
}

TEST_F(SplitModel, with_two_segments_swapped_is_seen) {
  const Setting setting{kFamilyModels + "llama31", ""};
  const Found one = forwards(setting, {});
  const std::vector<Found> two = on_ranks(setting, 2, 1, true);
  EXPECT_FALSE(all_same_bits(two[0].logits, one.logits));
}

// A rank that stops ends the forward of the others.
TEST_F(SplitModel, whose_rank_gives_up_ends_the_forward_of_all_with_its_reason) {
  auto ranks = make_thread_ranks(2, std::chrono::milliseconds(600'000), {});
  std::thread other([&] { ranks[1]->give_up(Status(Code::kDataLoss, "a file differs")); });
  (void)forwards(
      {kFamilyModels + "llama2", ""},
      {.all = ranks[0].get(), .stage = ranks[0].get(), .split = {.rank = 0, .n_ranks = 2}});
  other.join();
  EXPECT_EQ(ranks[0]->status().to_string(),
            "UNAVAILABLE: rank 1 gave up: DATA_LOSS: a file differs");
}

TEST_F(SplitModel, that_cannot_be_split_is_refused_in_words) {
  ModelConfig config = load_model_config(std::string(SPECD_TEST_ZOO) + "/pico-target").value();
  EXPECT_TRUE(check_split(config, 1, 1).ok());
  EXPECT_TRUE(check_split(config, 2, 1).ok());
  const auto why = [&](int32_t n, int32_t grain) {
    return check_split(config, n, grain).to_string();
  };
  for (const int32_t n : {-1, 0, 3, 5, 16}) {
    EXPECT_EQ(why(n, 1), "INVALID_ARGUMENT: " + std::to_string(n) +
                             " ranks cannot share this model: expected 1, 2, 4 or 8");
  }
  EXPECT_EQ(why(4, 1),
            "INVALID_ARGUMENT: 4 ranks cannot share this model: its num_attention_heads, 6, is no "
            "multiple of it");
  config.n_heads = 24;
  config.n_kv_heads = 6;
  EXPECT_EQ(
      why(4, 1),
      "INVALID_ARGUMENT: 4 ranks cannot share this model: its num_key_value_heads, 6, neither "
      "divides it nor is a multiple of it");
  config.n_kv_heads = 2;
  config.intermediate_size = 1000;
  EXPECT_TRUE(check_split(config, 4, 1).ok());
  EXPECT_TRUE(check_stages(config, 8).ok());
  EXPECT_EQ(check_stages(config, 9).to_string(),
            "INVALID_ARGUMENT: expected 1 to the model's num_hidden_layers, 8, found 9");
  EXPECT_EQ(why(4, 16),
            "INVALID_ARGUMENT: 4 ranks cannot share this model: its intermediate_size, 1000, is no "
            "multiple of 64 (16 for each rank)");
}

TEST_F(SplitModel, has_every_layer_and_tap_in_one_stage) {
  ModelConfig config;
  for (const int32_t n_layers : {1, 2, 5, 80}) {
    config.n_layers = n_layers;
    for (int32_t n_stages = 1; n_stages <= n_layers; ++n_stages) {
      int32_t layers = 0;
      for (int32_t stage = 0; stage < n_stages; ++stage) {
        const Split split{.stage = stage, .n_stages = n_stages};
        EXPECT_EQ(split_of(split.world_rank(), 1, n_stages), split);
        const Range own = layers_of(config, split);
        EXPECT_EQ(own.begin, layers);
        EXPECT_GT(own.n, 0);
        layers += own.n;
        for (int32_t i = own.begin; i < layers; ++i) {
          EXPECT_EQ(stage_of_tap(config, n_stages, static_cast<uint32_t>(i)), stage);
        }
      }
      EXPECT_EQ(layers, n_layers);
      EXPECT_EQ(stage_of_tap(config, n_stages, static_cast<uint32_t>(n_layers) + 1), n_stages - 1);
    }
  }
}

// Every head, column and token is on some rank, in order; kv heads are where their q heads are.
TEST_F(SplitModel, has_all_parts_once) {
  ModelConfig config;
  config.intermediate_size = 64;
  for (const int32_t n_ranks : {1, 2, 4, 8}) {
    for (const int32_t n_kv_heads : {1, 2, 4, 8, 16}) {
      for (const int32_t vocab_size : {1, 7, 101, 4096}) {
        config.n_heads = 16;
        config.n_kv_heads = n_kv_heads;
        config.vocab_size = vocab_size;
        ASSERT_TRUE(check_split(config, n_ranks, 1).ok());
        int32_t heads = 0, columns = 0, tokens = 0;
        for (int32_t rank = 0; rank < n_ranks; ++rank) {
          const Split split{rank, n_ranks};
          EXPECT_EQ(heads_of(config, split).begin, heads);
          EXPECT_EQ(columns_of(config, split).begin, columns);
          EXPECT_TRUE(vocab_of(config, split).n == 0 || vocab_of(config, split).begin == tokens);
          EXPECT_LE(vocab_of(config, split).n, vocab_part(config, n_ranks));
          heads += heads_of(config, split).n;
          columns += columns_of(config, split).n;
          tokens += vocab_of(config, split).n;
          const Range kv = kv_heads_of(config, split), q = heads_of(config, split);
          const int32_t per_kv = 16 / n_kv_heads, local = q.n / kv.n;
          for (int32_t i = 0; i < q.n; ++i) {
            EXPECT_EQ(kv.begin + i / local, (q.begin + i) / per_kv);
          }
        }
        EXPECT_EQ(heads, 16);
        EXPECT_EQ(columns, 64);
        EXPECT_EQ(tokens, vocab_size);
      }
    }
  }
}

}  // namespace
}  // namespace specd
