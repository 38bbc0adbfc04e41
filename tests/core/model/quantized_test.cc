// Quantized checkpoints against the makers' own code and numpy, which recorded what these tiny models
// compute (tests/reference/make_quantized_goldens.py). specd rounds the inputs of INT8 matrices as the
// file says, and never those of the others: their reading is that of the weights alone.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "core/base/to_size.h"
#include "tests/core/model/forward_rig.h"
#include "tests/core/model/safetensors_rig.h"

namespace specd {
namespace {

const std::string kFolder = SPECD_TEST_REFERENCE "/quantized/";

const Json& goldens() {
  static const Json all = parse_json_file(SPECD_TEST_REFERENCE "/quantized_goldens.json", 64u << 20)
                              .value()
                              .at("models");
  return all;
}

// Loads: the others are refused for what they ask of inputs.
std::vector<std::string> models() {
  std::vector<std::string> names;
  for (const auto& [name, golden] : goldens().items()) {
    if (name != "ct_int8_asymmetric_llama") names.push_back(name);
  }
  return names;
}

// The reading that rounds the inputs that are rounded here: those for INT8, not those for FP8.
const char* reading_of(const std::string& name) {
  if (name.starts_with("ct_int8_dynamic") || name.starts_with("ct_int8_static")) return "inputs";
  return name == "ct_mixed_llama" ? "int8_inputs" : "weights";
}

// Logits after the prompt, and greedy text, are those of a recorded reading.
void expect_reading(ForwardRig& rig, const std::vector<int32_t>& prompt, const Json& reading) {
  constexpr double kTie = 1e-5;  // none of the recorded steps is one
  const auto expected = reading.at("logits").get<std::vector<float>>();
  const auto gaps = reading.at("gaps").get<std::vector<double>>();
  const auto greedy = reading.at("greedy").get<std::vector<int32_t>>();
  rig.add_span(prompt, 0);
  std::vector<float> row = rig.run().back();
  ASSERT_EQ(row.size(), expected.size());
  double largest = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    largest = std::max(largest, std::abs(double{row[i]} - double{expected[i]}));
  }
  EXPECT_LT(largest, 2e-3);
  ASSERT_EQ(greedy.size(), 64u);
  for (size_t step = 0; step < greedy.size(); ++step) {
    ASSERT_GT(gaps[step], kTie) << "step " << step;
    ASSERT_EQ(argmax(row), greedy[step]) << "step " << step << ", gap " << gaps[step];
    rig.add_span({greedy[step]}, static_cast<int32_t>(prompt.size() + step));
    row = rig.run().back();
  }
}

class Quantized : public testing::TestWithParam<std::string> {
 protected:
  const Json& golden_ = goldens().at(GetParam());
  const Json& reading_ = golden_.at("readings").at(reading_of(GetParam()));
  const std::vector<int32_t> prompt_ = golden_.at("prompt").get<std::vector<int32_t>>();
  const std::vector<int32_t> greedy_ = reading_.at("greedy").get<std::vector<int32_t>>();
};

TEST_P(Quantized, logits_and_greedy_text_are_those_of_the_dequantized_model) {
  ForwardRig rig(kFolder + GetParam(), "", 2, true);
  expect_reading(rig, prompt_, reading_);
}

// Law 1.
TEST_P(Quantized, bits_do_not_depend_on_rows_threads_instruction_set_or_pages) {
  std::vector<int32_t> tokens = prompt_;
  tokens.insert(tokens.end(), greedy_.begin(), greedy_.end());
  std::vector<std::vector<float>> plain;
  ForwardRig single(kFolder + GetParam(), "scalar", 1, false);
  for (size_t i = 0; i < tokens.size(); ++i) {
    single.add_span({tokens[i]}, static_cast<int32_t>(i));
    plain.push_back(single.run().front());
  }
  const int32_t all = static_cast<int32_t>(tokens.size());
  for (const std::string& isa : available_isas()) {
    for (const int32_t n : {1, 2, 3, 5, 8, 16, 33, 64}) {
      ForwardRig rig(kFolder + GetParam(), isa, 1 + n % 3, true);
      for (int32_t begin = 0; begin < all; begin += n) {
        const int32_t end = std::min(begin + n, all);
        rig.add_span({tokens.begin() + begin, tokens.begin() + end}, begin);
        const auto logits = rig.run();
        for (int32_t i = begin; i < end; ++i) {
          ASSERT_TRUE(same_bits(logits[to_size(i - begin)], plain[to_size(i)]))
              << isa << ", " << n << " rows, row " << i;
        }
      }
    }
  }
}

// Each maker puts the scales elsewhere. With others, or with 1, the logits are not these.
TEST(QuantizedCache, in_fp8_with_the_checkpoints_scales_is_as_recorded) {
  for (const char* name : {"ct_fp8_static_llama", "ct_fp8_static_qwen3", "fp8_static_llama",
                           "fp8_static_qwen3", "modelopt_fp8_llama", "modelopt_fp8_qwen3"}) {
    SCOPED_TRACE(name);
    const Json& golden = goldens().at(name);
    const auto prompt = golden.at("prompt").get<std::vector<int32_t>>();
    ForwardRig rig(kFolder + name, "", 2, true, kernels::KvDType::kF8E4M3);
    expect_reading(rig, prompt, golden.at("readings").at("weights_fp8_kv"));
    ForwardRig plain(kFolder + name, "", 2, true);
    plain.add_span(prompt, 0);
    const std::vector<float> row = plain.run().back();
    double largest = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      largest = std::max(
          largest,
          std::abs(double{row[i]} -
                   golden.at("readings").at("weights_fp8_kv").at("logits")[i].get<double>()));
    }
    EXPECT_GT(largest, 4e-3) << "a cache in float32 would pass as well";
  }
}

// A copy of a checkpoint, some bytes of which are changed.
class ChangedCopy {
 public:
  explicit ChangedCopy(const std::string& model) {
    folder_ = (std::filesystem::temp_directory_path() / "specd-quantized-XXXXXX").string();
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    std::filesystem::copy(kFolder + model, folder_, std::filesystem::copy_options::recursive);
  }
  ~ChangedCopy() { std::filesystem::remove_all(folder_); }
  ChangedCopy(const ChangedCopy&) = delete;
  ChangedCopy& operator=(const ChangedCopy&) = delete;

  const std::string& folder() const { return folder_; }
  // Calls `change` with each byte of the tensors whose names end so.
  template <typename Change>
  void each_byte(const std::string& end, Change&& change) {
    std::map<int64_t, std::string> all;
    {
      const SafetensorsFile file = SafetensorsFile::open(path()).value();
      for (const auto& [name, view] : file.tensors()) {
        if (!name.ends_with(end)) continue;
        std::string bytes(static_cast<const char*>(view.data), view.bytes);
        for (size_t i = 0; i < bytes.size(); ++i) change(name, i, bytes[i]);
        all.emplace(static_cast<int64_t>(view.file_offset), std::move(bytes));
      }
    }
    EXPECT_FALSE(all.empty()) << end;
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    for (const auto& [offset, bytes] : all) {
      file.seekp(offset);
      file.write(bytes.data(), std::ssize(bytes));
    }
  }
  void replace(const std::string& tensor, int64_t at, const std::string& bytes) {
    each_byte(tensor, [&](const std::string&, size_t i, char& byte) {
      const auto from = static_cast<int64_t>(i) - at;
      if (from >= 0 && from < std::ssize(bytes)) byte = bytes[to_size(from)];
    });
  }
  Status load() const {
    const auto device = CpuDevice::create("", 1).value();
    const auto config = load_model_config(folder_);
    if (!config.ok()) return config.status();
    return Transformer::load(*device, folder_, config.value(), 8, 8, {}).status();
  }
  // Of the golden's prompt.
  std::vector<float> logits(const std::string& model) const {
    ForwardRig rig(folder_, "", 1, false);
    rig.add_span(goldens().at(model).at("prompt").get<std::vector<int32_t>>(), 0);
    return rig.run().back();
  }

  std::string path() const { return folder_ + "/model.safetensors"; }

 private:
  std::string folder_;
};

struct Damage {
  std::string model, tensor;
  int64_t at;                      // bytes from the tensor's first
  std::string bytes;               // in their place
  std::vector<std::string> parts;  // of the message
};

std::string bytes_of(float value) { return {reinterpret_cast<const char*>(&value), sizeof(value)}; }

TEST(QuantizedValues, that_cannot_be_are_refused_with_tensor_place_expected_and_found) {
  const std::string q = "model.layers.1.self_attn.q_proj.", half_zero(2, '\0'),
                    bf16_minus_one("\x80\xbf", 2), bf16_nan("\xc0\x7f", 2),
                    not_zero = ": expected a scale other than 0, found ";
  const std::string scale = "'" + q + "weight_scale', [5, 0]: expected a scale above 0, found ";
  const Damage all[] = {
      {"ct_int8_dynamic_llama", q + "weight_scale", 10, half_zero, {scale + "0"}},
      {"ct_int8_dynamic_llama", q + "weight_scale", 10, bf16_minus_one, {scale + "-1"}},
      {"ct_int8_dynamic_llama", q + "weight_scale", 10, bf16_nan, {scale + "nan"}},
      {"ct_int8_static_qwen3", q + "input_scale", 0, half_zero, {"input_scale'", "above 0"}},
      {"ct_fp8_static_llama",
       "model.layers.1.self_attn.k_scale",
       0,
       bf16_minus_one,
       {"k_scale': expected a scale from 2^-64 to 2^64, found -1"}},
      {"modelopt_fp8_llama",
       "model.layers.0.self_attn.v_proj.v_scale",
       0,
       bytes_of(NAN),
       {"v_scale': expected a scale from 2^-64 to 2^64, found nan"}},
      {"fp8_block_llama",
       q + "weight",
       64 + 3,
       "\x7f",
       {"weight', [1, 3]: expected a number, found a NaN"}},
      {"fp8_block_llama",
       q + "weight",
       64 + 3,
       "\xff",
       {"weight', [1, 3]: expected a number, found a NaN"}},
      {"fp8_block_llama",
       q + "weight_scale_inv",
       0,
       bytes_of(INFINITY),
       {"weight_scale_inv'", "found inf"}},
      {"fp8_block_llama",
       q + "weight_scale_inv",
       0,
       bytes_of(2e36f),
       {"weight_scale_inv', [0, 0]: expected a scale above 0, found 2e+36"}},
      {"gptq_llama",
       q + "scales",
       2 * (64 + 5),
       std::string("\x00\x7e", 2),  // [1, 5], a NaN in F16
       {"scales', [1, 5]: expected a scale other than 0, found nan"}},
      {"gptq_llama", q + "scales", 2 * (64 + 5), half_zero, {"scales', [1, 5]" + not_zero + "0"}},
      {"awq_llama", q + "scales", 2 * (64 + 5), half_zero, {"scales', [1, 5]" + not_zero + "0"}},
      {"awq_llama",
       q + "scales",
       0,
       std::string("\x00\x7c", 2),
       {"scales', [0, 0]" + not_zero + "inf"}},
      {"ct_int4_llama",
       q + "weight_scale",
       10,
       half_zero,
       {"weight_scale', [2, 1]" + not_zero + "0"}},
      {"fp8_block_llama",
       q + "weight_scale_inv",
       0,
       bytes_of(-1.0f),
       {"[0, 0]: expected a scale above 0, found -1"}},
      {"ct_int8_static_qwen3",
       q + "input_scale",
       0,
       bf16_nan,
       {"input_scale'", "above 0, found nan"}},
      {"ct_int8_static_qwen3",
       q + "input_scale",
       0,
       bf16_minus_one,
       {"input_scale'", "above 0, found -1"}},
      {"gptq_llama",
       q + "qzeros",
       4,
       "\x73",
       {"qzeros', [0, 1]: expected zero points of 7 or 8, since sym is true, found 3"}},
      {"ct_int4_llama",
       q + "weight_shape",
       0,
       "\x3f",
       {"weight_shape', [0]: expected 64, found 63"}},
      {"ct_int4_actorder_llama",
       q + "weight_g_idx",
       4,
       std::string("\x02\0\0\0", 4),
       {"weight_g_idx', [1]: expected a group from 0 to 1, found 2"}},
      {"gptq_llama",
       q + "g_idx",
       0,
       std::string("\xfe\xff\xff\xff", 4),
       {"g_idx', [0]", "found -2"}},
      {"gptq_llama",
       q + "g_idx",
       0,
       std::string("\x01\0\0\0", 4),
       {"g_idx', [0]: expected 0, since desc_act is false, found 1"}},
  };
  for (const Damage& each : all) {
    ChangedCopy copy(each.model);
    copy.replace(each.tensor, each.at, each.bytes);
    const Status status = copy.load();
    EXPECT_EQ(status.code(), Code::kDataLoss) << each.model << ", " << each.tensor;
    for (const std::string& part : each.parts) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  }
}

void rename(Json& header, const std::string& from, const std::string& to) {
  header[to] = header.at(from);
  header.erase(from);
}
// The first half of its values, in half of its first dimension; the others are of another tensor.
void cut(Json& header, const std::string& name) {
  Json& first = header.at(name);
  Json rest = first;
  const int64_t begin = first["data_offsets"][0], end = first["data_offsets"][1];
  first["shape"][0] = first["shape"][0].get<int64_t>() / 2;
  rest["shape"][0] = first["shape"][0];
  first["data_offsets"] = {begin, begin + (end - begin) / 2};
  rest["data_offsets"] = {begin + (end - begin) / 2, end};
  header["rest"] = rest;
}

TEST(QuantizedTensors, that_are_missing_cut_or_of_another_shape_or_type_are_refused) {
  const std::string q = "model.layers.1.self_attn.q_proj.", layer = "model.layers.0.self_attn.";
  const auto missing = [&](const std::string& name) {
    return [=](Json& header) { rename(header, q + name, "other"); };
  };
  const auto halved = [&](const std::string& name) {
    return [=](Json& header) { cut(header, q + name); };
  };
  const auto set = [&](const std::string& name, const char* key, const Json& value) {
    return [=](Json& header) { header.at(name)[key] = value; };
  };
  struct Change {
    std::string model;
    std::function<void(Json&)> change;
    std::string message;  // behind the file's name
  };
  const Change all[] = {
      {"ct_int8_dynamic_llama", missing("weight_scale"),
       q + "weight_scale': missing; expected with shape [64, 1] by "},
      {"ct_int4_llama", missing("weight_scale"), q + "weight_scale': missing; expected with shape"},
      {"ct_int4_llama", missing("weight_shape"), q + "weight_shape': missing"},
      {"ct_int4_llama", missing("weight_packed"), q + "weight_packed': missing"},
      {"gptq_llama", missing("scales"), q + "scales': missing; expected with shape [2, 64] by "},
      {"gptq_llama", missing("qzeros"), q + "qzeros': missing; expected with shape [2, 8] by "},
      {"awq_llama", missing("scales"), q + "scales': missing"},
      {"awq_llama", missing("qzeros"), q + "qzeros': missing"},
      {"modelopt_fp8_llama", missing("weight_scale"), q + "weight_scale': missing"},
      {"modelopt_fp8_llama", missing("input_scale"), q + "input_scale': missing"},
      {"ct_int8_static_qwen3", missing("input_scale"),
       q + "input_scale': missing; expected with shape [1] by "},
      {"ct_int4_actorder_llama", missing("weight_g_idx"), q + "weight_g_idx': missing"},
      {"fp8_block_llama", missing("weight_scale_inv"), q + "weight_scale_inv': missing"},
      {"ct_int4_llama", halved("weight_packed"),
       q + "weight_packed': shape [32, 8], expected [64, 8] for a matrix of [64, 64] by "},
      {"gptq_llama", halved("qweight"), q + "qweight': shape [4, 64], expected [8, 64] for "},
      {"gptq_llama", halved("scales"), q + "scales': shape [1, 64], expected [2, 64] for "},
      {"gptq_llama", halved("g_idx"), q + "g_idx': shape [32], expected [64] for "},
      {"awq_llama", halved("qweight"), q + "qweight': shape [32, 8], expected [64, 8] for "},
      {"awq_llama", halved("qzeros"), q + "qzeros': shape [1, 8], expected [2, 8] for "},
      {"ct_int8_dynamic_llama", halved("weight"), q + "weight': shape [32, 64], expected [64, 64]"},
      {"ct_int8_dynamic_llama", set(q + "weight_scale", "shape", {32, 2}),
       q + "weight_scale': shape [32, 2], expected [64, 1] for a matrix of [64, 64] by "},
      {"ct_int8_dynamic_llama", set(q + "weight_scale", "dtype", "I16"),
       q + "weight_scale': is I16, expected F32 or F16 or BF16 by "},
      {"ct_int8_dynamic_llama", set(q + "weight", "dtype", "F8_E4M3"),
       q + "weight': is F8_E4M3, expected I8 by "},
      {"awq_llama", set(q + "scales", "dtype", "U16"), q + "scales': is U16, expected F32 or F16"},
      {"modelopt_fp8_llama", set(layer + "k_proj.k_scale", "dtype", "I32"),
       layer + "k_proj.k_scale': expected one number, F32, F16 or BF16: "},
  };
  for (const Change& each : all) {
    ChangedCopy copy(each.model);
    change_header(copy.path(), each.change);
    const Status status = copy.load();
    EXPECT_EQ(status.code(), Code::kDataLoss) << each.model << each.message;
    const std::string place = "'" + copy.path() + "', tensor '" + each.message;
    EXPECT_NE(status.message().find(place), std::string::npos) << place << status.message();
  }
}

// Each tensor of a matrix missing, then half of it, and each scale 0, NaN and, where no maker writes
// such, negative; also those of the cache.
TEST_P(Quantized, tensors_and_scales_that_cannot_be_are_refused) {
  const std::string model = GetParam(),
                    layer = model.starts_with("modelopt_fp8_block") ? "0" : "1",  // its last
      attention = "model.layers." + layer + ".self_attn.", module = attention + "q_proj.";
  const bool may_be_negative =
      model.starts_with("awq") || model.starts_with("gptq") || model.starts_with("auto_round") ||
      model.find("int4") != std::string::npos || model.find("int8_groups") != std::string::npos ||
      model.find("int8_packed") != std::string::npos;
  const auto expect_refused = [&](const ChangedCopy& copy, const std::string& words) {
    const Status status = copy.load();
    EXPECT_EQ(status.code(), Code::kDataLoss) << words;
    EXPECT_NE(status.message().find(words), std::string::npos) << words << "\n" << status.message();
  };
  int n_seen = 0;
  const SafetensorsFile file =
      SafetensorsFile::open(kFolder + model + "/model.safetensors").value();
  for (const auto& entry : file.tensors()) {
    const std::string& name = entry.first;
    const TensorView& view = entry.second;
    const std::string of_tensor = "tensor '" + name + "': ";
    const bool is_of_cache =
        name.starts_with(attention) && !name.ends_with("_scale_inv") &&
        (name.ends_with("k_scale") || name.ends_with("v_scale") || name.ends_with("output_scale"));
    if (name.starts_with(module) && !name.ends_with(".bias") && !is_of_cache) {
      ++n_seen;
      // Without g_idx the order is that of k.
      if (!name.ends_with(".g_idx") || model.starts_with("gptq_actorder")) {
        ChangedCopy copy(model);
        // A file of GPTQ may leave matrices as they are, and then needs `weight`.
        const bool is_plain = model.starts_with("gptq_overrides") && name.ends_with(".qweight");
        change_header(copy.path(), [&](Json& header) { rename(header, name, "other"); });
        expect_refused(copy, "tensor '" + (is_plain ? module + "weight" : name) + "': missing");
      }
      if (!view.shape.empty() && view.shape[0] > 1) {
        ChangedCopy copy(model);
        change_header(copy.path(), [&](Json& header) { cut(header, name); });
        expect_refused(copy, of_tensor + "shape [" + std::to_string(view.shape[0] / 2));
      }
    } else if (!is_of_cache) {
      continue;
    }
    if (name.find("scale") == std::string::npos) continue;
    for (const auto& [bits, word] :
         {std::pair<uint32_t, std::string>{0, "0"}, {0x7fc00000, "nan"}, {0xbf800000, "-1"}}) {
      if (word == "-1" && may_be_negative) continue;
      std::string bytes(reinterpret_cast<const char*>(&bits), 4);
      if (view.type != TensorType::kF32) bytes = bytes.substr(2);
      if (view.type == TensorType::kF16 && word == "nan") bytes = std::string("\x00\x7e", 2);
      if (view.type == TensorType::kF16 && word == "-1") bytes = std::string("\x00\xbc", 2);
      ChangedCopy copy(model);
      copy.replace(name, 0, bytes);
      expect_refused(copy, "found " + word);
      expect_refused(copy, "'" + name + "'");
    }
  }
  EXPECT_GE(n_seen, 2);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Quantized, testing::ValuesIn(models()),
                         [](const auto& model) { return model.param; });

// AutoGPTQ writes a group for the inputs of a matrix that has fewer.
TEST(QuantizedTensors, of_fewer_inputs_than_a_group_have_one_group) {
  for (const std::string model : {"awq_channel_llama", "ct_int4_channel_llama"}) {
    ChangedCopy copy(model);
    const std::vector<float> before = copy.logits(model);
    const std::string path = copy.folder() + "/config.json";
    Json config = parse_json_file(path, 1 << 20).value();
    Json& description = config.at("quantization_config");
    if (model.starts_with("awq")) {
      description.at("group_size") = 128;
    } else {
      Json& weights = description.at("config_groups").at("group_0").at("weights");
      weights.at("group_size") = 128;
      weights.at("strategy") = "group";
    }
    std::ofstream(path) << config;
    EXPECT_TRUE(same_bits(copy.logits(model), before)) << model;
  }
}

// Codes in one file, their scales in another.
TEST(QuantizedTensors, in_several_files_are_those_of_one) {
  for (const std::string name : {"ct_int4_actorder_llama", "gptq_qwen3", "fp8_block_llama"}) {
    const ChangedCopy copy(name);
    Json map = Json::object();
    size_t n_split = 0;  // matrices
    for (const std::string end : {"scales", "others"}) {
      const std::string file = end + ".safetensors";
      std::filesystem::copy(copy.path(), copy.folder() + "/" + file);
      change_tensors(copy.folder() + "/" + file,
                     [&](const std::string& tensor, Json&, std::string&) {
                       const bool is_scale = tensor.find("scale") != std::string::npos;
                       if (is_scale != (end == "scales")) return false;
                       n_split += is_scale ? 1 : 0;
                       map[tensor] = file;
                       return true;
                     });
    }
    ASSERT_GE(n_split, 14u) << name;
    std::filesystem::remove(copy.path());
    const std::string index = copy.folder() + "/model.safetensors.index.json";
    std::ofstream(index) << Json{{"weight_map", map}}.dump();
    const auto tokens = goldens().at(name).at("prompt").get<std::vector<int32_t>>();
    std::vector<std::vector<float>> logits;
    for (const std::string& folder : {kFolder + name, copy.folder()}) {
      ForwardRig rig(folder, "", 1, false);
      rig.add_span(tokens, 0);
      const std::vector<float> last = rig.run().back();
      EXPECT_TRUE(logits.empty() || same_bits(last, logits.back())) << name;
      logits.push_back(last);
    }
    // Without one scale: the index is at fault.
    const auto scale = std::ranges::find_if(
        map.items(), [](const auto& each) { return each.value() == "scales.safetensors"; });
    const std::string lost = scale.key();
    map.erase(lost);
    std::ofstream(index) << Json{{"weight_map", map}}.dump();
    const Status status = copy.load();
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_NE(status.message().find("'" + index + "': weight_map, tensor '" + lost + "': missing"),
              std::string::npos)
        << status.message();
  }
}

// Two that differ, under names of two makers.
TEST(QuantizedTensors, scales_of_the_cache_that_contradict_each_other_are_refused) {
  const std::string layer = "model.layers.0.self_attn.";
  ChangedCopy copy("modelopt_fp8_llama");
  copy.replace(layer + "v_proj.v_scale", 0, bytes_of(0.125f));
  change_header(copy.path(), [&](Json& header) {
    rename(header, layer + "v_proj.v_scale", layer + "kv_scale");
  });
  const Status status = copy.load();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find("kv_scale': expected "), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(", as another tensor of the layer says, found 0.125"),
            std::string::npos)
      << status.message();
}

TEST(QuantizedTensors, groups_that_do_not_divide_the_inputs_are_refused) {
  const std::pair<const char*, std::vector<std::string>> models[] = {
      {"gptq_llama", {"quantization_config", "group_size"}},
      {"awq_llama", {"quantization_config", "group_size"}},
      {"ct_int4_llama",
       {"quantization_config", "config_groups", "group_0", "weights", "group_size"}},
  };
  for (const auto& [model, keys] : models) {
    ChangedCopy copy(model);
    const std::string path = copy.folder() + "/config.json";
    Json config = parse_json_file(path, 1 << 20).value();
    Json* at = &config;
    for (const std::string& key : keys) at = &at->at(key);
    *at = 48;
    std::ofstream(path) << config;
    const Status status = copy.load();
    EXPECT_EQ(status.code(), Code::kDataLoss) << model;
    EXPECT_NE(status.message().find(" inputs, expected a multiple of the group_size 48 of "),
              std::string::npos)
        << model << status.message();
  }
}

// Makers write -1 for all inputs when they do not use the order.
TEST(QuantizedTensors, an_order_of_groups_is_unused_only_as_a_whole) {
  const std::string name = "model.layers.1.self_attn.q_proj.weight_g_idx",
                    unused("\xff\xff\xff\xff", 4);
  for (const int64_t k : {0, 5}) {
    ChangedCopy copy("ct_int4_actorder_llama");
    copy.replace(name, 4 * k, unused);
    const Status status = copy.load();
    EXPECT_EQ(status.code(), Code::kDataLoss);
    const std::string expected = k == 0
                                     ? "weight_g_idx', [1]: expected -1, as before it, found "
                                     : "weight_g_idx', [5]: expected a group from 0 to 1, found -1";
    EXPECT_NE(status.message().find(expected), std::string::npos) << status.message();
  }
  ChangedCopy copy("ct_int4_actorder_llama");
  copy.each_byte(name, [](const std::string&, size_t, char& byte) { byte = '\xff'; });
  EXPECT_TRUE(copy.load().ok());
}

// Newer versions of GPTQModel store zero points as they are under the name of the first format.
TEST(QuantizedValues, symmetric_zero_points_of_gptq_are_the_middle_however_they_are_stored) {
  ChangedCopy copy("gptq_llama");
  const std::vector<float> before = copy.logits("gptq_llama");
  copy.each_byte(".qzeros", [](const std::string&, size_t, char& byte) {
    EXPECT_EQ(byte, '\x77');
    byte = '\x88';
  });
  EXPECT_TRUE(same_bits(copy.logits("gptq_llama"), before));
}

// Zero points 0, 5 and 8, from which GPTQModel subtracts one on the whole word.
TEST(QuantizedValues, a_zero_point_of_gptq_that_is_0_borrows_from_its_neighbors) {
  const std::string module = "model.layers.0.self_attn.q_proj";
  ChangedCopy copy("gptq_asymmetric_llama");
  copy.replace(module + ".qzeros", 0, "\x3f\x77\x77\x77");
  const ModelConfig config = load_model_config(copy.folder()).value();
  const Checkpoint checkpoint = Checkpoint::open(copy.folder()).value();
  const auto matrix = QuantizedMatrix::open(
      checkpoint, module, 64, 64, *config.quantization.of(module), [](const std::string&) {});
  ASSERT_TRUE(matrix.ok()) << matrix.status().message();
  std::vector<uint8_t> codes(8 * 64), zeros(8 * 2);
  std::vector<float> scales(8 * 2);
  ASSERT_TRUE(matrix.value().read(0, 8, codes.data(), scales.data(), zeros.data()).ok());
  std::vector<int> first;
  for (size_t row = 0; row < 8; ++row) first.push_back(zeros[row * 2]);
  EXPECT_EQ(first, (std::vector<int>{0, 5, 8, 8, 8, 8, 8, 8}));
}

// AutoRound writes such. Queries and keys that both change their sign, with their biases, give the same
// scores.
TEST(QuantizedValues, scales_of_groups_may_be_negative) {
  const std::pair<std::string, std::vector<std::string>> models[] = {
      {"gptq_llama", {".scales", ".bias"}},
      {"awq_llama", {".scales", ".bias"}},
      {"ct_int4_llama", {".weight_scale"}}};
  for (const auto& [model, names] : models) {
    ChangedCopy copy(model);
    const std::vector<float> before = copy.logits(model);
    for (const char* module : {"q_proj", "k_proj"}) {
      for (const std::string& name : names) {
        copy.each_byte(module + name, [](const std::string&, size_t i, char& byte) {
          if (i % 2 == 1) byte = static_cast<char>(byte ^ 0x80);  // F16 and BF16
        });
      }
    }
    EXPECT_TRUE(same_bits(copy.logits(model), before)) << model;
  }
}

TEST(QuantizedValues, a_scale_of_the_cache_for_keys_alone_is_refused) {
  ChangedCopy copy("modelopt_fp8_llama");
  change_header(copy.path(), [](Json& header) {
    rename(header, "model.layers.0.self_attn.v_proj.v_scale", "model.layers.0.self_attn.q_scale");
  });
  EXPECT_EQ(copy.load().message(),
            "'" + copy.path() +
                "', 'model.layers.0.self_attn': expected a scale of the cache for keys and one for "
                "values, found one for keys alone");
}

TEST(QuantizedPlan, holds_what_was_planned_from_the_headers) {
  for (const std::string& name : models()) {
    const ForwardRig rig(kFolder + name, "", 1, false);
    const auto planned =
        Transformer::plan(*rig.device, kFolder + name, rig.config, 300, 300, Split());
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    EXPECT_EQ(planned.value().weights, rig.model->held().front().weights) << name;
    EXPECT_EQ(planned.value().activations, rig.model->held().front().activations) << name;
  }
}

}  // namespace
}  // namespace specd
