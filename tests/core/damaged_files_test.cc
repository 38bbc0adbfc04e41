// Every kind of file that a model or a plugin brings, cut at every length and with every byte
// changed in several ways: it is read or refused, within a second, and a refusal names the file and
// the place in it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <vector>

#include "core/base/to_size.h"
#include "core/base/utf8.h"
#include "core/model/checkpoint.h"
#include "core/model/generation_config.h"
#include "core/model/weight_file.h"
#include "core/plugin/bundle/elf_file.h"
#include "core/plugin/bundle/manifest.h"
#include "core/chat/chat_template.h"
#include "core/text/tokenizer.h"
#include "tests/core/model/safetensors_rig.h"
#include "tests/cpu_clock.h"

namespace specd {
namespace {

namespace fs = std::filesystem;
const std::string kModels = std::string(SPECD_TEST_REFERENCE) + "/models/";

std::string read(const std::string& path) {
  std::string bytes(fs::file_size(path), '\0');
  std::ifstream(path, std::ios::binary)
      .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

using Words = std::vector<const char*>;

// Behind the file's name: line and column, or one of the places that files of this kind have.
bool has_place(const std::string& message, const std::string& name, const Words& places) {
  const std::string rest = message.substr(message.find(name) + name.size());
  const auto is_number = [&](size_t at) {
    return at < rest.size() && rest[at] >= '0' && rest[at] <= '9';
  };
  if (rest.starts_with(':') && is_number(1) && is_number(rest.find(':', 1) + 1)) return true;
  return std::any_of(places.begin(), places.end(),
                     [&](const char* place) { return rest.find(place) != std::string::npos; });
}

const Words kTensorPlaces = {": byte ", "header from byte ", ", tensor '", "'__metadata__'"};
const Words kIndexPlaces = {": weight_map, '", ": weight_map: '", ": expected {\"weight_map\""};
const Words kConfigPlaces = {": key '",
                             ": the key '",
                             ": num_attention_heads * head_dim",
                             ": hidden_size / num_attention_heads",
                             ".rope_",
                             "'rope_"};
const Words kTokenizerPlaces = {": version",       ": added_tokens",   ": normalizer",
                                ": pre_tokenizer", ": post_processor", ": decoder",
                                ": model",         ": unknown key '"};
const Words kTemplatePlaces = {"; name one as model.chat_template", ": not UTF-8 at byte ",
                               ": chat_template", ": key '", ": the key '"};
const Words kManifestPlaces = {": key '",  ": the key '",     ": library '", ": factory '",
                               ": file '", ": unknown key '", ": factories"};
const Words kLibraryPlaces = {"not an ELF file", "header",  "class", "byte order", "architecture",
                              "ELF type",        "segment", "table", "symbol"};

class DamagedFiles : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/specd_damaged_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    root_ = folder;
  }
  void TearDown() override { fs::remove_all(root_); }

  // `good` stands in root_/name; `load` reads it. The first `n_damaged` bytes are damaged.
  void damage(const std::string& name, const std::string& good, const std::function<Status()>& load,
              const Words& places, size_t n_damaged = std::string::npos) {
    const std::string path = root_ + "/" + name;
    const auto put = [&](const std::string& bytes) {
      fs::remove(path);  // ext4 waits for the disk when a file is cut to nothing and written again
      std::ofstream(path, std::ios::binary) << bytes;
    };
    put(good);
    ASSERT_TRUE(load().ok()) << load().to_string();
    double slowest = 0;
    size_t refused = 0;
    const auto attempt = [&](const std::string& bytes, const std::string& what) {
      put(bytes);
      const auto start = CpuClock::now();
      const Status status = load();
      const std::chrono::duration<double> took = CpuClock::now() - start;
      slowest = std::max(slowest, took.count());
      if (status.ok()) return;
      ++refused;
      ASSERT_NE(status.message().find(name), std::string::npos) << what << ": " << status.message();
      ASSERT_LT(status.message().size(), 4096u) << what;
      ASSERT_TRUE(has_place(status.message(), name, places)) << what << ": " << status.message();
      ASSERT_EQ(utf8_error_offset(status.message()), std::string::npos) << what;
    };
    const size_t n = std::min(n_damaged, good.size());
    for (size_t length = 0; length < n; ++length) {
      attempt(good.substr(0, length), "cut at " + std::to_string(length));
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(refused, n / 2) << "cut files are read";
#if SPECD_HAS_SANITIZER
    const std::string changes("\x80\"\0", 3);
#else
    const std::string changes("\x01\x80\xff\"{9 \0", 8);
#endif
    for (size_t at = 0; at < n; ++at) {
      for (size_t i = 0; i < changes.size(); ++i) {
        std::string bytes = good;
        bytes[at] = i < 2 ? static_cast<char>(bytes[at] ^ changes[i]) : changes[i];
        attempt(bytes, "byte " + std::to_string(at) + ", change " + std::to_string(i));
        if (HasFatalFailure()) return;
      }
    }
    EXPECT_LT(slowest, 1.0 * kSlowdown);
  }

  std::string root_;
};

TEST_F(DamagedFiles, safetensors_headers) {
  const std::string good = read(kModels + "mistral/model-00001-of-00007.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, good.data(), sizeof(header));
  damage(
      "model.safetensors", good, [&] { return Checkpoint::open(root_).status(); }, kTensorPlaces,
      8 + header + 16);
}

TEST_F(DamagedFiles, safetensors_indexes) {
  for (const auto& entry : fs::directory_iterator(kModels + "mistral")) {
    if (entry.path().extension() == ".safetensors")
      fs::copy(entry.path(), root_ + "/" + entry.path().filename().string());
  }
  damage(
      "model.safetensors.index.json", read(kModels + "mistral/model.safetensors.index.json"),
      [&] { return Checkpoint::open(root_).status(); }, kIndexPlaces);
}

TEST_F(DamagedFiles, configurations) {
  for (const char* name : {"llama31", "qwen25_long"}) {
    damage(
        "config.json", read(kModels + name + "/config.json"),
        [&] { return load_model_config(root_).status(); }, kConfigPlaces);
  }
}

TEST_F(DamagedFiles, descriptions_of_quantization) {
  const std::string quantized = std::string(SPECD_TEST_REFERENCE) + "/quantized/";
  const auto load = [&] { return load_model_config(root_).status(); };
  damage("config.json", read(quantized + "ct_mixed_llama/config.json"), load, kConfigPlaces);
  for (const auto& [folder, name] : {std::pair("modelopt_fp8_llama", "hf_quant_config.json"),
                                     std::pair("gptq_actorder_llama", "quantize_config.json")}) {
    fs::copy_file(quantized + folder + "/config.json", root_ + "/config.json",
                  fs::copy_options::overwrite_existing);
    damage(name, read(quantized + folder + "/" + name), load, kConfigPlaces);
    fs::remove(root_ + "/" + name);
  }
}

// A plugin's weights with one matrix in codes; what is read of them is what a head would take.
TEST_F(DamagedFiles, heads_in_codes) {
  const auto load = [&]() -> Status {
    SPECD_TRY(const std::shared_ptr<const WeightFile> file, WeightFile::open(root_));
    for (const auto& [name, coded] : file->coded()) {
      const QuantizedMatrix& matrix = coded.matrix;
      const auto groups = to_size(matrix.kind().n_groups);
      std::vector<uint8_t> codes(to_size(matrix.n_in())), zeros(groups);
      std::vector<float> scales(groups);
      for (int32_t row = 0; row < matrix.n_out(); ++row) {
        SPECD_OK_OR_RETURN(matrix.read(row, 1, codes.data(), scales.data(), zeros.data()));
      }
    }
    return Status();
  };
  for (const char* model : {"ct_int4_actorder_llama", "gptq_actorder_llama", "awq_llama"}) {
    const std::string from = std::string(SPECD_TEST_REFERENCE) + "/quantized/" + model;
    fs::copy(from, root_);
    change_tensors(root_ + "/model.safetensors", [&](const std::string& name, Json&, std::string&) {
      return name.starts_with("model.layers.0.self_attn.k_proj.");
    });
    const std::string good = read(root_ + "/model.safetensors");
    uint64_t header = 0;
    std::memcpy(&header, good.data(), sizeof(header));
    damage("model.safetensors", good, load, kTensorPlaces, 8 + header);
    fs::remove_all(root_);
    fs::create_directory(root_);
  }
}

TEST_F(DamagedFiles, generation_configurations) {
  damage(
      "generation_config.json",
      R"({"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.1,
             "repetition_penalty": 1.05, "eos_token_id": [1, 2], "typical_p": 0.5})",
      [&] {
        std::vector<int32_t> eos;
        const Status status = load_eos_tokens(root_, 100, eos);
        return status.ok() ? load_generation_config(root_).status() : status;
      },
      kConfigPlaces);
}

TEST_F(DamagedFiles, tokenizers) {
  damage(
      "tokenizer.json", read(kModels + "tokenizer.json"),
      [&] { return Tokenizer::load(root_ + "/tokenizer.json").status(); }, kTokenizerPlaces);
}

TEST_F(DamagedFiles, chat_templates) {
  const std::string good = read(std::string(SPECD_TEST_REFERENCE) + "/chat_templates/chatml.jinja");
  damage(
      "chat_template.jinja", "{% if messages %}" + good + "{% endif %}",
      [&] { return ChatTemplate::load(root_, "").status(); }, kTemplatePlaces);
  fs::remove(root_ + "/chat_template.jinja");
  Json json{{"bos_token", "<s>"},
            {"eos_token", {{"content", "</s>"}}},
            {"chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}"}};
  damage(
      "tokenizer_config.json", json.dump(), [&] { return ChatTemplate::load(root_, "").status(); },
      kTemplatePlaces);
}

TEST_F(DamagedFiles, libraries) {
  damage(
      "plugin.so", read(SPECD_TEST_FIXTURES "/good.so"),
      [&] {
        const std::string bytes = read(root_ + "/plugin.so");
        return read_elf_library(std::as_bytes(std::span(bytes)), "plugin.so").status();
      },
      kLibraryPlaces, 8192);
}

TEST_F(DamagedFiles, manifests) {
  damage(
      "plugin.json", read(SPECD_TEST_MANIFEST),
      [&] { return read_manifest(read(root_ + "/plugin.json"), "plugin.json").status(); },
      kManifestPlaces);
}

}  // namespace
}  // namespace specd
