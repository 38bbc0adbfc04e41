// Descriptions of quantized models, written to a folder and read.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "core/model/checkpoint.h"
#include "core/model/model_config.h"
#include "core/model/quantization.h"

namespace specd {

inline const std::string kQuantized = std::string(SPECD_TEST_REFERENCE) + "/quantized/";
// The entry of a checkpoint: of its whole name, or of its name without the family at its end.
template <typename Map>
typename Map::const_iterator find_golden(const Map& goldens, const std::string& name) {
  const auto whole = goldens.find(name);
  return whole != goldens.end() ? whole : goldens.find(name.substr(0, name.rfind('_')));
}
// Every entry that names no family was found twice, as Llama and as Qwen3, but for a few.
template <typename Map>
void expect_both_families(const std::map<std::string, int>& seen, const Map& goldens) {
  for (const auto& [name, golden] : goldens) {
    const bool is_alone = name.ends_with("_llama") || name.ends_with("_qwen3") ||
                          name == "ct_int8_packed" || name == "ct_mixed" ||
                          name == "gptq_overrides";
    EXPECT_EQ(seen.contains(name) ? seen.at(name) : 0, is_alone ? 1 : 2) << name;
  }
}
inline constexpr const char* kMatrices[] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
using Layout = MatrixFormat::Layout;
using Scales = MatrixFormat::Scales;
using Inputs = MatrixFormat::Inputs;

// A few words for a format, so that tables of them can be read.
inline std::string words(const MatrixFormat* format) {
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

class QuantizationRig : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/specd_quantization_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    root_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

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

}  // namespace specd
