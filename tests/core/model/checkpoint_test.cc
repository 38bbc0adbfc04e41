#include "core/model/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/core/model/safetensors_rig.h"

namespace specd {
namespace {

namespace fs = std::filesystem;
const std::string kModels = std::string(SPECD_TEST_REFERENCE) + "/models/";
constexpr const char* kIndex = "/model.safetensors.index.json";

// A writable copy of a checkpoint of the tree.
class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/specd_checkpoint_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    root_ = folder;
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string copy(const std::string& name) {
    const std::string to = root_ + "/" + name;
    fs::remove_all(to);
    fs::copy(kModels + name, to);
    return to;
  }
  static Json index_of(const std::string& folder) {
    return parse_json_file(folder + kIndex, 1 << 20).value();
  }
  static Status open_with(const std::string& folder, const Json& index) {
    std::ofstream(folder + kIndex) << index.dump();
    return Checkpoint::open(folder).status();
  }
  static Status check(const std::string& folder) {
    const auto checkpoint = Checkpoint::open(folder);
    if (!checkpoint.ok()) return checkpoint.status();
    return check_tensors(checkpoint.value(), load_model_config(folder).value());
  }

  std::string root_;
};

TEST_F(CheckpointTest, shards_are_one_checkpoint) {
  const Checkpoint checkpoint = Checkpoint::open(kModels + "mistral").value();
  EXPECT_GT(checkpoint.files().size(), 3u);
  size_t tensors = 0;
  for (const SafetensorsFile& file : checkpoint.files()) tensors += file.tensors().size();
  EXPECT_EQ(checkpoint.tensors().size(), tensors);
  EXPECT_TRUE(check_tensors(checkpoint, load_model_config(kModels + "mistral").value()).ok());
}

TEST_F(CheckpointTest, an_index_that_lies_is_refused_with_its_place) {
  const std::string folder = copy("mistral");
  const Json good = index_of(folder);
  const std::string tensor = "model.norm.weight", shard = good["weight_map"][tensor];
  const auto refused = [&](const Json& index, const std::string& words) {
    const Status status = open_with(folder, index);
    EXPECT_NE(status.message().find(words), std::string::npos) << status.to_string();
    EXPECT_NE(status.message().find(folder), std::string::npos) << status.to_string();
    EXPECT_TRUE(status.code() == Code::kDataLoss || status.code() == Code::kNotFound)
        << status.to_string();
  };
  for (const char* name :
       {"../model.safetensors", "/etc/passwd", "sub/model.safetensors", ".hidden.safetensors",
        "model.bin", "", "a\nb.safetensors", "..", "%2e%2e.safetensors", "\xC0\xAE.safetensors"}) {
    Json index = good;
    index["weight_map"][tensor] = std::string(name);
    std::ofstream(folder + kIndex) << index.dump(-1, ' ', false, Json::error_handler_t::replace);
    const Status status = Checkpoint::open(folder).status();
    EXPECT_EQ(status.code(), Code::kDataLoss) << name;
    EXPECT_NE(status.message().find("weight_map, 'model.norm.weight': expected the name of a "
                                    ".safetensors file of this folder"),
              std::string::npos)
        << status.message();
  }
  Json index = good;
  index["weight_map"][tensor] = std::string(300, 'a') + ".safetensors";
  refused(index, "expected the name");
  index["weight_map"][tensor] = "not-there.safetensors";
  refused(index, "cannot open");
  index["weight_map"][tensor] = 7;
  refused(index, "expected the name");
  index = good;
  index["weight_map"]["extra.weight"] = shard;
  refused(index, "weight_map, 'extra.weight': '" + shard + "' has no such tensor");
  for (const Json& wrong : {Json(), Json::array(), Json::object(), Json{{"weight_map", 3}},
                            Json{{"weight_map", Json::object()}}}) {
    refused(wrong, "weight_map");
  }
  fs::resize_file(folder + "/" + shard, 100);
  refused(good, shard);
}

TEST_F(CheckpointTest, too_many_shards_are_refused_before_one_is_opened) {
  const std::string folder = copy("mistral");
  Json index = index_of(folder);
  for (int i = 0; i < 2000; ++i) {
    index["weight_map"]["t" + std::to_string(i)] = "s" + std::to_string(i) + ".safetensors";
  }
  EXPECT_NE(open_with(folder, index).message().find("more than 1024 files"), std::string::npos);
}

TEST_F(CheckpointTest, a_tensor_of_an_index_that_is_missing_is_named) {
  const std::string folder = copy("mistral");
  Json index = index_of(folder);
  index["weight_map"].erase("model.layers.1.mlp.up_proj.weight");
  std::ofstream(folder + kIndex) << index.dump();
  EXPECT_NE(
      check(folder).message().find(
          "model.safetensors.index.json': weight_map, tensor 'model.layers.1.mlp.up_proj.weight': "
          "missing; expected with shape [80, 48]"),
      std::string::npos)
      << check(folder).message();
}

TEST_F(CheckpointTest, a_tensor_that_a_forward_would_leave_out_is_refused) {
  const std::string folder = copy("qwen3");
  const std::string path = folder + "/model.safetensors";
  EXPECT_TRUE(check(folder).ok());
  // Read as a Llama, its norms would be left out in silence.
  Json config = parse_json_file(folder + "/config.json", 1 << 20).value();
  const Json qwen3 = config;
  config["architectures"] = {"LlamaForCausalLM"};
  config["model_type"] = "llama";
  for (const char* key : {"layer_types", "sliding_window", "use_sliding_window"}) config.erase(key);
  std::ofstream(folder + "/config.json") << config.dump();
  const Status status = check(folder);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("model.safetensors', tensor 'model.layers.0.self_attn.k_norm."
                                  "weight': a forward of LlamaForCausalLM as config.json describes "
                                  "it would leave it out"),
            std::string::npos)
      << status.message();
  std::ofstream(folder + "/config.json") << qwen3.dump();
  // Harmless company.
  change_header(path, [](Json& header) {
    for (const char* name : {"model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight",
                             "medusa_head.0.0.linear.weight"}) {
      header[name] = {{"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
    }
  });
  EXPECT_TRUE(check(folder).ok()) << check(folder).to_string();
}

TEST_F(CheckpointTest, quantized_weights_are_refused_with_a_way_out) {
  const std::string folder = copy("llama_bias");
  for (const auto& [dtype, is_known] : {std::pair{"F8_E4M3", true},
                                        {"F8_E5M2", true},
                                        {"I8", true},
                                        {"U8", true},
                                        {"F8_E8M0", false},
                                        {"F6_E2M3", false},
                                        {"F4", false}}) {
    const std::string path = folder + "/model.safetensors";
    fs::copy_file(kModels + "llama_bias/model.safetensors", path,
                  fs::copy_options::overwrite_existing);
    change_header(path, [&, dtype = dtype](Json& header) {
      Json& tensor = header["model.layers.0.mlp.up_proj.weight"];
      const int64_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
      tensor["dtype"] = dtype;
      tensor["shape"] = {80, 48};
      tensor["data_offsets"] = {begin, begin + 80 * 48};
      header["filler"] = {{"dtype", "U8"},
                          {"shape", {end - begin - 80 * 48}},
                          {"data_offsets", {begin + 80 * 48, end}}};
    });
    const Status quantized = check(folder);
    EXPECT_EQ(quantized.code(), Code::kUnsupported) << quantized.to_string();
    const std::string front = "tensor 'model.layers.0.mlp.up_proj.weight': ";
    const std::string words =
        is_known ? "weights of type " + std::string(dtype) + ", supported are F32, F16 and BF16"
                 : "dtype '" + std::string(dtype) + "', known are F64 ";
    for (const std::string& part :
         {front + words,
          std::string("; only linear layers can be quantized, in a layout that specd "
                      "reads; use the checkpoint that this one was made from")}) {
      EXPECT_NE(quantized.message().find(part), std::string::npos) << quantized.message();
    }
  }
}

TEST_F(CheckpointTest, a_folder_of_gguf_is_refused_by_its_name) {
  const std::string folder = copy("llama_bias");
  fs::rename(folder + "/model.safetensors", folder + "/model-Q4_K_M.gguf");
  const Status status = Checkpoint::open(folder).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_EQ(status.message(), "'" + folder +
                                  "/model-Q4_K_M.gguf': GGUF is not read; use the safetensors "
                                  "files that it was made from");
}

TEST_F(CheckpointTest, weights_in_another_format_are_refused_with_a_way_out) {
  const std::string folder = root_ + "/old";
  fs::create_directory(folder);
  const Status nothing = Checkpoint::open(folder).status();
  EXPECT_EQ(nothing.code(), Code::kNotFound);
  EXPECT_EQ(nothing.message(),
            "'" + folder +
                "': there is neither model.safetensors nor model.safetensors.index.json in it; "
                "expected the folder of a model or a head");
  const Status gone = Checkpoint::open(folder + "/gone").status();
  EXPECT_EQ(gone.code(), Code::kNotFound);
  EXPECT_NE(gone.message().find("/gone/model.safetensors': cannot open"), std::string::npos)
      << gone.message();
  std::ofstream(folder + "/model.safetensors") << "version https://git-lfs.github.com/spec/v1\n";
  EXPECT_NE(
      Checkpoint::open(folder).status().message().find("model.safetensors': a Git LFS pointer"),
      std::string::npos);
  fs::remove(folder + "/model.safetensors");
  std::ofstream(folder + "/pytorch_model.bin") << "PK";
  const Status pickled = Checkpoint::open(folder).status();
  EXPECT_EQ(pickled.code(), Code::kUnsupported);
  EXPECT_EQ(pickled.message(),
            "'" + folder +
                "/pytorch_model.bin': pickled weights are not loaded (loading them can run code); "
                "convert them with the script of the SDK: python3 "
                "sdk/tools/pickle_to_safetensors.py '" +
                folder + "'");
  EXPECT_TRUE(
      fs::exists(std::string(SPECD_TEST_REFERENCE) + "/../../sdk/tools/pickle_to_safetensors.py"));
  // Any other name: the first one.
  fs::remove(folder + "/pytorch_model.bin");
  for (const char* name : {"/training.txt", "/b.pth", "/medusa_lm_head.pt", "/z.bin"}) {
    std::ofstream(folder + name) << "PK";
  }
  const Status other = Checkpoint::open(folder).status();
  EXPECT_NE(other.message().find("b.pth': pickled weights are not loaded"), std::string::npos)
      << other.message();
  // A file alone.
  const Status alone = Checkpoint::open_file(folder + "/medusa_lm_head.pt").status();
  EXPECT_EQ(alone.code(), Code::kUnsupported);
  EXPECT_NE(alone.message().find("pickle_to_safetensors.py '" + folder +
                                 "/medusa_lm_head.pt', and name the .safetensors file"),
            std::string::npos)
      << alone.message();
  EXPECT_EQ(Checkpoint::open_file(folder + "/training.txt").status().code(), Code::kDataLoss);
  EXPECT_EQ(Checkpoint::open_file(folder + "/gone.pt").status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace specd
