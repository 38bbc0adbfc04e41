#include "core/model/quantization.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>

#include "core/model/checkpoint.h"
#include "core/model/model_config.h"
#include "tests/cpu_clock.h"

namespace specd {
namespace {

namespace fs = std::filesystem;
const std::string kQuantized = std::string(SPECD_TEST_REFERENCE) + "/quantized/";
constexpr const char* kMatrices[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                     "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                     "mlp.down_proj"};
using Layout = MatrixFormat::Layout;
using Scales = MatrixFormat::Scales;
using Inputs = MatrixFormat::Inputs;

// A few words for a format, so that tables of them can be read.
std::string words(const MatrixFormat* format) {
  if (format == nullptr) return "-";
  const MatrixFormat& f = *format;
  static const std::map<Layout, std::string> kLayouts = {{Layout::kInt8, "int8"},
                                                         {Layout::kFloat8, "fp8"},
                                                         {Layout::kPacked, "packed"},
                                                         {Layout::kGptq, "gptq"},
                                                         {Layout::kAwq, "awq"}};
  static const std::map<Scales, std::string> kScales = {{Scales::kTensor, "tensor"},
                                                        {Scales::kChannel, "channel"},
                                                        {Scales::kGroup, "group"},
                                                        {Scales::kBlock, "block"}};
  std::string out =
      kLayouts.at(f.layout) + " " + std::to_string(f.bits) + " " + kScales.at(f.scales);
  if (f.scales == Scales::kBlock) out += " " + std::to_string(f.block_rows) + "x";
  if (f.scales == Scales::kGroup) out += " ";
  if (f.group > 0) out += std::to_string(f.group);
  if (f.inputs != Inputs::kNone) out += f.inputs == Inputs::kStatic ? " static" : " dynamic";
  if (f.has_zeros) out += " zeros+" + std::to_string(f.zero_add);
  if (f.act_order) out += " order";
  if (f.scale != "weight_scale") out += " " + f.scale;
  return out;
}

class QuantizationTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/specd_quantization_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    root_ = folder;
  }
  void TearDown() override { fs::remove_all(root_); }

  static Json block_of(const std::string& name) {
    const Json config = parse_json_file(kQuantized + name + "/config.json", 1 << 20).value();
    return config.contains("quantization_config") ? config["quantization_config"]
                                                  : config.value("compression_config", Json());
  }
  // Of a model with two layers and an output head of its own.
  Result<Quantization> read(const Json& block, const char* key = "quantization_config") {
    Json config{{"num_hidden_layers", 2}, {"tie_word_embeddings", false}};
    if (!block.is_null()) config[key] = block;
    return Quantization::read(config, root_);
  }
  void put(const std::string& name, const std::string& text) {
    std::ofstream(root_ + "/" + name) << text;
  }
  // A compressed-tensors description with one group.
  static Json group(const Json& weights, const Json& inputs = nullptr,
                    const std::string& format = "naive-quantized",
                    const Json& targets = Json::array({"Linear"})) {
    return Json{{"quant_method", "compressed-tensors"},
                {"format", format},
                {"config_groups",
                 {{"group_0",
                   {{"targets", targets}, {"weights", weights}, {"input_activations", inputs}}}}}};
  }
  // Names of the layers' matrices, and lm_head, that are quantized.
  static std::vector<std::string> quantized(const Quantization& read) {
    std::vector<std::string> names;
    for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
      for (const char* matrix : kMatrices) {
        if (read.of(std::string(layer) + matrix) != nullptr)
          names.push_back(std::string(layer) + matrix);
      }
    }
    if (read.of("lm_head") != nullptr) names.emplace_back("lm_head");
    return names;
  }
  // What the target `text` of a group quantizes.
  std::vector<std::string> of_target(const std::string& text) {
    const auto made = read(group({{"num_bits", 8}}, nullptr, "int-quantized", {text}));
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return made.ok() ? quantized(made.value()) : std::vector<std::string>();
  }

  std::string root_;
};

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
      {"awq_llama", {"awq", awq, {}}},
      {"awq_qwen3", {"awq", awq, {}}},
      {"ct_fp8_block_qwen3", {"compressed-tensors float-quantized", block, {}}},
      {"ct_fp8_dynamic_llama", {"compressed-tensors float-quantized", "fp8 8 channel dynamic", {}}},
      {"ct_fp8_dynamic_qwen3", {"compressed-tensors float-quantized", "fp8 8 channel dynamic", {}}},
      {"ct_fp8_static_llama",
       {"compressed-tensors float-quantized", "fp8 8 tensor static", {}, true}},
      {"ct_fp8_weights_llama", {"compressed-tensors naive-quantized", "fp8 8 tensor", {}}},
      {"ct_int4_actorder_llama", {"compressed-tensors pack-quantized", packed + " order", {}}},
      {"ct_int4_asymmetric_qwen3", {"compressed-tensors pack-quantized", packed + " zeros+0", {}}},
      {"ct_int4_llama", {"compressed-tensors pack-quantized", packed, {}}},
      {"ct_int4_qwen3", {"compressed-tensors pack-quantized", packed, {}}},
      {"ct_int8_dynamic_llama", {"compressed-tensors int-quantized", "int8 8 channel dynamic", {}}},
      {"ct_int8_dynamic_qwen3", {"compressed-tensors int-quantized", "int8 8 channel dynamic", {}}},
      {"ct_int8_packed_qwen3",
       {"compressed-tensors pack-quantized",
        "packed 8 channel",
        {{"lm_head", "packed 8 channel"}}}},
      {"ct_int8_static_qwen3", {"compressed-tensors int-quantized", "int8 8 tensor static", {}}},
      {"ct_mixed_llama", {"compressed-tensors mixed-precision", "fp8 8 channel", mixed}},
      {"fbgemm_fp8_llama", {"fbgemm_fp8", "fp8 8 channel dynamic", fbgemm}},
      {"fp8_block_llama", {"fp8", "fp8 8 block 32x32 dynamic weight_scale_inv", {}}},
      {"fp8_block_qwen3", {"fp8", block + " weight_scale_inv", {}}},
      {"fp8_dynamic_qwen3", {"fp8", "fp8 8 tensor dynamic", {}}},
      {"fp8_static_llama", {"fp8", "fp8 8 tensor static", {}, true}},
      {"gptq_actorder_llama", {"gptq", gptq + " order", {}}},
      {"gptq_asymmetric_llama", {"gptq", gptq + " zeros+1", {}}},
      {"gptq_int8_qwen3", {"gptq", "gptq 8 channel", {{"lm_head", "gptq 8 channel"}}}},
      {"gptq_llama", {"gptq", gptq, {}}},
      {"gptq_overrides_llama", {"gptq", gptq, overrides, false, true}},
      {"gptq_qwen3", {"gptq", gptq, {}}},
      {"gptq_v2_qwen3", {"gptq_v2", "gptq 4 group 32 zeros+0", {}}},
      {"modelopt_fp8_channel_qwen3",
       {"modelopt FP8_PER_CHANNEL_PER_TOKEN", "fp8 8 channel dynamic", {}}},
      {"modelopt_fp8_llama", {"modelopt FP8", "fp8 8 tensor static", {}, true}},
      {"modelopt_fp8_qwen3", {"modelopt FP8", "fp8 8 tensor static", {}}},
  };
  size_t seen = 0;
  for (const auto& entry : fs::directory_iterator(kQuantized)) {
    const std::string folder = entry.path().filename();
    const auto config = load_model_config(entry.path());
    ++seen;
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
    ASSERT_TRUE(goldens.contains(folder)) << folder;
    const Golden& golden = goldens.at(folder);
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
    for (int i = 0; i < 2; ++i) {
      for (const char* matrix : kMatrices)
        expect("model.layers." + std::to_string(i) + "." + matrix, golden.matrices);
    }
    expect("lm_head", "-");
    for (const char* other : {"model.layers.2.mlp.up_proj", "model.embed_tokens", "model.norm", "",
                              "model.layers.0.mlp", "model.layers.0.input_layernorm"})
      EXPECT_EQ(found.of(other), nullptr) << folder << " " << other;
  }
  EXPECT_EQ(seen, goldens.size() + 1);
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
    const Quantization found = load_model_config(entry.path()).value().quantization;
    std::vector<std::string> modules = {"lm_head"};
    for (int i = 0; i < 2; ++i) {
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

TEST_F(QuantizationTest, what_is_not_read_is_refused_by_name) {
  for (const char* method : {"bitsandbytes",
                             "aqlm",
                             "vptq",
                             "quanto",
                             "eetq",
                             "higgs",
                             "hqq",
                             "torchao",
                             "gguf",
                             "bitnet",
                             "spqr",
                             "quark",
                             "fp_quant",
                             "mxfp4",
                             "mxfp8",
                             "nvfp4",
                             "metal",
                             "fouroversix",
                             "sinq",
                             "gemma",
                             "modelopt_fp4",
                             "modelopt_mxfp8",
                             "modelopt_mixed",
                             "deepseek_v4_fp8",
                             "experts_int8",
                             "quip",
                             "quip#",
                             "squeezellm",
                             "marlin",
                             "exl2",
                             "exl3",
                             "deepspeedfp",
                             "tpu_int8",
                             "ipex",
                             "humming",
                             "petit_nvfp4",
                             "inc",
                             "awq_marlin",
                             "gptq_marlin",
                             "gptq_marlin_24",
                             "moe_wna16",
                             "new"}) {
    const Status status = read({{"quant_method", method}}).status();
    EXPECT_EQ(status.code(), Code::kUnsupported) << method;
    EXPECT_NE(status.message().find(std::string("key 'quant_method': found '") + method + "': "),
              std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("supported: compressed-tensors, modelopt, fbgemm_fp8, fp8, "),
              std::string::npos)
        << status.message();
    EXPECT_EQ(status.message().find("is unknown") != std::string::npos,
              std::string(method) == "new")
        << status.message();
  }
  const Json int8{{"num_bits", 8}, {"strategy", "channel"}};
  const Json fp8{{"num_bits", 8}, {"type", "float"}};
  const Json int4{{"num_bits", 4}, {"group_size", 32}};
  const Json token{{"num_bits", 8}, {"strategy", "token"}, {"dynamic", true}};
  const auto with = [](Json block, const char* key, const Json& value) {
    block[key] = value;
    return block;
  };
  const auto in_group = [&](const char* key, const Json& value) {
    Json block = group(int8);
    block["config_groups"]["group_0"][key] = value;
    return block;
  };
  const Json gptq = block_of("gptq_llama"), awq = block_of("awq_llama");
  const Json block_fp8 = block_of("fp8_block_llama");
  const Json modelopt{{"quant_method", "modelopt"}, {"quant_algo", "FP8"}};
  const Json round{{"quant_method", "auto-round"},
                   {"packing_format", "auto_round:auto_gptq"},
                   {"bits", 4},
                   {"group_size", 128}};
  const std::vector<std::pair<Json, const char*>> refusals = {
      {{{"load_in_4bit", true}}, "key 'quant_method': found 'bitsandbytes': NF4, FP4"},
      // compressed-tensors: the whole
      {with(group(int8), "format", nullptr),
       "key 'format': found 'fakequant': its weights are not"},
      {group(int8, nullptr, "dense"),
       "key 'format': found 'dense': its weights are not compressed"},
      {group(int8, nullptr, "nvfp4-pack-quantized"), "4-bit floats are not read"},
      {group(int8, nullptr, "mxfp4-pack-quantized"), "4-bit floats are not read"},
      {group(int8, nullptr, "mxfp8-quantized"), "powers of two are not read"},
      {group(int8, nullptr, "sparse-24-bitmask"), "sparse weights are not read"},
      {group(int8, nullptr, "sparse-bitmask"), "sparse weights are not read"},
      {group(int8, nullptr, "marlin-24"), "sparse weights in the order of one GPU kernel"},
      {group(int8, nullptr, "newest"), "key 'format': found 'newest': this word is unknown"},
      {in_group("format", "newest"), "key 'group_0': key 'format': found 'newest'"},
      {with(group(int8), "transform_config", {{"config_groups", {{"u", 1}}}}),
       "key 'transform_config': found"},
      {with(group(int8), "sparsity_config", {{"format", "sparse-24-bitmask"}}),
       "key 'sparsity_config': found"},
      {with(group(int8), "kv_cache_scheme", {{"num_bits", 8}}), "key 'kv_cache_scheme': found"},
      {with(group(int8), "kv_cache_scheme", {{"type", "float"}, {"dynamic", true}}),
       "supported: null, and FP8 (e4m3) with one static scale"},
      {with(group(int8), "kv_cache_scheme", {{"type", "float"}, {"strategy", "attn_head"}}),
       "key 'kv_cache_scheme': found"},
      {with(group(int8), "kv_cache_scheme", "FP8"), "key 'kv_cache_scheme': found '\"FP8\"'"},
      // its groups
      {with(group(int8), "config_groups", {{"W8A8", {"Linear"}}}), "found a preset's name"},
      {in_group("more", 1), "key 'group_0': key 'more': found '1', supported: this key is unknown"},
      {in_group("output_activations", fp8), "key 'output_activations': found"},
      {in_group("weights", nullptr), "found no 'weights': quantized activations alone"},
      {in_group("targets", {"LlamaAttention"}), "quantized attention is not computed"},
      {in_group("targets", {"Embedding"}), "quantized embeddings are not read"},
      {in_group("targets", {"Linaer"}), "found 'Linaer': the model has no such matrix"},
      {in_group("targets", {"model.layers.0"}), "the model has no such matrix"},
      {in_group("targets", {"re:a(?<=x)"}), "only (?: ), (?i: ), (?= ), (?! ) and (?> )"},
      {in_group("targets", {"re:a^b"}), "found '^' inside, supported: at the start"},
      {in_group("targets", {"re:(a)^b"}), "found '^' inside, supported: at the start"},
      {in_group("targets", {"re:a\\A"}), "found '\\A' inside, supported: at the start"},
      {in_group("targets", {"re:\\p{L}"}), "found '\\p', which Python does not know"},
      {in_group("targets", {"re:\\bx"}), "this escape; supported"},
      // weights
      {group(with(int8, "more", 1)), "key 'weights': key 'more': found '1'"},
      {group({{"num_bits", 4}}), "key 'weights': found 'num_bits' 4, supported: 8 unless packed"},
      {group({{"num_bits", 2}, {"group_size", 32}}, nullptr, "pack-quantized"),
       "found 'num_bits' 2, supported: 4 and 8 in format 'pack-quantized'"},
      {group({{"num_bits", 3}, {"group_size", 32}}, nullptr, "pack-quantized"),
       "found 'num_bits' 3, supported: 4 and 8"},
      {group(with(int8, "symmetric", false)), "found 'symmetric' false, supported: true unless"},
      {group(with(int8, "dynamic", true)), "found 'dynamic' true"},
      {group(with(int8, "dynamic", "local")), "key 'dynamic': found '\"local\"'"},
      {group(with(int8, "strategy", "token")), "found 'strategy' 'token', supported: tensor, "},
      {group(with(int8, "type", "fp")), "key 'type': found '\"fp\"', supported: int, float"},
      {group(with(int8, "actorder", "new")), "key 'actorder': found '\"new\"'"},
      {group({{"num_bits", 8}, {"group_size", 32}}),
       "found 'strategy' 'group', supported: tensor "
       "and channel for 8-bit integers"},
      {group({{"type", "float"}, {"group_size", 32}}),
       "supported: tensor, channel and block for "
       "floats"},
      {group({{"strategy", "block"}, {"block_structure", {8, 8}}}), "found 'strategy' 'block'"},
      {group({{"num_bits", 4}}, nullptr, "pack-quantized"),
       "found 'strategy' 'tensor', supported: "
       "channel and group"},
      {group({{"type", "float"}, {"num_bits", 4}, {"group_size", 16}}), "found 'num_bits' 4"},
      {group({{"type", "float"}}, nullptr, "pack-quantized"), "found floats in format"},
      // inputs
      {group(int4, token, "pack-quantized"), "quantized inputs of packed weights (W4A8)"},
      {group(int8, with(token, "symmetric", false)),
       "key 'input_activations': found 'symmetric' "
       "false, supported: true"},
      {group(int8, with(token, "num_bits", 4)), "found 'num_bits' 4, supported: 8"},
      {group(fp8, token), "found 'type' int, supported: the type of the weights"},
      {group(int8, with(token, "strategy", "tensor")), "supported: token for dynamic inputs in 8"},
      {group(fp8, {{"type", "float"}, {"strategy", "channel"}}), "supported: tensor for static"},
      {group({{"type", "float"}, {"strategy", "block"}, {"block_structure", {8, 8}}},
             {{"type", "float"}}),
       "found static inputs of blocks"},
      // ModelOpt
      {with(modelopt, "quant_algo", "NVFP4"),
       "key 'quant_algo': found '\"NVFP4\"', supported: FP8,"},
      {with(modelopt, "quant_algo", "W4A16_AWQ"), "key 'quant_algo': found '\"W4A16_AWQ\"'"},
      {with(modelopt, "quant_algo", "MIXED_PRECISION"), "key 'quant_algo'"},
      {with(modelopt, "quantized_layers", {{"a", 1}}), "key 'quantized_layers': found"},
      {with(modelopt, "kv_cache_quant_algo", "NVFP4"), "key 'kv_cache_quant_algo': found"},
      // fp8
      {with(block_fp8, "fmt", "e5m2"), "key 'fmt': found '\"e5m2\"', supported: e4m3"},
      {with(block_fp8, "scale_fmt", "ue8m0"), "key 'scale_fmt': found '\"ue8m0\"'"},
      {with(block_fp8, "activation_scheme", "static"), "supported: dynamic with blocks"},
      {with(block_fp8, "activation_scheme", "new"), "key 'activation_scheme': found '\"new\"'"},
      {with(block_fp8, "modules_to_convert", {"x"}), "key 'modules_to_convert': found"},
      {with(block_fp8, "kv_cache_scheme", "dynamic"), "key 'kv_cache_scheme': found"},
      // AWQ
      {with(awq, "bits", 3), "key 'bits': found '3', supported: 4"},
      {with(awq, "version", "gemv"), "key 'version': found '\"gemv\"', supported: gemm"},
      {with(awq, "version", "gemv_fast"), "key 'version': found '\"gemv_fast\"'"},
      {with(awq, "version", "marlin"), "key 'version': found '\"marlin\"'"},
      {with(awq, "format", "llm-awq"), "key 'format': found '\"llm-awq\"'"},
      {with(awq, "backend", "llm-awq"), "key 'backend': found '\"llm-awq\"'"},
      // GPTQ
      {with(gptq, "bits", 2), "key 'bits': found '2', supported: 4, 8"},
      {with(gptq, "bits", 3), "key 'bits': found '3', supported: 4, 8"},
      {with(gptq, "checkpoint_format", "marlin"), "key 'checkpoint_format': found '\"marlin\"'"},
      {with(gptq, "format", "bitblas"), "key 'format': found '\"bitblas\"', supported: gptq, "},
      {with(gptq, "is_marlin_format", true), "key 'is_marlin_format': found 'true'"},
      {with(gptq, "pack_dtype", "int64"), "key 'pack_dtype': found '\"int64\"'"},
      {with(gptq, "rotation", "hadamard"), "key 'rotation': found '\"hadamard\"'"},
      {with(gptq, "dynamic", {{".*", {{"bits", 3}}}}), "key 'dynamic': key '.*': key 'bits'"},
      // AutoRound
      {with(round, "packing_format", "auto_round"), "key 'packing_format': found"},
      {with(round, "packing_format", "auto_round:gptq"), "supported: auto_round:auto_gptq, auto"},
      {with(round, "data_type", "mx_fp"), "key 'data_type': found '\"mx_fp\"', supported: int"},
      {with(round, "act_bits", 8), "key 'act_bits': found '8', supported: 16"},
      {with(round, "extra_config", {{"lm_head", 1}}), "key 'extra_config': found"},
      {with(round, "block_name_to_quantize", "model.visual"), "key 'block_name_to_quantize'"},
  };
  for (const auto& [block, message] : refusals) {
    const Status status = read(block).status();
    EXPECT_EQ(status.code(), Code::kUnsupported) << message << "\n" << status.to_string();
    EXPECT_NE(status.message().find(message), std::string::npos) << message << "\n"
                                                                 << status.message();
    EXPECT_EQ(status.message().rfind(root_ + "/config.json: key 'quantization_config': ", 0), 0u)
        << status.message();
  }
}

TEST_F(QuantizationTest, what_is_wrong_in_itself_is_refused_with_its_place) {
  const auto with = [](Json block, const char* key, const Json& value) {
    block[key] = value;
    return block;
  };
  const Json gptq = block_of("gptq_llama"), awq = block_of("awq_llama"),
             fp8 = block_of("fp8_block_llama");
  const auto weights = [&](const Json& patch) {
    Json args{{"num_bits", 8}};
    args.merge_patch(patch);
    return group(args);
  };
  const auto blocks = [&](const Json& sides) {
    return weights({{"type", "float"}, {"strategy", "block"}, {"block_structure", sides}});
  };
  const auto targets = [&](const Json& list) {
    return group({{"num_bits", 8}}, nullptr, "int-quantized", list);
  };
  Json no_format = weights(Json::object());
  no_format["format"] = "mixed-precision";
  const std::vector<std::pair<Json, const char*>> wrong = {
      {"fp8", "expected an object, found '\"fp8\"'"},
      {Json::array(), "expected an object"},
      {Json::object(), "the key 'quant_method' is missing"},
      {{{"quant_method", 7}}, "key 'quant_method'"},
      {{{"quantization_config", 7}}, "key 'quantization_config': expected an object"},
      {{{"quant_method", "compressed-tensors"}, {"format", "int-quantized"}},
       "key 'config_groups': expected groups"},
      {with(targets({"Linear"}), "config_groups", {{"g", 7}}), "key 'g': expected an object"},
      {with(targets({"Linear"}), "format", 7), "key 'format'"},
      {with(targets({"Linear"}), "ignore", "lm_head"), "key 'ignore': expected a list of modules"},
      {with(targets({"Linear"}), "ignore", {7}), "key 'ignore': expected names of modules"},
      {with(targets({"Linear"}), "ignore", {"model.layers.2.mlp.up_proj"}),
       "key 'ignore': found 'model.layers.2.mlp.up_proj', expected layers below 2 (num_hidden_"},
      {with(targets({"Linear"}), "ignore", {"model.layers.99999999999999999999"}),
       "expected layers below 2"},
      {with(targets({"Linear"}), "ignore", {"model.layers.-1.x"}), "expected layers below 2"},
      {no_format, "the key 'format' is missing beside mixed-precision"},
      {targets(nullptr), "key 'targets': expected modules, found none"},
      {targets(Json::array()), "key 'targets': expected modules, found none"},
      {targets({""}), "key 'targets': expected names of modules"},
      {targets({"model.layers.2.mlp.up_proj"}), "key 'targets': found 'model.layers.2."},
      {targets({"re:"}), "the expression is empty"},
      {targets({"re:(a"}), "a group without ')'"},
      {targets({"re:*"}), "nothing to repeat"},
      {group(7), "key 'weights': expected an object, found '7'"},
      {weights({{"num_bits", 0}}), "key 'num_bits': expected an integer from 1 to 64"},
      {weights({{"num_bits", "8"}}), "key 'num_bits'"},
      {weights({{"num_bits", 1e300}}), "key 'num_bits'"},
      {weights({{"num_bits", 4294967304}}), "key 'num_bits'"},
      {weights({{"group_size", 0}}), "key 'group_size': expected from 1 to 1048576 with strategy"},
      {weights({{"group_size", -2}}), "key 'group_size'"},
      {weights({{"group_size", UINT64_MAX}}), "key 'group_size'"},
      {weights({{"group_size", 32}, {"strategy", "channel"}}), "key 'group_size': expected null "},
      {weights({{"strategy", "group"}}), "key 'group_size': expected from 1"},
      {weights({{"actorder", "group"}}), "key 'actorder': expected null"},
      {weights({{"block_structure", {8, 8}}}), "key 'block_structure': expected null with"},
      {blocks({0, 128}), "key 'block_structure': expected [outputs, inputs], each from 1"},
      {blocks({128, -128}), "key 'block_structure'"},
      {blocks({128}), "key 'block_structure'"},
      {blocks({128, 1e9}), "key 'block_structure'"},
      {blocks({128, UINT64_MAX}), "key 'block_structure'"},
      {blocks("128x"), "key 'block_structure': expected [outputs, inputs], each from 1 to"},
      {blocks("128x128x"), "key 'block_structure'"},
      {blocks("9999999999999x1"), "key 'block_structure'"},
      {weights({{"symmetric", 1}}), "key 'symmetric': expected true or false"},
      {with(targets({"Linear"}), "kv_cache_scheme", 7), "key 'kv_cache_scheme': expected an obj"},
      {{{"quant_method", "modelopt"}}, "the key 'quant_algo' is missing"},
      {{{"quant_method", "modelopt"}, {"quantization", 7}},
       "key 'quantization': expected an object"},
      {{{"quant_method", "fbgemm_fp8"}, {"activation_scale_ub", -1}}, "key 'activation_scale_ub'"},
      {with(fp8, "weight_block_size", {128, 0}), "key 'weight_block_size': expected [outputs, "},
      {with(fp8, "weight_block_size", {-128, 128}), "key 'weight_block_size'"},
      {with(fp8, "weight_block_size", {4294967424, 128}), "key 'weight_block_size'"},
      {with(fp8, "weight_block_size", 128), "key 'weight_block_size'"},
      {with(awq, "group_size", 0), "key 'group_size': expected -1, or from 1 to 1048576, found 0"},
      {with(awq, "group_size", -2), "key 'group_size'"},
      {with(awq, "bits", nullptr), "the key 'bits' is missing"},
      {with(gptq, "group_size", 0), "key 'group_size': expected -1, or from 1 to"},
      {with(gptq, "group_size", nullptr), "the key 'group_size' is missing"},
      {with(gptq, "desc_act", "yes"), "key 'desc_act'"},
      {with(gptq, "dynamic", 7), "key 'dynamic': expected {expression: {key: value}}"},
      {with(gptq, "dynamic", {{"a", 7}}), "key 'dynamic': key 'a': expected {key: value}"},
      {with(gptq, "dynamic", {{"-:(", nullptr}}), "a group without ')'"},
  };
  for (const auto& [block, message] : wrong) {
    const Status status = read(block).status();
    EXPECT_EQ(status.code(), Code::kDataLoss) << message << "\n" << status.to_string();
    EXPECT_NE(status.message().find(message), std::string::npos) << message << "\n"
                                                                 << status.message();
    EXPECT_EQ(status.message().rfind(root_ + "/config.json: key 'quantization_config': ", 0), 0u)
        << status.message();
  }
}

// Whoever wrote the file must decide neither how long it takes to read nor what messages look like.
TEST_F(QuantizationTest, hostile_patterns_end_soon_and_in_a_refusal) {
  const std::string zero("a\0b", 3);
  const auto targets = [&](const Json& list) {
    return group({{"num_bits", 8}}, nullptr, "int-quantized", list);
  };
  const auto ignored = [&](const Json& list) {
    Json block = targets({"Linear"});
    block["ignore"] = list;
    return block;
  };
  const auto modelopt = [](const Json& list) {
    return Json{{"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"ignore", list}};
  };
  const auto awq = [](const Json& list) {
    return Json{
        {"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}, {"modules_to_not_convert", list}};
  };
  const auto fp8 = [](const Json& list) {
    return Json{{"quant_method", "fp8"}, {"ignored_layers", list}};
  };
  const auto many = [](size_t n, const std::function<std::string(size_t)>& text) {
    Json list = Json::array();
    for (size_t i = 0; i < n; ++i) list.push_back(text(i));
    return list;
  };
  std::string stars;
  for (int i = 0; i < 300; ++i) stars += "*a";
  const auto big = [](const std::string& part) {
    std::string text;
    while (text.size() < 1'000'000) text += part;
    return text;
  };
  const std::vector<Json> blocks = {
      targets({"re:" + std::string(1'000'000, 'a')}),
      targets({"re:" + std::string(1'000'000, '(')}),
      targets({"re:" + std::string(2000, '(') + std::string(2000, ')')}),
      targets({"re:" + big("[")}),
      targets({"re:" + big("\\w")}),
      targets({"re:" + big("$")}),
      targets({"re:" + zero}),
      targets({zero}),
      targets({std::string("Linear\0", 7)}),
      ignored({"re:(?:(?:(?:.{1,1000}){1,1000}){1,1000})x"}),
      ignored({"re:(?=(?:.*.*.*.*.*.*.*.*)x).*"}),
      ignored(many(50'000, [](size_t i) { return "re:" + std::to_string(i); })),
      ignored(many(3000, [](size_t i) { return "re:.*.*.*.*.*.*" + std::to_string(i) + "$"; })),
      modelopt({big("*a")}),
      modelopt({big("[")}),
      modelopt({big("*[")}),
      modelopt(many(1500, [&](size_t) { return stars; })),
      awq(many(100'000, [](size_t i) { return "x" + std::to_string(i); })),
      awq({big("model.")}),
      fp8({big("(a|")}),
      fp8(many(100'000, [](size_t i) { return "x" + std::to_string(i); })),
      {{"quant_method", big("\xC3\xA9\n\x1b[2J")}},
      {{"quant_method", zero}},
      {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 1}, {"dynamic", {{big("\n"), 7}}}},
  };
  for (size_t i = 0; i < blocks.size(); ++i) {
    Json config{{"num_hidden_layers", 4096}, {"quantization_config", blocks[i]}};
    const auto start = CpuClock::now();
    const auto made = Quantization::read(config, root_);
    const std::chrono::duration<double> took = CpuClock::now() - start;
    EXPECT_LT(took.count(), 2.0 * kSlowdown) << i;
    if (made.ok()) continue;
    EXPECT_LT(made.status().message().size(), 2000u) << i;
    EXPECT_NE(made.status().message().find("config.json: key '"), std::string::npos) << i;
    for (const char c : made.status().message()) EXPECT_GE(static_cast<unsigned char>(c), ' ') << i;
  }
  const auto refused = [&](const Json& block, const char* message) {
    const Json config{{"num_hidden_layers", 4096}, {"quantization_config", block}};
    const Status status = Quantization::read(config, root_).status();
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_NE(status.message().find(message), std::string::npos) << status.to_string();
  };
  refused(blocks[0], "(1000000 bytes): all patterns together take too many steps");
  refused(targets({"re:" + std::string(5000, 'a')}),
          "an expression of 5000 bytes, supported: 4096");
  refused(ignored(many(50'000, [](size_t i) { return "re:" + std::to_string(i); })),
          "all patterns together take too many steps");
  refused(awq(many(100'000, [](size_t i) { return "x" + std::to_string(i); })),
          "key 'modules_to_not_convert': pattern 'x");
  refused(targets({std::string("Linear\0", 7)}), "found 'Linear\\x00': the model has no such");
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

TEST_F(QuantizationTest, damaged_json_is_refused_with_its_place) {
  const std::string good = R"({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, )";
  const auto status = [&](const std::string& rest) {
    put("config.json", good + rest + "}");
    return load_model_config(root_).status();
  };
  EXPECT_NE(status(R"("quantization_config": {"quant_method": "awq", "quant_method": "fp8"})")
                .message()
                .find("quant_method"),
            std::string::npos);
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  const Status nested =
      status(R"("quantization_config": {"quant_method": "awq", "x": )" + deep + "}");
  EXPECT_EQ(nested.code(), Code::kDataLoss);
  EXPECT_NE(nested.message().find("nested deeper than 64"), std::string::npos) << nested.message();
}

}  // namespace
}  // namespace specd
