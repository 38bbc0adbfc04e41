// Weights that a plugin names, from a file to the result of a matrix, against float64.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/to_size.h"
#include "core/model/checkpoint.h"
#include "core/model/model_config.h"
#include "core/model/number_at.h"
#include "core/plugin/instance/plugin_config.h"
#include "core/services/weights.h"
#include "specd/plugin_api/services/ops.h"
#include "specd/plugin_api/services/target.h"
#include "specd/plugin_api/services/weights.h"
#include "tests/core/model/safetensors_rig.h"
#include "tests/core/services/services_rig.h"
#include "tests/kernels/code_cases.h"

namespace specd {
namespace {

namespace fs = std::filesystem;

struct Stored {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
// float32 values that are bfloat16 too, and their bfloat16 bytes.
std::vector<float> short_floats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(n);
  for (float& each : values) {
    each = (static_cast<float>(random() % 2001) - 1000) / 1024;
    uint32_t bits = 0;
    std::memcpy(&bits, &each, 4);
    bits &= 0xffff0000u;
    std::memcpy(&each, &bits, 4);
  }
  return values;
}
std::string as_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> halves;
  for (const float each : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &each, 4);
    halves.push_back(static_cast<uint16_t>(bits >> 16));
  }
  return bytes_of(halves);
}

void write(const std::string& path, const std::vector<Stored>& tensors) {
  Json header = Json::object();
  std::string data;
  for (const Stored& each : tensors) {
    header[each.name] = {{"dtype", each.dtype},
                         {"shape", each.shape},
                         {"data_offsets", {data.size(), data.size() + each.bytes.size()}}};
    data += each.bytes;
  }
  const std::string text = header.dump();
  const uint64_t n = text.size();
  std::ofstream(path, std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&n), 8) << text << data;
}

class WeightsTest : public ServicesTest {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/specd_weights_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    root_ = folder;
    fs::create_directory(root_ + "/head");
    write(root_ + "/head/model.safetensors",
          {{"q", "BF16", {3, 20}, as_bf16(q_)},
           {"k", "BF16", {2, 20}, as_bf16(k_)},
           {"norm", "BF16", {20}, as_bf16(norm_)},
           {"bias", "F32", {5}, bytes_of(bias_)},
           {"wide", "F64", {3}, bytes_of(std::vector<double>{0.5, -2, 1e300})},
           {"d2t", "I64", {4}, bytes_of(std::vector<int64_t>{0, 7, -1, 2147483647})},
           {"far", "I64", {2}, bytes_of(std::vector<int64_t>{1, 2147483648})},
           {"t2d", "BOOL", {3}, bytes_of(std::vector<uint8_t>{1, 0, 1})},
           {"none at all", "U8", {0, INT64_MAX, 2}, ""},
           {"short", "F8_E4M3", {2, 20}, std::string(40, '\1')}});
    std::ofstream(root_ + "/head/config.json") << R"({"layers": 2, "norm": {"eps": 0.5}})";
    owner_.device_type = SPECD_DEV_CPU;
    owner_.quota_bytes = 100000;
    call_.owner = &owner_;
  }
  void TearDown() override { fs::remove_all(root_); }

  const specd_config* configure(Json config, const std::string& directory = "") {
    config_ = PluginConfig::make(std::move(config), nullptr, directory).value();
    return config_->get();
  }
  // The status of open(), and what was reported.
  std::pair<specd_status, std::string> open(const specd_config* config, specd_weights** out) {
    std::string text;
    const PluginScope scope(owner_.label, &text);
    const specd_status status = weights().open(host_, &owner_, config, "weights", out);
    return {status, text};
  }
  specd_weights* opened() {
    specd_weights* weights = nullptr;
    const auto [status, text] = open(configure({{"weights", root_ + "/head"}}), &weights);
    EXPECT_EQ(status, SPECD_OK) << text;
    return weights;
  }
  const specd_weights_api& weights() { return table<specd_weights_api>(SPECD_SERVICE_WEIGHTS); }
  std::pair<specd_status, std::string> matrix(specd_weights* of, std::vector<const char*> names,
                                              int64_t n_out, int64_t n_in, specd_matrix** out) {
    std::string text;
    const PluginScope scope(owner_.label, &text);
    const specd_status status = weights().matrix(
        host_, &owner_, of, names.data(), static_cast<uint32_t>(names.size()), n_out, n_in, out);
    return {status, text};
  }
  std::pair<specd_status, std::string> tensor(specd_weights* of, const char* name,
                                              std::vector<int64_t> shape, uint8_t code,
                                              uint8_t bits, specd_tensor* out) {
    std::string text;
    const PluginScope scope(owner_.label, &text);
    const specd_status status =
        weights().tensor(host_, &owner_, of, name, static_cast<uint32_t>(shape.size()),
                         shape.data(), code, bits, out);
    return {status, text};
  }

  std::string root_;
  std::unique_ptr<PluginConfig> config_;
  const std::vector<float> q_ = short_floats(3 * 20, 1), k_ = short_floats(2 * 20, 2),
                           norm_ = short_floats(20, 3), bias_ = short_floats(5, 4);
};

TEST_F(WeightsTest, tensors_are_found_by_name_and_by_number_as_stored) {
  specd_weights* of = opened();
  specd_tensor found{};
  ASSERT_EQ(weights().find(host_, of, "q", 0, nullptr, &found), SPECD_OK);
  EXPECT_EQ(found.dtype_code, SPECD_DT_BFLOAT);
  EXPECT_EQ(found.dtype_bits, 16);
  EXPECT_EQ(found.rank, 2u);
  EXPECT_EQ(found.shape[0], 3);
  EXPECT_EQ(found.shape[1], 20);
  EXPECT_EQ(found.device_type, SPECD_DEV_CPU);
  EXPECT_EQ(std::memcmp(found.data, as_bf16(q_).data(), 120), 0);
  ASSERT_EQ(weights().find(host_, of, "t2d", 0, nullptr, &found), SPECD_OK);
  EXPECT_EQ(found.dtype_code, SPECD_DT_BOOL);
  EXPECT_EQ(found.byte_capacity, 3u);
  EXPECT_EQ(weights().find(host_, of, "none", 0, nullptr, &found), SPECD_E_PRECONDITION);
  EXPECT_EQ(weights().find(host_, of, "short", 0, nullptr, &found), SPECD_E_UNSUPPORTED);
  ASSERT_EQ(weights().find(host_, of, "none at all", 0, nullptr, &found), SPECD_OK);
  EXPECT_EQ(found.byte_capacity, 0u);
  std::vector<std::string> names;
  const char* name = nullptr;
  for (uint32_t i = 0; i < 20; ++i) {
    if (weights().find(host_, of, nullptr, i, &name, &found) != SPECD_E_PRECONDITION)
      names.emplace_back(name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"bias", "d2t", "far", "k", "none at all", "norm", "q",
                                             "short", "t2d", "wide"}));
  const specd_config* config = weights().config(host_, of);
  ASSERT_NE(config, nullptr);
  int64_t layers = 0;
  double eps = 0;
  EXPECT_EQ(config->get_i64(config, "layers", &layers), SPECD_OK);
  EXPECT_EQ(config->get_f64(config, "norm.eps", &eps), SPECD_OK);
  EXPECT_EQ(layers, 2);
  EXPECT_EQ(eps, 0.5);
}

TEST_F(WeightsTest, a_matrix_of_two_tensors_multiplies_as_they_do_and_is_made_once) {
  specd_weights* of = opened();
  specd_matrix *both = nullptr, *again = nullptr;
  ASSERT_EQ(matrix(of, {"q", "k"}, 5, 20, &both).second, "");
  EXPECT_EQ(owner_.used_bytes, 5u * 20 * 2);
  ASSERT_EQ(matrix(of, {"q", "k"}, 5, 20, &again).second, "");
  EXPECT_EQ(again, both);
  EXPECT_EQ(owner_.used_bytes, 5u * 20 * 2) << "charged once";
  specd_tensor bias{};
  ASSERT_EQ(tensor(of, "bias", {5}, SPECD_DT_FLOAT, 32, &bias).second, "");
  std::vector<float> x = short_floats(4 * 20, 9), out(4 * 5);
  const specd_tensor x_t = host_f32(x.data(), {4, 20}), out_t = host_f32(out.data(), {4, 5});
  const auto& ops = table<specd_ops>(SPECD_SERVICE_OPS);
  for (const specd_tensor* with :
       {static_cast<const specd_tensor*>(nullptr), static_cast<const specd_tensor*>(&bias)}) {
    ASSERT_EQ(ops.linear(host_, &call_, both, &x_t, with, &out_t), SPECD_OK) << call_.text;
    for (size_t r = 0; r < 4; ++r) {
      for (size_t j = 0; j < 5; ++j) {
        double sum = with == nullptr ? 0 : bias_[j];
        for (size_t i = 0; i < 20; ++i) {
          const float w = j < 3 ? q_[j * 20 + i] : k_[(j - 3) * 20 + i];
          sum += static_cast<double>(x[r * 20 + i]) * w;
        }
        EXPECT_NEAR(out[r * 5 + j], sum, 1e-5);
      }
    }
  }
  // That it is there does not let the same names pass for another shape.
  EXPECT_EQ(matrix(of, {"q", "k"}, 5, 21, &again).first, SPECD_E_DATA);
  EXPECT_EQ(matrix(of, {"q", "k"}, 6, 20, &again).first, SPECD_E_DATA);
  EXPECT_EQ(again, nullptr);
  // Another instance shares it, and is charged as well.
  specd_owner other;
  other.quota_bytes = 1000;
  other.device_type = SPECD_DEV_CPU;
  specd_weights* same = nullptr;
  ASSERT_EQ(
      weights().open(host_, &other, configure({{"weights", root_ + "/head"}}), "weights", &same),
      SPECD_OK);
  EXPECT_EQ(same->file, of->file) << "mapped once";
  const char* names[] = {"q", "k"};
  ASSERT_EQ(weights().matrix(host_, &other, same, names, 2, 5, 20, &again), SPECD_OK);
  EXPECT_EQ(again, both);
  EXPECT_EQ(other.used_bytes, 5u * 20 * 2);
  call_.owner = &other;
  EXPECT_EQ(ops.linear(host_, &call_, both, &x_t, nullptr, &out_t), SPECD_OK);
  other.matrices.clear();
  EXPECT_EQ(ops.linear(host_, &call_, both, &x_t, nullptr, &out_t), SPECD_E_INVALID);
  expect_text("ops.linear: not a matrix of this instance");
}

TEST_F(WeightsTest, dense_copies_have_the_type_that_was_asked_for) {
  specd_weights* of = opened();
  specd_tensor got{};
  ASSERT_EQ(tensor(of, "norm", {20}, SPECD_DT_FLOAT, 32, &got).second, "");
  EXPECT_EQ(std::memcmp(got.data, norm_.data(), 80), 0);
  ASSERT_EQ(tensor(of, "q", {3, 20}, SPECD_DT_BFLOAT, 16, &got).second, "");
  EXPECT_EQ(std::memcmp(got.data, as_bf16(q_).data(), 120), 0);
  ASSERT_EQ(tensor(of, "wide", {3}, SPECD_DT_FLOAT, 32, &got).second, "");
  const auto* wide = static_cast<const float*>(got.data);
  EXPECT_EQ(wide[0], 0.5f);
  EXPECT_EQ(wide[1], -2.0f);
  EXPECT_TRUE(std::isinf(wide[2]));
  ASSERT_EQ(tensor(of, "d2t", {4}, SPECD_DT_INT, 32, &got).second, "");
  const auto* d2t = static_cast<const int32_t*>(got.data);
  EXPECT_EQ(std::vector<int32_t>(d2t, d2t + 4), (std::vector<int32_t>{0, 7, -1, 2147483647}));
  ASSERT_EQ(tensor(of, "t2d", {3}, SPECD_DT_INT, 32, &got).second, "");
  const auto* t2d = static_cast<const int32_t*>(got.data);
  EXPECT_EQ(std::vector<int32_t>(t2d, t2d + 3), (std::vector<int32_t>{1, 0, 1}));
  const uint64_t used = owner_.used_bytes;
  EXPECT_EQ(used, 80u + 120 + 12 + 16 + 12);
  ASSERT_EQ(tensor(of, "norm", {20}, SPECD_DT_FLOAT, 32, &got).second, "");
  EXPECT_EQ(owner_.used_bytes, used) << "charged once";
}

TEST_F(WeightsTest, what_does_not_fit_is_refused_with_file_tensor_expected_and_found) {
  specd_weights* of = opened();
  specd_matrix* m = nullptr;
  specd_tensor t{};
  using Names = std::vector<const char*>;
  struct Case {
    Names names;
    int64_t n_out, n_in;
    specd_status status;
    std::string words;
  };
  for (const Case& each : std::vector<Case>{
           {{"none"}, 3, 20, SPECD_E_DATA, "tensor 'none' is missing"},
           {{"q"}, 4, 20, SPECD_E_DATA, "tensor 'q': shape [3, 20], expected [4, 20]"},
           {{"q", "k"}, 5, 21, SPECD_E_DATA, "tensor 'q': shape [3, 20], expected [any, 21]"},
           {{"q", "k"}, 6, 20, SPECD_E_DATA, "have 5 rows together, expected 6"},
           {{"short"}, 2, 20, SPECD_E_DATA, "weights of type F8_E4M3"},
           {{"q", nullptr}, 5, 20, SPECD_E_INVALID, "a name is null"},
           {{}, 5, 20, SPECD_E_INVALID, "0 names"},
           {{"q"}, 0, 20, SPECD_E_INVALID, "[0, 20]"},
           {{"q"}, int64_t{1} << 40, 20, SPECD_E_INVALID, "1..2147483647 rows"},
           {{"q"}, 3, 262145, SPECD_E_INVALID, "1..262144 columns"}}) {
    const auto [status, text] = matrix(of, each.names, each.n_out, each.n_in, &m);
    EXPECT_EQ(status, each.status) << text;
    EXPECT_NE(text.find(each.words), std::string::npos) << text << "\nlacks " << each.words;
    EXPECT_EQ(m, nullptr);
  }
  EXPECT_NE(matrix(of, {"q"}, 4, 20, &m).second.find(root_ + "/head/model.safetensors"),
            std::string::npos);
  EXPECT_NE(tensor(of, "far", {2}, SPECD_DT_INT, 32, &t)
                .second.find("tensor 'far': element 1 does not fit into 32 bits"),
            std::string::npos);
  EXPECT_NE(tensor(of, "d2t", {4}, SPECD_DT_FLOAT, 32, &t)
                .second.find("is I64, which cannot be had as float32"),
            std::string::npos);
  EXPECT_EQ(tensor(of, "d2t", {5}, SPECD_DT_INT, 32, &t).first, SPECD_E_DATA);
  EXPECT_EQ(tensor(of, "q", {-1, 20}, SPECD_DT_FLOAT, 32, &t).first, SPECD_E_INVALID);
  EXPECT_EQ(owner_.used_bytes, 0u) << "what is refused costs nothing";
  // A quota too small.
  owner_.quota_bytes = 100;
  const auto [status, text] = matrix(of, {"q"}, 3, 20, &m);
  EXPECT_EQ(status, SPECD_E_EXHAUSTED);
  EXPECT_NE(text.find("120 bytes requested, 100 of the quota of 100 are left"), std::string::npos)
      << text;
  // Not before activate(), and not with somebody else's weights.
  owner_.device_type = 0;
  EXPECT_EQ(matrix(of, {"q"}, 3, 20, &m).first, SPECD_E_PRECONDITION);
  owner_.device_type = SPECD_DEV_CPU;
  owner_.weights.clear();
  EXPECT_EQ(matrix(of, {"q"}, 3, 20, &m).first, SPECD_E_INVALID);
}

TEST_F(WeightsTest, files_that_cannot_be_used_are_refused_at_the_key_that_names_them) {
  specd_weights* of = nullptr;
  const auto expect = [&](const Json& path, const std::string& words) {
    const auto [status, text] = open(configure({{"weights", path}}), &of);
    EXPECT_EQ(status, SPECD_E_CONFIG) << text;
    EXPECT_TRUE(text.starts_with("weights: ")) << text;
    EXPECT_NE(text.find(words), std::string::npos) << text << "\nlacks " << words;
    EXPECT_EQ(of, nullptr);
  };
  EXPECT_EQ(open(configure(Json::object()), &of).first, SPECD_E_PRECONDITION);
  expect(7, "expected the path of a file or folder");
  expect("", "expected the path of a file or folder");
  expect("relative", "expected an absolute path");
  expect(root_ + "/nothing", "cannot open");
  fs::create_directory(root_ + "/empty");
  expect(root_ + "/empty", "model.safetensors");
  fs::create_directory(root_ + "/pickled");
  std::ofstream(root_ + "/pickled/medusa_lm_head.pt") << "PK";
  expect(root_ + "/pickled", "pickle_to_safetensors.py '" + root_ + "/pickled'");
  expect(root_ + "/pickled/medusa_lm_head.pt", "medusa_lm_head.pt': pickled weights");
  // A file alone, and a relative path.
  fs::copy_file(root_ + "/head/model.safetensors", root_ + "/empty/one.safetensors");
  ASSERT_EQ(open(configure({{"weights", "empty/one.safetensors"}}, root_), &of).second, "");
  EXPECT_EQ(weights().config(host_, of), nullptr);
  // Links that lead out of the folder; those of a Hugging Face cache may.
  fs::create_directory(root_ + "/linked");
  fs::create_symlink(root_ + "/head/model.safetensors", root_ + "/linked/model.safetensors");
  expect(root_ + "/linked", "is a link to");
  fs::create_directories(root_ + "/models--a/snapshots/1");
  fs::create_directories(root_ + "/models--a/blobs");
  fs::copy_file(root_ + "/head/model.safetensors", root_ + "/models--a/blobs/0123");
  fs::create_symlink("../../blobs/0123", root_ + "/models--a/snapshots/1/model.safetensors");
  EXPECT_EQ(open(configure({{"weights", root_ + "/models--a/snapshots/1"}}), &of).second, "");
  of = nullptr;
  fs::create_symlink(root_ + "/head/config.json", root_ + "/models--a/snapshots/1/config.json");
  expect(root_ + "/models--a/snapshots/1", "config.json' is a link to");
  std::ofstream(root_ + "/empty/config.json") << "[1]";
  expect(root_ + "/empty/one.safetensors", "config.json': expected an object");
  // A cut file.
  fs::resize_file(root_ + "/models--a/blobs/0123", 300);
  fs::remove(root_ + "/models--a/snapshots/1/config.json");
  expect(root_ + "/models--a/snapshots/1", "model.safetensors");
}

TEST_F(WeightsTest, replaced_files_are_other_weights_and_what_is_open_stays) {
  specd_weights *before = opened(), *after = nullptr;
  write(root_ + "/new", {{"q", "F32", {1}, bytes_of(std::vector<float>{3})}});
  fs::rename(root_ + "/new", root_ + "/head/model.safetensors");
  ASSERT_EQ(open(configure({{"weights", root_ + "/head"}}), &after).second, "");
  EXPECT_NE(before->file, after->file);
  specd_tensor found{};
  ASSERT_EQ(weights().find(host_, before, "q", 0, nullptr, &found), SPECD_OK);
  EXPECT_EQ(found.shape[0], 3);
  EXPECT_EQ(std::memcmp(found.data, as_bf16(q_).data(), 120), 0);
}

TEST_F(WeightsTest, a_shard_that_is_replaced_makes_other_weights) {
  fs::create_directory(root_ + "/shards");
  const auto write_shard = [&](const char* name, const char* tensor_name, float value) {
    write(root_ + "/new", {{tensor_name, "F32", {1}, bytes_of(std::vector<float>{value})}});
    fs::rename(root_ + "/new", root_ + "/shards/" + name);
  };
  write_shard("model-1.safetensors", "a", 1);
  write_shard("model-2.safetensors", "b", 2);
  std::ofstream(root_ + "/shards/model.safetensors.index.json")
      << R"({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})";
  const auto value_of_b = [&] {
    specd_weights* of = nullptr;
    specd_tensor found{};
    EXPECT_EQ(open(configure({{"weights", root_ + "/shards"}}), &of).second, "");
    EXPECT_EQ(weights().find(host_, of, "b", 0, nullptr, &found), SPECD_OK);
    float value = 0;
    std::memcpy(&value, found.data, sizeof(value));
    return value;
  };
  EXPECT_EQ(value_of_b(), 2);
  write_shard("model-2.safetensors", "b", 3);
  EXPECT_EQ(value_of_b(), 3);
  // An index that is a link is not read.
  std::ofstream(root_ + "/secret.json") << "{}";
  fs::remove(root_ + "/shards/model.safetensors.index.json");
  fs::create_symlink(root_ + "/secret.json", root_ + "/shards/model.safetensors.index.json");
  specd_weights* of = nullptr;
  EXPECT_NE(open(configure({{"weights", root_ + "/shards"}}), &of).second.find("is a link to"),
            std::string::npos);
  // Nor is a description of codes.
  fs::remove(root_ + "/shards/model.safetensors.index.json");
  fs::copy(root_ + "/shards/model-1.safetensors", root_ + "/shards/model.safetensors");
  for (const char* name : kQuantizationFiles) {
    ASSERT_EQ(open(configure({{"weights", root_ + "/shards"}}), &of).second, "");
    const std::string link = root_ + "/shards/" + name;
    fs::create_symlink(root_ + "/secret.json", link);
    const std::string text = open(configure({{"weights", root_ + "/shards"}}), &of).second;
    EXPECT_NE(text.find(std::string(name) + "' is a link to"), std::string::npos) << text;
    fs::remove(link);
  }
}

TEST_F(WeightsTest, the_target_lends_its_matrices_to_those_that_work_where_it_is) {
  const auto& target = table<specd_target_api>(SPECD_SERVICE_TARGET);
  specd_tensor embedding{};
  specd_matrix* head = nullptr;
  EXPECT_EQ(target.head(host_, &owner_, &head), SPECD_E_PRECONDITION) << "no model";
  const std::string path = std::string(SPECD_TEST_ZOO) + "/pico-draft";
  const ModelConfig config = load_model_config(path).value();
  const auto model = Transformer::load(*cpu_, path, config, 8, 8, {}).value();
  services_.set_target(model.get());
  ASSERT_EQ(target.embedding(host_, &owner_, &embedding), SPECD_OK);
  ASSERT_EQ(target.head(host_, &owner_, &head), SPECD_OK);
  EXPECT_EQ(owner_.used_bytes, 0u) << "nothing is charged";
  EXPECT_EQ(embedding.data, model->weights().embedding);
  const int64_t width = config.hidden_size, vocab = config.vocab_size;
  EXPECT_EQ(embedding.shape[0], vocab);
  EXPECT_EQ(embedding.shape[1], width);
  // The tied head scores a row of the embedding by its products with all others.
  const auto& ops = table<specd_ops>(SPECD_SERVICE_OPS);
  std::vector<int32_t> token = {5, 99};
  std::vector<float> x(2 * static_cast<size_t>(width)), logits(2 * static_cast<size_t>(vocab));
  const specd_tensor token_t = host_i32(token.data(), {2}), x_t = host_f32(x.data(), {2, width});
  const specd_tensor logits_t = host_f32(logits.data(), {2, vocab});
  ASSERT_EQ(ops.embed(host_, &call_, &embedding, &token_t, &x_t), SPECD_OK) << call_.text;
  ASSERT_EQ(ops.linear(host_, &call_, head, &x_t, nullptr, &logits_t), SPECD_OK) << call_.text;
  double square = 0, cross = 0;
  for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
    square += static_cast<double>(x[i]) * x[i];
    cross += static_cast<double>(x[i]) * x[static_cast<size_t>(width) + i];
  }
  EXPECT_NEAR(logits[5], square, 1e-4);
  EXPECT_NEAR(logits[99], cross, 1e-4);
  EXPECT_NEAR(logits[static_cast<size_t>(vocab) + 5], cross, 1e-4);
  owner_.device_type = SPECD_DEV_CUDA;
  std::string text;
  const PluginScope scope(owner_.label, &text);
  EXPECT_EQ(target.embedding(host_, &owner_, &embedding), SPECD_E_UNSUPPORTED);
  EXPECT_NE(text.find("the target is on cpu"), std::string::npos) << text;
  services_.set_target(nullptr);
}

// GPTQ's description is in a file of its own, and its k are in another order.
TEST_F(WeightsTest, quantized_matrices_stand_for_their_tensors_and_multiply_as_these_say) {
  for (const std::string model :
       {"ct_int8_weights_llama", "ct_int4_llama", "gptq_actorder_qwen3", "fp8_block_llama"}) {
    const std::string path = SPECD_TEST_REFERENCE "/quantized/" + model;
    specd_weights* of = nullptr;
    ASSERT_EQ(open(configure({{"weights", path}}), &of).second, "");
    const std::string layer = "model.layers.1.self_attn.";
    std::vector<std::string> names = {layer + "q_proj", layer + "k_proj"};
    const bool has_orders = model.starts_with("gptq_actorder");  // of its own each matrix
    if (has_orders) names.pop_back();
    const Checkpoint files = Checkpoint::open(path).value();
    const Quantization quantization = load_model_config(path).value().quantization;
    std::vector<double> expected_of;  // [n_out][n_in]
    uint64_t bytes = 0;
    int64_t n_out = 0, n_in = 0;
    for (const std::string& name : names) {
      specd_tensor found{};
      ASSERT_EQ(weights().find(host_, of, (name + ".weight").c_str(), 0, nullptr, &found),
                SPECD_OK);
      EXPECT_EQ(found.dtype_code, SPECD_DT_OPAQUE);
      EXPECT_EQ(found.dtype_bits, model.find("8") != std::string::npos ? 8 : 4);
      EXPECT_EQ(found.data, nullptr);
      ASSERT_EQ(found.rank, 2u);
      n_in = found.shape[1];
      n_out += found.shape[0];
      const auto matrix = QuantizedMatrix::open(files, name, static_cast<int32_t>(found.shape[0]),
                                                static_cast<int32_t>(n_in), *quantization.of(name),
                                                [](const std::string&) {});
      ASSERT_TRUE(matrix.ok()) << matrix.status().message();
      specd_matrix* alone = nullptr;
      const uint64_t before = owner_.used_bytes;
      const std::string full = name + ".weight";
      ASSERT_EQ(this->matrix(of, {full.c_str()}, found.shape[0], n_in, &alone).second, "");
      EXPECT_EQ(found.byte_capacity, alone->memory.bytes() + alone->order->bytes());
      EXPECT_EQ(owner_.used_bytes, before + found.byte_capacity);
      bytes += found.byte_capacity;
      const auto rows = static_cast<int32_t>(found.shape[0]);
      const CodeKind& kind = matrix.value().kind();
      const size_t groups = to_size(kind.n_groups);
      std::vector<uint8_t> codes(to_size(rows * n_in)), zeros(to_size(rows) * groups);
      std::vector<float> scales(to_size(rows) * groups);
      ASSERT_TRUE(matrix.value().read(0, rows, codes.data(), scales.data(), zeros.data()).ok());
      for (size_t i = 0; i < codes.size(); ++i) {
        const size_t k = i % to_size(n_in),
                     group = i / to_size(n_in) * groups + to_size(kind.group_of[k]);
        const int32_t zero = kind.has_zeros ? zeros[group] : 1 << (kind.bits - 1);
        const double value =
            kind.x_bits == 32 ? double{kernels::widen_f8(codes[i])} : codes[i] - zero;
        expected_of.push_back(value * double{scales[group]});
      }
    }
    const char* name = nullptr;
    specd_tensor ignored{};
    for (uint32_t i = 0; weights().find(host_, of, nullptr, i, &name, &ignored) == SPECD_OK; ++i) {
      for (const char* part : {"scale", "qweight", "packed", "g_idx", "qzeros", "weight_shape"})
        EXPECT_EQ(std::string(name).find(part), std::string::npos) << name;
    }
    const uint64_t used = owner_.used_bytes;
    specd_matrix* both = nullptr;
    const std::string q_proj = layer + "q_proj.weight", k_proj = layer + "k_proj.weight",
                      norm = "model.norm.weight";
    std::vector<const char*> tensors = {q_proj.c_str()};
    if (!has_orders) tensors.push_back(k_proj.c_str());
    ASSERT_EQ(matrix(of, tensors, n_out, n_in, &both).second, "");
    EXPECT_EQ(owner_.used_bytes, used + (names.size() == 1 ? 0 : bytes))
        << "one that it has is paid";
    constexpr size_t kRows = 3;
    std::vector<float> x = short_floats(kRows * to_size(n_in), 4), out(kRows * to_size(n_out));
    const specd_tensor x_t = host_f32(x.data(), {kRows, n_in}),
                       out_t = host_f32(out.data(), {kRows, n_out});
    ASSERT_EQ(
        table<specd_ops>(SPECD_SERVICE_OPS).linear(host_, &call_, both, &x_t, nullptr, &out_t),
        SPECD_OK)
        << call_.text;
    for (size_t i = 0; i < out.size(); ++i) {
      double sum = 0;
      for (size_t k = 0; k < to_size(n_in); ++k) {
        sum += double{x[i / to_size(n_out) * to_size(n_in) + k]} *
               expected_of[i % to_size(n_out) * to_size(n_in) + k];
      }
      ASSERT_NEAR(out[i], sum, 1e-3) << model;
    }
    // Codes are no table.
    std::vector<int32_t> token = {1};
    specd_tensor codes{};
    const specd_tensor token_t = host_i32(token.data(), {1}),
                       row_t = host_f32(out.data(), {1, n_in});
    ASSERT_EQ(weights().find(host_, of, q_proj.c_str(), 0, nullptr, &codes), SPECD_OK);
    EXPECT_EQ(table<specd_ops>(SPECD_SERVICE_OPS).embed(host_, &call_, &codes, &token_t, &row_t),
              SPECD_E_INVALID);
    expect_text("table: expected float32, float16 or bfloat16");
    // What is not such a matrix.
    const auto expect_refused = [&](const std::vector<const char*>& parts, int64_t rows,
                                    const std::string& words) {
      const std::string text = matrix(of, parts, rows, n_in, &both).second;
      EXPECT_NE(text.find(words), std::string::npos) << text;
    };
    expect_refused({q_proj.c_str(), norm.c_str()}, n_out,
                   "'" + norm + "': is not quantized, '" + q_proj);
    expect_refused({q_proj.c_str(), "model.none.weight"}, n_out, "'model.none.weight': is missing");
    expect_refused({q_proj.c_str()}, n_out + 1, "q_proj.weight': shape [64, 64], expected [");
    if (has_orders) {
      expect_refused({q_proj.c_str(), k_proj.c_str()}, n_out,
                     "'" + k_proj + "': is quantized in another way");
    } else {
      expect_refused(tensors, n_out + 1, "rows together, expected ");
    }
    EXPECT_NE(tensor(of, q_proj.c_str(), {n_in, n_in}, SPECD_DT_FLOAT, 32, &ignored)
                  .second.find(": is quantized, expected float32, float16 or bfloat16"),
              std::string::npos);
  }
}

TEST_F(WeightsTest, a_head_whose_codes_cannot_be_is_refused_where_it_is_opened_or_made) {
  const std::string head = root_ + "/codes", q = "model.layers.1.self_attn.q_proj.";
  fs::copy(SPECD_TEST_REFERENCE "/quantized/ct_int4_llama", head);
  specd_weights* of = nullptr;
  specd_matrix* m = nullptr;
  change_tensors(head + "/model.safetensors",
                 [&](const std::string& name, Json&, std::string& values) {
                   if (name == q + "weight_scale") values[0] = values[1] = 0;
                   return true;
                 });
  ASSERT_EQ(open(configure({{"weights", head}}), &of).second, "");
  EXPECT_NE(matrix(of, {(q + "weight").c_str()}, 64, 64, &m)
                .second.find("'" + q + "weight_scale', [0, 0]: expected a scale other than 0"),
            std::string::npos);
  // More inputs than any head has; also where so many codes would overflow.
  const std::string file = head + "/model.safetensors";
  for (const auto& [rows, columns] : {std::pair{1, int64_t{1} << 16}, {0, int64_t{1} << 61}}) {
    fs::copy_file(file, root_ + "/whole.safetensors");
    const Json shape = {rows, columns};
    const size_t bytes = rows == 0 ? 0 : to_size(columns) * sizeof(int32_t);
    change_tensors(file, [&](const std::string& name, Json& tensor, std::string& values) {
      if (name != q + "weight_packed") return true;
      tensor["shape"] = shape;
      values.assign(bytes, '\0');
      return true;
    });
    const std::string text = open(configure({{"weights", head}}), &of).second;
    EXPECT_NE(text.find("expected 1 to 2^31 - 1 outputs and 1 to 2^18 inputs"), std::string::npos)
        << text;
    fs::rename(root_ + "/whole.safetensors", file);
  }
  // A matrix beside the codes of the same module.
  for (const char* type : {"I8", "BF16", "F32"}) {
    fs::copy_file(file, root_ + "/whole.safetensors");
    change_tensors(file, [&](const std::string& name, Json& tensor, std::string& values) {
      if (name != "model.norm.weight") return true;
      const size_t bytes = type == std::string("I8") ? 1 : type == std::string("F32") ? 4 : 2;
      tensor["dtype"] = type;
      tensor["shape"] = {1, values.size() / bytes};
      return true;
    });
    change_header(file, [&](Json& header) {
      header[q + "weight"] = header.at("model.norm.weight");
      header.erase("model.norm.weight");
    });
    EXPECT_NE(open(configure({{"weights", head}}), &of)
                  .second.find(q + "weight': expected none beside the codes of "),
              std::string::npos)
        << type;
    fs::rename(root_ + "/whole.safetensors", file);
  }
  change_tensors(head + "/model.safetensors", [&](const std::string& name, Json&, std::string&) {
    return name != q + "weight_scale";
  });
  EXPECT_NE(open(configure({{"weights", head}}), &of).second.find(q + "weight_scale': missing"),
            std::string::npos);
  Json config = parse_json_file(head + "/config.json", 1 << 20).value();
  const Json description = config["quantization_config"];
  config.erase("quantization_config");
  std::ofstream(head + "/config.json") << config.dump();
  EXPECT_NE(open(configure({{"weights", head}}), &of)
                .second.find("weight_packed': has codes, and '" + head +
                             "/config.json' does not say how they are quantized"),
            std::string::npos);
  config["quantization_config"] = description;
  config["quantization_config"] = {{"quant_method", "bitsandbytes"}};
  std::ofstream(head + "/config.json") << config.dump();
  EXPECT_NE(open(configure({{"weights", head}}), &of).second.find("bitsandbytes"),
            std::string::npos);
}

TEST_F(WeightsTest, a_description_that_changes_is_read_again) {
  const std::string head = root_ + "/codes", description = head + "/quantize_config.json";
  fs::copy(SPECD_TEST_REFERENCE "/quantized/gptq_actorder_qwen3", head);
  specd_weights *first = nullptr, *same = nullptr, *of = nullptr;
  ASSERT_EQ(open(configure({{"weights", head}}), &first).second, "");
  ASSERT_EQ(open(configure({{"weights", head}}), &same).second, "");
  EXPECT_EQ(first->file, same->file);
  Json json = parse_json_file(description, 1 << 20).value();
  json["bits"] = 8;
  std::ofstream(description) << json.dump();
  const std::string text = open(configure({{"weights", head}}), &of).second;
  EXPECT_NE(text.find("expected a multiple of the group_size"), std::string::npos) << text;
}

TEST_F(WeightsTest, the_last_word_of_packed_codes_may_have_fewer_of_them) {
  const std::string head = root_ + "/codes";
  fs::copy(SPECD_TEST_REFERENCE "/quantized/ct_int8_packed_qwen3", head);
  const auto open_with = [&](char n_in, specd_weights** of) {
    change_tensors(head + "/model.safetensors",
                   [&](const std::string& name, Json&, std::string& values) {
                     if (name == "lm_head.weight_shape") values[8] = n_in;  // little endian
                     return true;
                   });
    return open(configure({{"weights", head}}), of).second;
  };
  specd_weights* of = nullptr;
  specd_tensor found{};
  change_tensors(head + "/model.safetensors",
                 [&](const std::string& name, Json& tensor, std::string& values) {
                   if (name != "lm_head.weight_shape") return true;
                   tensor["dtype"] = "I32";
                   values = values.substr(0, 4) + std::string("\x3d\0\0\0", 4);  // 61
                   return true;
                 });
  ASSERT_EQ(open(configure({{"weights", head}}), &of).second, "") << "a shape in I32";
  ASSERT_EQ(weights().find(host_, of, "lm_head.weight", 0, nullptr, &found), SPECD_OK);
  EXPECT_EQ(found.shape[1], 61);
  fs::remove_all(head);
  fs::copy(SPECD_TEST_REFERENCE "/quantized/ct_int8_packed_qwen3", head);
  for (const char n_in : {61, 64}) {
    ASSERT_EQ(open_with(n_in, &of), "");
    ASSERT_EQ(weights().find(host_, of, "lm_head.weight", 0, nullptr, &found), SPECD_OK);
    EXPECT_EQ(found.shape[1], n_in);
  }
  for (const char n_in : {60, 65, 0, -1}) {
    EXPECT_NE(open_with(n_in, &of).find("lm_head.weight_shape', [1]: expected 64, found "),
              std::string::npos);
  }
}

TEST_F(WeightsTest, a_call_with_more_rows_than_its_scratch_holds_gives_the_same_bits) {
  specd_weights* of = nullptr;
  ASSERT_EQ(
      open(configure({{"weights", SPECD_TEST_REFERENCE "/quantized/ct_int4_llama"}}), &of).second,
      "");
  specd_matrix* m = nullptr;
  ASSERT_EQ(matrix(of, {"model.layers.1.self_attn.q_proj.weight"}, 64, 64, &m).second, "");
  constexpr size_t kRows = 20'000, kWidth = 64;
  ASSERT_GT(kernels::matmul_scratch_bytes(m->packed, kRows), 2u << 20);
  std::vector<float> x = short_floats(kRows * kWidth, 4), all(kRows * kWidth), one(kWidth);
  const auto linear = [&](size_t row, int64_t n, std::vector<float>& out) {
    const specd_tensor x_t = host_f32(x.data() + row * kWidth, {n, kWidth}),
                       out_t = host_f32(out.data(), {n, kWidth});
    return table<specd_ops>(SPECD_SERVICE_OPS).linear(host_, &call_, m, &x_t, nullptr, &out_t);
  };
  ASSERT_EQ(linear(0, kRows, all), SPECD_OK) << call_.text;
  for (size_t row = 0; row < kRows; row += row < 5000 ? 611 : 7) {
    ASSERT_EQ(linear(row, 1, one), SPECD_OK);
    ASSERT_EQ(std::memcmp(one.data(), all.data() + row * kWidth, sizeof(float) * kWidth), 0) << row;
  }
}

// The step's own, and that of a drafter beside it. Each has memory of its own for rows of x.
TEST_F(WeightsTest, lanes_multiply_by_codes_at_the_same_time) {
  specd_weights* of = nullptr;
  ASSERT_EQ(
      open(configure({{"weights", SPECD_TEST_REFERENCE "/quantized/ct_int4_llama"}}), &of).second,
      "");
  specd_matrix* m = nullptr;
  ASSERT_EQ(matrix(of, {"model.layers.1.self_attn.q_proj.weight"}, 64, 64, &m).second, "");
  const std::unique_ptr<CpuDevice> cpu = cpu_->open_for_thread();
  ServiceLane lane{*cpu};
  specd_call beside;
  beside.owner = &owner_;
  beside.lane = &lane;
  beside.batch = &batch_;
  constexpr size_t kRows = 8, kWidth = 64;
  const auto multiply = [&](specd_call& call, uint32_t seed) {
    std::vector<float> x = short_floats(kRows * kWidth, seed), first, out(kRows * kWidth);
    const specd_tensor x_t = host_f32(x.data(), {kRows, kWidth}),
                       out_t = host_f32(out.data(), {kRows, kWidth});
    for (int i = 0; i < 1000; ++i) {
      ASSERT_EQ(table<specd_ops>(SPECD_SERVICE_OPS).linear(host_, &call, m, &x_t, nullptr, &out_t),
                SPECD_OK)
          << call.text;
      if (first.empty()) first = out;
      ASSERT_EQ(std::memcmp(out.data(), first.data(), sizeof(float) * out.size()), 0) << i;
    }
  };
  std::thread other([&] { multiply(beside, 5); });
  multiply(call_, 6);
  other.join();
}

TEST_F(WeightsTest, a_quantized_output_head_is_lent_too) {
  const auto& target = table<specd_target_api>(SPECD_SERVICE_TARGET);
  const std::string path = SPECD_TEST_REFERENCE "/quantized/ct_int8_packed_qwen3";
  const ModelConfig config = load_model_config(path).value();
  const auto model = Transformer::load(*cpu_, path, config, 8, 8, {}).value();
  services_.set_target(model.get());
  specd_matrix* head = nullptr;
  ASSERT_EQ(target.head(host_, &owner_, &head), SPECD_OK);
  const auto width = to_size(config.hidden_size), vocab = to_size(config.vocab_size);
  constexpr size_t kRows = 3;
  std::vector<float> x = short_floats(kRows * width, 4), logits(kRows * vocab);
  const specd_tensor x_t = host_f32(x.data(), {kRows, config.hidden_size});
  const specd_tensor logits_t = host_f32(logits.data(), {kRows, config.vocab_size});
  ASSERT_EQ(
      table<specd_ops>(SPECD_SERVICE_OPS).linear(host_, &call_, head, &x_t, nullptr, &logits_t),
      SPECD_OK)
      << call_.text;
  // Bytes along k, 128 more than what they stand for, and a scale for each output.
  const Checkpoint files = Checkpoint::open(path).value();
  const TensorView &codes = files.at("lm_head.weight_packed"),
                   &scale = files.at("lm_head.weight_scale");
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t j = 0; j < vocab; ++j) {
      double sum = 0;
      for (size_t k = 0; k < width; ++k)
        sum += double{x[row * width + k]} *
               (number_at<uint8_t>(codes, static_cast<int64_t>(j * width + k)) - 128);
      EXPECT_NEAR(logits[row * vocab + j], sum * float_at(scale, static_cast<int64_t>(j)), 1e-3);
    }
  }
  services_.set_target(nullptr);
}

}  // namespace
}  // namespace specd
