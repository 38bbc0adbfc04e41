#include "core/model/quantization.h"

#include <gtest/gtest.h>

#include "tests/core/model/quantization_rig.h"

namespace specd {
namespace {

namespace fs = std::filesystem;

class QuantizationTest : public QuantizationRig {};

TEST_F(QuantizationTest, every_golden_says_how_its_matrices_are_quantized) {
  struct Golden {
    const char* name;      // as reports call it
    std::string matrices;  // of all that the file names no exception for
    std::map<std::string, std::string> others;
    bool has_kv = false;
    bool tensors_decide = false;
  };
  const std::string awq = "awq 4 group 32 zeros+0", gptq = "gptq 4 group 32";
  const std::string block = "fp8 8 block 128x128 dynamic";
  const std::string ct = "compressed-tensors ", packed = "packed 4 group 32";
  std::map<std::string, std::string> fbgemm, overrides, mixed;
  for (const char* matrix : {"q", "k", "v", "o"})
    fbgemm["model.layers.0.self_attn." + std::string(matrix) + "_proj"] = "-";
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    overrides[layer + "self_attn.o_proj"] = "-";
    overrides[layer + "mlp.down_proj"] = "gptq 8 group 16";
    for (const char* matrix : {"q", "k", "v"})
      mixed[layer + "self_attn." + matrix + "_proj"] = "fp8 8 channel dynamic";
    mixed[layer + "mlp.gate_proj"] = mixed[layer + "mlp.up_proj"] = packed;
  }
  mixed["model.layers.1.self_attn.o_proj"] = mixed["model.layers.0.mlp.down_proj"] =
      "int8 8 channel dynamic";
  mixed["model.layers.1.mlp.down_proj"] = "-";
  const std::map<std::string, Golden> goldens = {
      {"auto_round_awq", {"auto-round awq", awq, {}}},
      {"auto_round_gptq", {"auto-round gptq", gptq, {}}},
      {"awq", {"awq", awq, {}}},
      {"awq_channel", {"awq", "awq 4 channel zeros+0", {}}},
      {"ct_fp8_block", {"compressed-tensors float-quantized", block, {}}},
      {"ct_fp8_dynamic", {"compressed-tensors float-quantized", "fp8 8 channel dynamic", {}}},
      {"ct_fp8_static", {"compressed-tensors float-quantized", "fp8 8 tensor static", {}, true}},
      {"ct_fp8_weights", {"compressed-tensors naive-quantized", "fp8 8 tensor", {}}},
      {"ct_int4", {"compressed-tensors pack-quantized", packed, {}}},
      {"ct_int4_actorder", {"compressed-tensors pack-quantized", packed + " order", {}}},
      {"ct_int4_channel", {"compressed-tensors pack-quantized", "packed 4 channel", {}}},
      {"ct_int4_asymmetric", {"compressed-tensors pack-quantized", packed + " zeros+0", {}}},
      {"ct_int8_dynamic", {"compressed-tensors int-quantized", "int8 8 channel dynamic", {}}},
      {"ct_int8_groups", {"compressed-tensors pack-quantized", "packed 8 group 16", {}}},
      {"ct_int8_groups_asymmetric",
       {"compressed-tensors pack-quantized", "packed 8 group 32 zeros+0", {}}},
      {"ct_int8_packed",
       {"compressed-tensors pack-quantized",
        "packed 8 channel",
        {{"lm_head", "packed 8 channel"}}}},
      {"ct_int8_weights", {"compressed-tensors int-quantized", "int8 8 channel", {}}},
      {"ct_int8_static", {"compressed-tensors int-quantized", "int8 8 tensor static", {}}},
      {"ct_mixed", {"compressed-tensors mixed-precision", "fp8 8 channel", mixed}},
      {"fbgemm_fp8", {"fbgemm_fp8", "fp8 8 channel dynamic", fbgemm}},
      {"fp8_block_llama", {"fp8", "fp8 8 block 32x32 dynamic weight_scale_inv", {}}},
      {"fp8_block_qwen3", {"fp8", block + " weight_scale_inv", {}}},
      {"fp8_dynamic", {"fp8", "fp8 8 tensor dynamic", {}}},
      {"fp8_static", {"fp8", "fp8 8 tensor static", {}, true}},
      {"gptq", {"gptq", gptq, {}}},
      {"gptq_actorder", {"gptq", gptq + " order", {}}},
      {"gptq_asymmetric", {"gptq", gptq + " zeros+1", {}}},
      {"gptq_int8", {"gptq", "gptq 8 channel", {{"lm_head", "gptq 8 channel"}}}},
      {"gptq_overrides", {"gptq", gptq, overrides, false, true}},
      {"gptq_v2", {"gptq_v2", "gptq 4 group 32 zeros+0", {}}},
      {"modelopt_fp8_block", {"modelopt FP8_PB_WO", "fp8 8 block 128x128", {}}},
      {"modelopt_fp8_channel", {"modelopt FP8_PER_CHANNEL_PER_TOKEN", "fp8 8 channel dynamic", {}}},
      {"modelopt_fp8", {"modelopt FP8", "fp8 8 tensor static", {}, true}},
  };
  std::map<std::string, int> seen;
  for (const auto& entry : fs::directory_iterator(kQuantized)) {
    const std::string folder = entry.path().filename();
    const auto config = load_model_config(entry.path());
    if (folder == "ct_int8_asymmetric_llama") {
      EXPECT_EQ(config.status().code(), Code::kUnsupported);
      EXPECT_NE(config.status().message().find(
                    "key 'group_0': key 'input_activations': found 'symmetric' false, supported: "
                    "true: inputs have no zero point"),
                std::string::npos)
          << config.status().message();
      continue;
    }
    ASSERT_TRUE(config.ok()) << folder << ": " << config.status().to_string();
    const auto found_golden = find_golden(goldens, folder);
    ASSERT_NE(found_golden, goldens.end()) << folder;
    ++seen[found_golden->first];
    const Golden& golden = found_golden->second;
    const Quantization& found = config.value().quantization;
    EXPECT_FALSE(found.is_empty()) << folder;
    EXPECT_EQ(found.name(), golden.name) << folder;
    EXPECT_EQ(found.kv().is_float8, golden.has_kv) << folder;
    EXPECT_EQ(found.tensors_decide(), golden.tensors_decide) << folder;
    const auto expect = [&](const std::string& module, const std::string& otherwise) {
      const auto other = golden.others.find(module);
      EXPECT_EQ(words(found.of(module)), other == golden.others.end() ? otherwise : other->second)
          << folder << " " << module;
    };
    for (int i = 0; i < config.value().n_layers; ++i) {
      for (const char* matrix : kMatrices)
        expect("model.layers." + std::to_string(i) + "." + matrix, golden.matrices);
    }
    expect("lm_head", "-");
    for (const char* other : {"model.layers.2.mlp.up_proj", "model.embed_tokens", "model.norm", "",
                              "model.layers.0.mlp", "model.layers.0.input_layernorm"})
      EXPECT_EQ(found.of(other), nullptr) << folder << " " << other;
  }
  expect_both_families(seen, goldens);
}

// The same of the tensors' side: what is quantized has the tensor with codes, and nothing else has.
TEST_F(QuantizationTest, every_golden_has_codes_where_its_description_says) {
  static const std::map<Layout, std::string> kCodes = {
      {Layout::kPacked, ".weight_packed"}, {Layout::kGptq, ".qweight"}, {Layout::kAwq, ".qweight"}};
  for (const auto& entry : fs::directory_iterator(kQuantized)) {
    const std::string folder = entry.path().filename();
    if (folder == "ct_int8_asymmetric_llama") continue;
    std::ifstream in(entry.path() / "model.safetensors", std::ios::binary);
    uint64_t length = 0;
    in.read(reinterpret_cast<char*>(&length), sizeof(length));
    std::string text(length, '\0');
    in.read(text.data(), static_cast<std::streamsize>(length));
    const Json header = Json::parse(text);
    const ModelConfig config = load_model_config(entry.path()).value();
    const Quantization& found = config.quantization;
    std::vector<std::string> modules = {"lm_head"};
    for (int i = 0; i < config.n_layers; ++i) {
      for (const char* matrix : kMatrices)
        modules.push_back("model.layers." + std::to_string(i) + "." + matrix);
    }
    for (const std::string& module : modules) {
      const MatrixFormat* format = found.of(module);
      const std::string type =
          header.contains(module + ".weight") ? header[module + ".weight"]["dtype"] : Json("none");
      if (format != nullptr && kCodes.contains(format->layout)) {
        EXPECT_TRUE(header.contains(module + kCodes.at(format->layout))) << folder << " " << module;
        EXPECT_EQ(header.contains(module + ".weight_g_idx"),
                  format->act_order && format->layout == Layout::kPacked);
        continue;
      }
      EXPECT_EQ(type == "I8", format != nullptr && format->layout == Layout::kInt8) << module;
      EXPECT_EQ(type == "F8_E4M3", format != nullptr && format->layout == Layout::kFloat8)
          << module;
      if (format == nullptr) {
        EXPECT_FALSE(header.contains(module + ".qweight")) << folder << " " << module;
        continue;
      }
      EXPECT_TRUE(header.contains(module + "." + format->scale)) << folder << " " << module;
      EXPECT_EQ(header.contains(module + ".input_scale"), format->inputs == Inputs::kStatic)
          << folder << " " << module;
    }
  }
}

TEST_F(QuantizationTest, a_checkpoint_without_a_description_is_not_quantized) {
  const Quantization none = read(nullptr).value();
  EXPECT_TRUE(none.is_empty());
  EXPECT_EQ(none.name(), "");
  EXPECT_EQ(none.of("lm_head"), nullptr);
  EXPECT_FALSE(none.kv().is_float8);
  EXPECT_FALSE(none.tensors_decide());
}

TEST_F(QuantizationTest, a_description_of_the_cache_alone_quantizes_no_matrix) {
  const Quantization made =
      read({{"quant_method", "compressed-tensors"},
            {"format", "dense"},
            {"config_groups", Json::object()},
            {"kv_cache_scheme",
             {{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}, {"symmetric", true}}}})
          .value();
  EXPECT_TRUE(made.kv().is_float8);
  EXPECT_FALSE(made.is_empty());
  EXPECT_EQ(made.of("model.layers.0.mlp.up_proj"), nullptr);
}

TEST_F(QuantizationTest, the_description_is_found_where_tools_put_it) {
  const Json awq = block_of("awq_llama");
  EXPECT_EQ(read(awq, "compression_config").value().name(), "awq");
  EXPECT_EQ(read({{"quantization_config", block_of("ct_int4_llama")}}).value().name(),
            "compressed-tensors pack-quantized");
  Json upper = awq;
  upper["quant_method"] = "AWQ";
  upper["version"] = "GEMM";
  EXPECT_EQ(read(upper).value().name(), "awq");
  Json old = block_of("ct_int4_llama");
  old.erase("quant_method");
  EXPECT_EQ(read(old, "compression_config").value().name(), "compressed-tensors pack-quantized");
  Json legacy{{"producer", {{"name", "modelopt"}}}, {"quantization", {{"quant_algo", "fp8"}}}};
  EXPECT_EQ(read(legacy).value().name(), "modelopt FP8");
  const Json both{
      {"num_hidden_layers", 2}, {"quantization_config", awq}, {"compression_config", old}};
  const Status differs = Quantization::read(both, root_).status();
  EXPECT_EQ(differs.code(), Code::kUnsupported);
  EXPECT_NE(differs.message().find("supported: null beside 'quantization_config'"),
            std::string::npos)
      << differs.message();
  // Files, the one that is asked first last.
  put("quant_config.json", R"({"zero_point": true, "q_group_size": 64, "w_bit": 4,
                               "version": "GEMM"})");
  EXPECT_EQ(words(read(nullptr).value().of("model.layers.0.mlp.up_proj")),
            "awq 4 group 64 zeros+0");
  put("quantize_config.json", R"({"bits": 4, "group_size": 16, "desc_act": false})");
  EXPECT_EQ(words(read(nullptr).value().of("model.layers.0.mlp.up_proj")),
            "gptq 4 group 16 zeros+1");
  put("quantize_config.json", R"({"bits": 4, "group_size": 16, "checkpoint_format": "gemm"})");
  EXPECT_EQ(words(read(nullptr).value().of("model.layers.0.mlp.up_proj")),
            "awq 4 group 16 zeros+0");
  put("hf_quant_config.json", R"({"producer": {"name": "modelopt"},
                                  "quantization": {"quant_algo": "FP8"}})");
  EXPECT_EQ(read(nullptr).value().name(), "modelopt FP8");
  EXPECT_EQ(read(awq).value().name(), "awq");  // config.json comes before all files
  put("hf_quant_config.json", "{");
  const Status broken = read(nullptr).status();
  EXPECT_EQ(broken.code(), Code::kDataLoss);
  EXPECT_NE(broken.message().find(root_ + "/hf_quant_config.json:1:"), std::string::npos)
      << broken.message();
}

TEST_F(QuantizationTest, an_output_head_that_is_the_embedding_is_not_quantized) {
  const Json config{{"num_hidden_layers", 2},
                    {"tie_word_embeddings", true},
                    {"quantization_config", group({{"num_bits", 8}}, nullptr, "int-quantized")}};
  EXPECT_EQ(Quantization::read(config, root_).value().of("lm_head"), nullptr);
  EXPECT_NE(read(config["quantization_config"]).value().of("lm_head"), nullptr);
}

TEST_F(QuantizationTest, targets_match_as_in_compressed_tensors) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(of_target("Linear").size(), 15u);
  EXPECT_EQ(of_target("re:.*").size(), 15u);
  EXPECT_EQ(of_target("lm_head"), Names{"lm_head"});
  EXPECT_EQ(of_target("re:lm"), Names{"lm_head"}) << "the end of the name is free";
  EXPECT_EQ(of_target("re:head"), Names{}) << "the start is not";
  EXPECT_EQ(of_target("re:^lm_head$"), Names{"lm_head"});
  EXPECT_EQ(of_target("re:lm_hea$"), Names{});
  EXPECT_EQ(of_target("re:\\Alm_head\\Z"), Names{"lm_head"});
  EXPECT_EQ(of_target("re:(^lm|^x)_head"), Names{"lm_head"});
  EXPECT_EQ(of_target("re:x|^lm_"), Names{"lm_head"});
  EXPECT_EQ(of_target("re:\\w+$"), Names{"lm_head"});
  EXPECT_EQ(of_target("re:[\\w.]+$").size(), 15u);
  EXPECT_EQ(of_target("re:model.layers.[\\d]\\.\\D+$").size(), 14u);
  EXPECT_EQ(of_target("re:model\\.layers\\.\\d+\\.mlp\\.(gate|up)_proj$"),
            (Names{"model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj",
                   "model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj"}));
  EXPECT_EQ(of_target("re:.*layers\\.1\\..*(?:q|k)_proj"),
            (Names{"model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.k_proj"}));
  EXPECT_EQ(of_target("re:(?!.*mlp)(?!lm).*o_proj$"),
            (Names{"model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.o_proj"}));
  EXPECT_EQ(of_target("model.layers.1.mlp.up_proj"), Names{"model.layers.1.mlp.up_proj"});
}

TEST_F(QuantizationTest, a_name_wins_over_an_expression_and_that_over_a_class) {
  Json block = group({{"num_bits", 8}, {"strategy", "channel"}}, nullptr, "int-quantized");
  const auto add = [&](const char* name, const std::string& target, const Json& weights) {
    block["config_groups"][name] = {{"targets", {target}}, {"weights", weights}};
  };
  add("a", "re:.*down_proj", {{"num_bits", 8}, {"type", "float"}});
  add("z", "model.layers.0.mlp.down_proj", {{"num_bits", 8}, {"strategy", "tensor"}});
  const Quantization made = read(block).value();
  EXPECT_EQ(words(made.of("model.layers.0.mlp.down_proj")), "int8 8 tensor");
  EXPECT_EQ(words(made.of("model.layers.1.mlp.down_proj")), "fp8 8 tensor");
  EXPECT_EQ(words(made.of("model.layers.1.mlp.up_proj")), "int8 8 channel");
  EXPECT_NE(
      made.of("model.layers.1.mlp.down_proj")
          ->place.find("config.json: key 'quantization_config': key 'config_groups': key 'a'"),
      std::string::npos);
  block["ignore"] = {"re:.*down_proj", "model.layers.0.mlp.up_proj", "model.visual.x", "Conv2d"};
  EXPECT_EQ(quantized(read(block).value()).size(), 12u);
  block["ignore"] = {"Linear"};
  EXPECT_EQ(quantized(read(block).value()).size(), 0u);
  add("y", "Linear", {{"num_bits", 8}, {"type", "float"}});
  const Status twice = read(block).status();
  EXPECT_EQ(twice.code(), Code::kUnsupported);
  EXPECT_NE(twice.message().find("supported: one group for a target"), std::string::npos)
      << twice.message();
}

TEST_F(QuantizationTest, every_method_has_its_own_rule_for_what_stays_as_it_is) {
  using Names = std::vector<std::string>;
  const auto count = [&](Json block, const char* key, const Names& names) {
    block[key] = names;
    const auto made = read(block);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return made.ok() ? quantized(made.value()).size() : 0;
  };
  const Json modelopt{{"quant_method", "modelopt"}, {"quant_algo", "FP8"}};
  EXPECT_EQ(count(modelopt, "ignore", {}), 15u);
  EXPECT_EQ(count(modelopt, "ignore", {"lm_head"}), 14u);
  EXPECT_EQ(count(modelopt, "exclude_modules", {"lm_head", "model.layers.1*"}), 7u);
  EXPECT_EQ(count(modelopt, "ignore", {"*.mlp.*"}), 9u);
  EXPECT_EQ(count(modelopt, "ignore", {"*[qk]_proj", "*[!l]m_head"}), 11u);
  EXPECT_EQ(count(modelopt, "ignore", {"lm_hea?", "*_prox"}), 14u);
  EXPECT_EQ(count(modelopt, "ignore", {"model.layers.1.self_attn"}), 11u);
  EXPECT_EQ(count(modelopt, "ignore", {"lm_h", "proj", "["}), 15u);
  const Json fp8{{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  EXPECT_EQ(count(fp8, "modules_to_not_convert", {}), 14u) << "never lm_head";
  EXPECT_EQ(count(fp8, "ignored_layers", {"model.layers.0.mlp.up_proj"}), 13u);
  EXPECT_EQ(count(fp8, "ignored_layers", {"model.layers.0"}), 7u);
  EXPECT_EQ(count(fp8, "ignored_layers", {"model.layers.0.mlp.up"}), 14u);
  EXPECT_EQ(count(fp8, "ignored_layers", {"up_proj"}), 12u);
  EXPECT_EQ(count(fp8, "ignored_layers", {"model.layers.(0|1).mlp"}), 8u);
  EXPECT_EQ(count(fp8, "ignored_layers", {"mlp"}), 14u);
  const Json fbgemm{{"quant_method", "fbgemm_fp8"}, {"activation_scale_ub", 1200.0}};
  EXPECT_EQ(count(fbgemm, "modules_to_not_convert", {"model.layers.0.mlp.up_proj"}), 13u);
  const Json awq{{"quant_method", "awq"}, {"bits", 4}, {"group_size", -1}};
  EXPECT_EQ(count(awq, "modules_to_not_convert", {}), 14u) << "not lm_head by default";
  EXPECT_EQ(count(awq, "modules_to_not_convert", {"mlp"}), 8u);
  EXPECT_EQ(count(awq, "modules_to_not_convert", {"s.1.self"}), 10u);
  Json with_head = awq;
  with_head["lm_head"] = true;
  EXPECT_EQ(count(with_head, "modules_to_not_convert", {}), 15u);
}

TEST_F(QuantizationTest, overrides_of_gptq_match_from_the_start) {
  Json block = block_of("gptq_llama");
  block["lm_head"] = true;
  block["dynamic"] = {{"-:lm_head", Json::object()},
                      {"model\\.layers\\.0\\.mlp", {{"bits", 8}, {"desc_act", true}}},
                      {"+:.*o_proj$", {{"group_size", -1}}},
                      {"layers", {{"bits", 8}}}};
  const Quantization made = read(block).value();
  EXPECT_TRUE(made.tensors_decide());
  EXPECT_EQ(made.of("lm_head"), nullptr);
  EXPECT_EQ(words(made.of("model.layers.0.mlp.up_proj")), "gptq 8 group 32 order");
  EXPECT_EQ(words(made.of("model.layers.1.self_attn.o_proj")), "gptq 4 channel");
  EXPECT_EQ(words(made.of("model.layers.1.mlp.up_proj")), "gptq 4 group 32");
  block["dynamic"]["-:.*up_proj"] = nullptr;
  const Status both = read(block).status();
  EXPECT_EQ(both.code(), Code::kUnsupported);
  EXPECT_NE(both.message().find("key 'dynamic': found '-:.*up_proj' and 'model\\.layers\\.0\\.mlp' "
                                "for model.layers.0.mlp.up_proj, supported: one entry"),
            std::string::npos)
      << both.message();
  Json inside = block_of("gptq_llama");
  inside["modules_in_block_to_quantize"] = {{"self_attn.q_proj"}};
  EXPECT_TRUE(read(inside).value().tensors_decide());
  inside["modules_in_block_to_quantize"] = Json::array();
  EXPECT_FALSE(read(inside).value().tensors_decide());
}

TEST_F(QuantizationTest, autoround_is_read_where_another_tool_could_have_packed_it) {
  Json block{{"quant_method", "auto-round"},
             {"packing_format", "auto_round:auto_gptq"},
             {"bits", 4},
             {"group_size", 128},
             {"sym", true},
             {"data_type", "int"},
             {"block_name_to_quantize", "model.layers"}};
  EXPECT_EQ(words(read(block).value().of("model.layers.0.mlp.up_proj")), "gptq 4 group 128");
  EXPECT_EQ(read(block).value().name(), "auto-round gptq");
  block["packing_format"] = "auto_round:gptq:exllamav2";
  EXPECT_EQ(read(block).value().name(), "auto-round gptq");
  block["quant_method"] = "intel/auto-round";
  block["packing_format"] = "auto_round:auto_awq";
  EXPECT_EQ(words(read(block).value().of("model.layers.0.mlp.up_proj")), "awq 4 group 128 zeros+0");
}

TEST_F(QuantizationTest, the_lists_of_a_large_model_are_read) {
  Json names = Json::array(), expressions = Json::array();
  for (int i = 0; i < 126; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    for (const char* each : {".input_layernorm", ".post_attention_layernorm", ".mlp.down_proj",
                             ".self_attn.o_proj", ".mlp"})
      names.push_back(layer + each);
    expressions.push_back("re:model\\.layers\\." + std::to_string(i) + "\\.mlp\\..*");
  }
  const auto count = [&](const Json& block) {
    const Json config{{"num_hidden_layers", 126}, {"quantization_config", block}};
    const auto made = Quantization::read(config, root_);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    int n = 0;
    for (int i = 0; i < 126 && made.ok(); ++i) {
      for (const char* matrix : kMatrices)
        n += made.value().of("model.layers." + std::to_string(i) + "." + matrix) != nullptr;
    }
    return n;
  };
  Json compressed = group({{"num_bits", 8}}, nullptr, "int-quantized");
  compressed["ignore"] = names;
  EXPECT_EQ(count(compressed), 126 * 5);
  compressed["ignore"] = expressions;
  EXPECT_EQ(count(compressed), 126 * 4);
  EXPECT_EQ(count({{"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"ignore", names}}),
            126 * 3);
  EXPECT_EQ(count({{"quant_method", "fp8"}, {"modules_to_not_convert", names}}), 126 * 3);
  EXPECT_EQ(count({{"quant_method", "awq"},
                   {"bits", 4},
                   {"group_size", 128},
                   {"modules_to_not_convert", names}}),
            126 * 3);
}

}  // namespace
}  // namespace specd
