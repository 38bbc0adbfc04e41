#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "tests/core/model/quantization_rig.h"
#include "tests/cpu_clock.h"

namespace specd {
namespace {

class QuantizationRefusals : public QuantizationRig {};

TEST_F(QuantizationRefusals, what_is_not_read_is_refused_by_name) {
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

TEST_F(QuantizationRefusals, what_is_wrong_in_itself_is_refused_with_its_place) {
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
  const Json beyond = {"lm_head", "model.layers.2.mlp.up_proj"};
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
      {{{"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"exclude_modules", beyond}},
       "key 'exclude_modules': found 'model.layers.2.mlp.up_proj', expected layers below 2"},
      {{{"quant_method", "fbgemm_fp8"}, {"modules_to_not_convert", beyond}},
       "key 'modules_to_not_convert': found 'model.layers.2.mlp.up_proj', expected layers below"},
      {with(fp8, "modules_to_not_convert", beyond), "key 'modules_to_not_convert': found 'model."},
      {with(awq, "modules_to_not_convert", beyond), "key 'modules_to_not_convert': found 'model."},
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
TEST_F(QuantizationRefusals, hostile_patterns_end_soon_and_in_a_refusal) {
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

TEST_F(QuantizationRefusals, damaged_json_is_refused_with_its_place) {
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
