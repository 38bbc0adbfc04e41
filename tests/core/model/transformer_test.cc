#include "core/model/transformer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "core/base/json.h"
#include "core/model/safetensors.h"
#include "tests/core/model/forward_rig.h"
#include "tests/cpu_clock.h"

namespace specd {
namespace {

using Logits = std::vector<std::vector<float>>;

Json reference() {
  return parse_json_file(std::string(SPECD_TEST_ZOO) + "/reference/reference.json", 1 << 24)
      .value();
}

// The recorded outputs of the independent numpy implementation.
TEST(Transformer, logits_and_greedy_text_equal_the_reference) {
  const Json recorded = reference();
  ASSERT_EQ(recorded.at("prompts").size(), 8u);
  for (const char* name : {"pico-target", "pico-draft"}) {
    for (const Json& prompt : recorded.at("prompts")) {
      const Json& expected = prompt.at("models").at(name);
      ForwardRig rig(name, "", 2, false);
      const auto ids = prompt.at("prompt_ids").get<std::vector<int32_t>>();
      rig.add_span(ids, 0);
      std::vector<float> row = rig.run().back();
      for (const Json& entry : expected.at("top10")) {
        ASSERT_NEAR(row[entry.at(0).get<size_t>()], entry.at(1).get<float>(), 2e-3) << name;
      }
      const auto continuation = expected.at("greedy_ids").get<std::vector<int32_t>>();
      ASSERT_EQ(continuation.size(), 64u);
      const auto gaps = expected.at("gaps").get<std::vector<float>>();
      for (size_t step = 0; step < continuation.size(); ++step) {
        ASSERT_EQ(argmax(row), continuation[step])
            << name << ", step " << step << ", gap " << gaps[step];
        rig.add_span({continuation[step]}, static_cast<int32_t>(ids.size() + step));
        row = rig.run().back();
      }
    }
  }
}

// Rows one at a time: what plain decoding computes.
Logits one_row_forwards(const std::vector<int32_t>& tokens) {
  ForwardRig rig("pico-target", "scalar", 1, false);
  Logits logits;
  for (size_t i = 0; i < tokens.size(); ++i) {
    rig.add_span({tokens[i]}, static_cast<int32_t>(i));
    logits.push_back(rig.run().front());
  }
  return logits;
}

class Rows : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    tokens_ = new std::vector<int32_t>(some_tokens(257, 11));
    plain_ = new Logits(one_row_forwards(*tokens_));
  }
  static void TearDownTestSuite() {
    delete tokens_;
    delete plain_;
  }
  static std::vector<int32_t>* tokens_;
  static Logits* plain_;
};
std::vector<int32_t>* Rows::tokens_ = nullptr;
Logits* Rows::plain_ = nullptr;

TEST_F(Rows, bits_do_not_depend_on_how_many_rows_stand_together) {
  for (const int32_t n : {1, 2, 3, 5, 8, 16, 33, 64, 65, 127, 257}) {
    ForwardRig rig("pico-target", "", 2, false);
    for (int32_t begin = 0; begin < 257; begin += n) {
      const int32_t end = std::min(begin + n, 257);
      rig.add_span({tokens_->begin() + begin, tokens_->begin() + end}, begin);
      const Logits logits = rig.run();
      for (int32_t i = begin; i < end; ++i) {
        ASSERT_TRUE(
            same_bits(logits[static_cast<size_t>(i - begin)], (*plain_)[static_cast<size_t>(i)]))
            << n << " rows, row " << i;
      }
    }
  }
}

TEST_F(Rows, bits_do_not_depend_on_threads_instruction_set_or_page_order) {
  for (const std::string& isa : available_isas()) {
    for (const int32_t threads : {1, 2, 3, 4}) {
      for (const bool shuffle : {false, true}) {
        if (isa == "scalar" && threads != 2) continue;  // slow; threads are covered by the others
        ForwardRig rig("pico-target", isa, threads, shuffle);
        rig.add_span({tokens_->begin(), tokens_->begin() + 130}, 0);
        const Logits logits = rig.run();
        for (size_t i = 0; i < logits.size(); ++i) {
          ASSERT_TRUE(same_bits(logits[i], (*plain_)[i]))
              << isa << ", " << threads << " threads, row " << i;
        }
      }
    }
  }
}

// One branch of the tree is the real text. Its rows must have the bits of the plain span, wherever
// the nodes lie and whatever the decoys are.
TEST_F(Rows, bits_of_a_tree_row_are_those_of_its_path) {
  constexpr int32_t kRoot = 29;  // tails cross a block edge of 16 positions
  using kernels::KvDType;
  for (const auto& [shuffle, dtype] : {std::pair{false, KvDType::kF32},
                                       {true, KvDType::kF32},
                                       {true, KvDType::kF8E4M3},
                                       {true, KvDType::kInt8}}) {
    Logits plain = *plain_;
    if (dtype != KvDType::kF32) {
      ForwardRig alone("pico-target", "", 2, false, dtype);
      alone.add_span(*tokens_, 0);
      plain = alone.run();
    }
    ForwardRig rig("pico-target", "", 2, shuffle, dtype);
    rig.add_span({tokens_->begin(), tokens_->begin() + kRoot}, 0);
    rig.run();
    // True nodes are every third, decoys between.
    rig.add_span({(*tokens_)[kRoot]}, kRoot);
    std::vector<int32_t> path;
    std::vector<size_t> true_rows{0};
    for (int32_t node = 0; node < 24; ++node) {
      const int32_t depth = static_cast<int32_t>(path.size()) + 1;
      std::vector<int32_t> slots = path;
      slots.push_back(kRoot + 1 + node);
      const bool is_true = node % 3 == 2;
      rig.add(is_true ? (*tokens_)[static_cast<size_t>(kRoot + depth)] : 17 + node, kRoot + depth,
              kRoot + 1 + node, kRoot + 1, slots);
      if (is_true) {
        path = slots;
        true_rows.push_back(static_cast<size_t>(node) + 1);
      }
    }
    const Logits logits = rig.run();
    for (size_t i = 0; i < true_rows.size(); ++i) {
      ASSERT_TRUE(same_bits(logits[true_rows[i]], plain[kRoot + i])) << "depth " << i;
    }
    // Compaction, then plain decoding goes on with the same bits.
    std::vector<int32_t> nodes;
    KvMoves moves;
    for (const int32_t slot : path) nodes.push_back(slot - kRoot - 1);
    plan_compaction(rig.table, kRoot, nodes, moves);
    ASSERT_FALSE(moves.from.empty());
    for (const kernels::KvLayer& layer : rig.kv->layers()) {
      rig.device->ops().kv_move(rig.device->stream(),
                                {.kv = layer,
                                 .from = moves.from.data(),
                                 .to = moves.to.data(),
                                 .n = static_cast<int32_t>(moves.from.size())});
    }
    const int32_t next = kRoot + 1 + static_cast<int32_t>(nodes.size());
    rig.add_span({tokens_->begin() + next, tokens_->begin() + next + 3}, next);
    const Logits after = rig.run();
    for (size_t i = 0; i < after.size(); ++i) {
      ASSERT_TRUE(same_bits(after[i], plain[static_cast<size_t>(next) + i]));
    }
  }
}

TEST(Transformer, rows_are_the_same_in_every_cache_type) {
  const std::vector<int32_t> tokens = some_tokens(70, 12);
  for (const kernels::KvDType dtype :
       {kernels::KvDType::kF32, kernels::KvDType::kF16, kernels::KvDType::kBF16,
        kernels::KvDType::kF8E4M3, kernels::KvDType::kInt8}) {
    ForwardRig together("pico-draft", "", 2, true, dtype);
    together.add_span(tokens, 0);
    const Logits all = together.run();
    ForwardRig single("pico-draft", "", 1, false, dtype);
    for (size_t i = 0; i < tokens.size(); ++i) {
      single.add_span({tokens[i]}, static_cast<int32_t>(i));
      ASSERT_TRUE(same_bits(single.run().front(), all[i])) << "row " << i;
    }
  }
}

TEST(Transformer, rows_over_a_cache_of_8_bits_are_the_same_for_any_batch_and_instruction_set) {
  const std::vector<int32_t> tokens = some_tokens(96, 13);
  for (const kernels::KvDType dtype : {kernels::KvDType::kF8E4M3, kernels::KvDType::kInt8}) {
    ForwardRig together("pico-draft", "scalar", 2, false, dtype);
    together.add_span(tokens, 0);
    const Logits all = together.run();
    for (const std::string& isa : available_isas()) {
      for (const size_t n : {2, 3, 5, 8, 16, 33, 64}) {
        ForwardRig rig("pico-draft", isa, 1 + static_cast<int32_t>(n % 3), true, dtype);
        for (size_t begin = 0; begin < tokens.size(); begin += n) {
          const size_t end = std::min(begin + n, tokens.size());
          rig.add_span({tokens.begin() + static_cast<ptrdiff_t>(begin),
                        tokens.begin() + static_cast<ptrdiff_t>(end)},
                       static_cast<int32_t>(begin));
          const Logits part = rig.run();
          for (size_t i = begin; i < end; ++i) {
            ASSERT_TRUE(same_bits(part[i - begin], all[i])) << isa << ", " << n << " rows, " << i;
          }
        }
      }
    }
  }
}

// Taps are where plugin_api says: 0 is the embedding, n_layers + 1 times the head is the logits.
TEST(Transformer, taps_sit_at_their_capture_points) {
  ForwardRig rig("pico-draft", "", 1, false);
  const auto n_layers = static_cast<uint32_t>(rig.config.n_layers);
  for (const uint32_t point : {0u, n_layers, n_layers + 1}) {
    rig.model->add_tap(rig.model->make_tap(point).value());
  }
  const std::vector<int32_t> tokens{5, 900, 31};
  rig.add_span(tokens, 0);
  rig.rows.tap_rows = {0, 2};
  const Logits logits = rig.run();
  const SafetensorsFile file =
      SafetensorsFile::open(std::string(SPECD_TEST_ZOO) + "/pico-draft/model.safetensors").value();
  const auto bf16 = [&](const char* name, size_t i) {
    uint16_t half = 0;
    std::memcpy(&half, static_cast<const char*>(file.find(name)->data) + 2 * i, 2);
    const uint32_t bits = uint32_t{half} << 16;
    float value = 0;
    std::memcpy(&value, &bits, 4);
    return value;
  };
  const auto width = static_cast<size_t>(rig.config.hidden_size);
  const size_t tapped[2] = {0, 2};
  for (size_t r = 0; r < 2; ++r) {
    const float* h0 = rig.model->tap(0) + r * width;
    const float* last = rig.model->tap(1) + r * width;
    const float* normed = rig.model->tap(2) + r * width;
    double squares = 0;
    for (size_t i = 0; i < width; ++i) {
      ASSERT_EQ(h0[i], bf16("model.embed_tokens.weight",
                            static_cast<size_t>(tokens[tapped[r]]) * width + i));
      squares += double{last[i]} * last[i];
    }
    const double scale =
        1 / std::sqrt(squares / static_cast<double>(width) + rig.config.rms_norm_eps);
    for (size_t i = 0; i < width; ++i) {
      ASSERT_NEAR(normed[i], last[i] * scale * bf16("model.norm.weight", i), 1e-4);
    }
    for (const size_t token : {size_t{0}, size_t{77}, size_t{4095}}) {
      double sum = 0;
      for (size_t i = 0; i < width; ++i) {
        sum += double{normed[i]} * bf16("model.embed_tokens.weight", token * width + i);
      }
      ASSERT_NEAR(logits[tapped[r]][token], sum, 1e-3);
    }
  }
}

// G13. The file is mapped, which the kernel drops when it likes; what is allocated are the packed
// weights and little else.
TEST(Transformer, loading_allocates_less_than_half_more_than_the_file) {
#if SPECD_HAS_SANITIZER
  GTEST_SKIP() << "a sanitizer's own memory counts too";
#endif
  const std::string path = std::string(SPECD_TEST_ZOO) + "/pico-target";
  const auto file_kib =
      static_cast<long>(std::filesystem::file_size(path + "/model.safetensors") / 1024);
  const long allocated = allocated_by_loading(path);
  EXPECT_GT(allocated, file_kib / 2) << "is it measured at all?";
  EXPECT_LT(allocated, file_kib * 3 / 2);
}

TEST(Transformer, a_wrong_shape_is_refused_with_names_and_sizes) {
  const auto device = CpuDevice::create("", 1).value();
  const std::string path = std::string(SPECD_TEST_ZOO) + "/pico-draft";
  ModelConfig config = load_model_config(path).value();
  config.intermediate_size += 16;
  const auto made = Transformer::load(*device, path, config, 8, 8, {});
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("mlp.gate_proj.weight"), std::string::npos)
      << made.status().to_string();
  config = load_model_config(path).value();
  config.n_layers += 1;
  config.window.push_back(config.window.back());
  const auto missing = Transformer::load(*device, path, config, 8, 8, {});
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.status().message().find("model.layers.2."), std::string::npos)
      << missing.status().to_string();
}

}  // namespace
}  // namespace specd
