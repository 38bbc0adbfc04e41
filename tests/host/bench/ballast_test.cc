// A ballast target says to the bit what its source says, and a forward reads all of it.
#include "host/bench/ballast.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "core/base/json.h"
#include "core/base/sanitizer.h"
#include "core/model/safetensors.h"
#include "tests/core/engine_rig.h"
#include "tests/core/model/forward_rig.h"
#include "tests/host/base/run_command.h"

namespace specd::host {
namespace {

namespace fs = std::filesystem;

const std::string kTarget = std::string(SPECD_TEST_ZOO) + "/pico-target";
constexpr WeightFormat kFormats[] = {WeightFormat::kInt8, WeightFormat::kInt4,
                                     WeightFormat::kFloat8};
constexpr int32_t kDraftHidden = 192;
const std::string kDraft = std::string(SPECD_TEST_ZOO) + "/pico-draft";

class Ballast : public EngineTest {
 protected:
  std::string make(const std::string& model, uint64_t bytes, int32_t context = 0,
                   WeightFormat weights = WeightFormat::kOwn, int32_t hidden = 0) {
    const std::string out = folder_ + "/ballast-" + std::to_string(++made_);
    const auto report = write_ballast({.model = model,
                                       .out = out,
                                       .bytes = bytes,
                                       .context = context,
                                       .hidden = hidden,
                                       .weights = weights});
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    if (report.ok()) report_ = report.value();
    return out;
  }
  Status refused(const BallastOptions& options) {
    const size_t before = entries_of(folder_.c_str());
    const auto report = write_ballast(options);
    EXPECT_FALSE(report.ok());
    EXPECT_EQ(entries_of(folder_.c_str()), before) << "something was left behind";
    return report.status();
  }
  // What sdk/zoo/recipe/quantize.py makes of a model, in groups of `group` in 4 bits.
  std::string quantized(const std::string& model, WeightFormat format, int32_t group = 64) {
    const std::string out = folder_ + "/quantized-" + std::to_string(++made_);
    const std::string options = format == WeightFormat::kInt8 ? "w8a8"
                                : format == WeightFormat::kFloat8
                                    ? "fp8"
                                    : "w4a16 --group " + std::to_string(group);
    const auto [code, output] =
        run_command(std::string(SPECD_SYSTEM_PYTHON " " SPECD_QUANTIZE " ") + model + " " + out +
                    " --format " + options);
    EXPECT_EQ(code, 0) << output;
    return out;
  }
  // Random weights in a shape whose sizes divide badly; `type` as a safetensors name. `hidden`: a multiple
  // of 16. `has_more`: a head of its own, and tensors that no forward reads.
  std::string odd_model(const std::string& type, int32_t width, int32_t hidden = 48,
                        bool has_more = false) {
    constexpr int32_t kLayers = 2, kVocab = 4096;
    const std::string folder = folder_ + "/odd-" + type + "-" + std::to_string(width) + "-" +
                               std::to_string(hidden) + (has_more ? "-more" : "");
    fs::create_directories(folder);
    const Json config{{"architectures", {"LlamaForCausalLM"}},
                      {"model_type", "llama"},
                      {"hidden_size", hidden},
                      {"intermediate_size", width},
                      {"num_hidden_layers", kLayers},
                      {"num_attention_heads", hidden / 16},
                      {"num_key_value_heads", 1},
                      {"head_dim", 16},
                      {"vocab_size", kVocab},
                      {"max_position_embeddings", 64},
                      {"rms_norm_eps", 1e-5},
                      {"tie_word_embeddings", !has_more}};
    std::ofstream(folder + "/config.json") << config.dump();
    fs::copy_file(kDraft + "/tokenizer.json", folder + "/tokenizer.json");
    std::vector<std::pair<std::string, std::vector<int64_t>>> tensors = {
        {"model.embed_tokens.weight", {kVocab, hidden}}, {"model.norm.weight", {hidden}}};
    if (has_more) tensors.push_back({"lm_head.weight", {kVocab, hidden}});
    for (int32_t i = 0; i < kLayers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      tensors.push_back({layer + "input_layernorm.weight", {hidden}});
      tensors.push_back({layer + "post_attention_layernorm.weight", {hidden}});
      tensors.push_back({layer + "self_attn.q_proj.weight", {hidden, hidden}});
      tensors.push_back({layer + "self_attn.k_proj.weight", {16, hidden}});
      tensors.push_back({layer + "self_attn.v_proj.weight", {16, hidden}});
      tensors.push_back({layer + "self_attn.o_proj.weight", {hidden, hidden}});
      tensors.push_back({layer + "mlp.gate_proj.weight", {width, hidden}});
      tensors.push_back({layer + "mlp.up_proj.weight", {width, hidden}});
      tensors.push_back({layer + "mlp.down_proj.weight", {hidden, width}});
    }
    std::mt19937 random(11);
    std::normal_distribution<float> normal(0, 0.3f);
    std::string data;
    Json header = Json::object();
    for (const auto& [name, shape] : tensors) {
      const size_t begin = data.size();
      int64_t n = 1;
      for (const int64_t d : shape) n *= d;
      for (int64_t i = 0; i < n; ++i) {
        const float value = normal(random);
        uint32_t bits = 0;
        std::memcpy(&bits, &value, 4);
        if (type == "F32") {
          data.append(reinterpret_cast<const char*>(&bits), 4);
        } else {  // the upper half is the bf16 below; for f16 any finite pattern will do
          const auto half =
              static_cast<uint16_t>(type == "BF16" ? bits >> 16 : (bits >> 13 & 0x87FF) | 0x3000);
          data.append(reinterpret_cast<const char*>(&half), 2);
        }
      }
      header[name] = {{"dtype", type}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
    }
    if (has_more) {
      const auto add = [&](const char* name, const char* dtype, const std::vector<int64_t>& shape,
                           const std::string& bytes) {
        const size_t begin = data.size();
        data += bytes;
        header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
      };
      add("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {8}, std::string(32, '\1'));
      add("model.layers.1.self_attn.rotary_emb.inv_freq", "F32", {0}, "");
      add("medusa_head.0.bias", "I64", {1}, "eightbyt");
      add("medusa_head.1.bias", "I8", {1}, "b");
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    std::ofstream file(folder + "/model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), 8);
    file << text << data;
    return folder;
  }

  BallastReport report_;

 private:
  int made_ = 0;
};

// Logits of a prefill and of the decode rows after it.
std::vector<std::vector<float>> logits_of(const std::string& model, const std::string& isa) {
  const auto device = CpuDevice::create(isa, 2).value();
  const ModelConfig config = load_model_config(model).value();
  const auto transformer = Transformer::load(*device, model, config, 32, 32, {}).value();
  KvStore kv = KvStore::create(*device, config, kernels::KvDType::kBF16, 4).value();
  std::vector<std::vector<float>> all;
  const std::vector<int32_t> tokens = some_tokens(28, 3);
  const auto run = [&](int32_t begin, int32_t end) {
    ForwardRows rows;
    rows.pages = {2, 0, 3, 1};
    for (int32_t p = begin; p < end; ++p) {
      rows.logits_rows.push_back(rows.n_rows());
      rows.token.push_back(tokens[static_cast<size_t>(p)]);
      rows.position.push_back(p);
      rows.slot.push_back(rows.pages[static_cast<size_t>(p / 16)] * 16 + p % 16);
      rows.span.push_back(p + 1);
      rows.table.push_back(0);
      rows.tail_begin.push_back(0);
    }
    transformer->forward(rows.in_place(), kv);
    const auto width = static_cast<size_t>(config.vocab_size);
    for (int32_t i = 0; i < end - begin; ++i)
      all.emplace_back(transformer->logits() + static_cast<size_t>(i) * width,
                       transformer->logits() + static_cast<size_t>(i + 1) * width);
  };
  run(0, 20);
  for (int32_t p = 20; p < 28; ++p) run(p, p + 1);
  return all;
}

bool same_rows(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_bits);
}

TEST_F(Ballast, logits_are_those_of_the_source_to_the_bit) {
  const std::string wider = make(kDraft, 7'000'000);
  EXPECT_EQ(report_.shape.n_layers, load_model_config(kDraft).value().n_layers);
  const std::string deeper = make(kDraft, 20'000'000);
  EXPECT_GT(report_.shape.n_layers, load_model_config(kDraft).value().n_layers);
  for (const std::string& isa : available_isas()) {
    const auto expected = logits_of(kDraft, isa);
    EXPECT_TRUE(same_rows(logits_of(wider, isa), expected)) << isa;
    EXPECT_TRUE(same_rows(logits_of(deeper, isa), expected)) << isa;
  }
}

TEST_F(Ballast, widths_that_segments_do_not_divide_keep_the_bits_in_every_type) {
  for (const char* type : {"F32", "F16", "BF16"}) {
    for (const int32_t width : {97, 100, 103}) {
      const std::string source = odd_model(type, width);
      const auto bytes = fs::file_size(source + "/model.safetensors");
      const auto expected = logits_of(source, "");
      EXPECT_TRUE(same_rows(logits_of(make(source, bytes * 2), ""), expected)) << type << width;
      EXPECT_TRUE(same_rows(logits_of(make(source, bytes * 5), ""), expected)) << type << width;
    }
  }
}

TEST_F(Ballast, a_wider_residual_stream_keeps_the_bits_in_every_type) {
  for (const char* type : {"F32", "F16", "BF16"}) {
    const std::string source = odd_model(type, 97);
    const auto expected = logits_of(source, "");
    for (const int32_t hidden : {4 * 48, 16 * 48}) {
      for (const uint64_t bytes : {16'000'000u, 20'000'000u}) {
        const std::string out = make(source, bytes, 0, WeightFormat::kOwn, hidden);
        EXPECT_TRUE(same_rows(logits_of(out, ""), expected)) << type << hidden << " " << bytes;
        const ModelConfig config = load_model_config(out).value();
        EXPECT_EQ(config.hidden_size, hidden);
        EXPECT_EQ(config.head_dim, 16);
      }
    }
  }
}

TEST_F(Ballast, tensors_that_no_forward_reads_stay_as_they_are) {
  for (const char* type : {"F32", "BF16"}) {
    const std::string source = odd_model(type, 97, 48, true);
    const auto expected = logits_of(source, "");
    for (const int32_t hidden : {0, 4 * 48}) {
      const std::string out = make(source, 12'000'000, 0, WeightFormat::kOwn, hidden);
      EXPECT_TRUE(same_rows(logits_of(out, ""), expected)) << type << hidden;
      const SafetensorsFile file = SafetensorsFile::open(out + "/model.safetensors").value();
      for (const auto& [name, bytes] :
           {std::pair{"model.layers.0.self_attn.rotary_emb.inv_freq", std::string(32, '\1')},
            {"model.layers.1.self_attn.rotary_emb.inv_freq", ""},
            {"medusa_head.0.bias", "eightbyt"},
            {"medusa_head.1.bias", "b"}}) {
        const TensorView* const view = file.find(name);
        ASSERT_NE(view, nullptr) << name;
        EXPECT_EQ(std::string(static_cast<const char*>(view->data), view->bytes), bytes) << name;
      }
    }
  }
}

TEST_F(Ballast, a_wider_residual_stream_has_the_size_that_was_asked_for) {
  const ModelConfig narrow = load_model_config(kTarget).value();
  for (const uint64_t bytes : {200'000'000u, 2'000'000'000u}) {
    for (const int32_t hidden : {4 * narrow.hidden_size, 16 * narrow.hidden_size}) {
      const auto shape = ballast_shape(narrow, hidden, 28'300'000, {}, bytes);
      const bool fits_8_layers = bytes > 200'000'000 || hidden == 4 * narrow.hidden_size;
      ASSERT_EQ(shape.ok(), fits_8_layers) << bytes << " " << hidden;
      if (!fits_8_layers) continue;
      EXPECT_NEAR(static_cast<double>(shape.value().data_bytes), static_cast<double>(bytes),
                  0.01 * static_cast<double>(bytes));
      EXPECT_LE(shape.value().intermediate_size, 16 * narrow.hidden_size + 512);
    }
  }
  ModelConfig large = narrow;
  large.hidden_size = 5120;
  const WeightRounding rounding{.format = WeightFormat::kInt8};
  EXPECT_TRUE(ballast_shape(large, 20480, 28'300'000, rounding, 200'000'000'000).ok());
  const auto larger = ballast_shape(large, 81920, 28'300'000, rounding, 200'000'000'000);
  EXPECT_EQ(larger.status().message(), "--hidden: expected at most 65536, found 81920");
  const std::string out = make(kTarget, 120'000'000, 0, WeightFormat::kOwn, 1536);
  EXPECT_NEAR(static_cast<double>(fs::file_size(out + "/model.safetensors")), 120e6, 1.2e6);
  EXPECT_TRUE(same_rows(logits_of(out, ""), logits_of(kTarget, "")));
}

// The control of the tests of FFN widths above: columns of another segment do change the bits.
TEST_F(Ballast, a_channel_moved_to_another_segment_would_be_seen) {
  const std::string source = odd_model("F32", 100);
  const auto expected = logits_of(source, "");
  const std::string out = make(source, fs::file_size(source + "/model.safetensors") * 2);
  ASSERT_TRUE(same_rows(logits_of(out, ""), expected));
  const int64_t width = report_.shape.intermediate_size, hidden = 48;
  std::vector<std::pair<uint64_t, uint64_t>> swaps;  // offsets of two floats
  {
    const SafetensorsFile file = SafetensorsFile::open(out + "/model.safetensors").value();
    const auto swap = [&](const char* name, bool row) {
      const uint64_t base = file.find(name)->file_offset;
      // Channel 0 and the last, free one: the same sum, in another segment.
      for (int64_t i = 0; i < hidden; ++i) {
        const int64_t a = row ? i : i * width,
                      b = row ? (width - 1) * hidden + i : (i + 1) * width - 1;
        swaps.push_back({base + static_cast<uint64_t>(a) * 4, base + static_cast<uint64_t>(b) * 4});
      }
    };
    swap("model.layers.0.mlp.gate_proj.weight", true);
    swap("model.layers.0.mlp.up_proj.weight", true);
    swap("model.layers.0.mlp.down_proj.weight", false);
  }
  std::fstream file(out + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  for (const auto& [a, b] : swaps) {
    char x[4], y[4];
    file.seekg(static_cast<std::streamoff>(a)).read(x, 4);
    file.seekg(static_cast<std::streamoff>(b)).read(y, 4);
    file.seekp(static_cast<std::streamoff>(a)).write(y, 4);
    file.seekp(static_cast<std::streamoff>(b)).write(x, 4);
  }
  file.close();
  EXPECT_FALSE(same_rows(logits_of(out, ""), expected));
}

TEST_F(Ballast, the_size_is_met_and_a_forward_reads_all_of_it) {
  for (const uint64_t bytes : {7'000'000u, 20'000'000u, 40'000'000u}) {
    const std::string out = make(kDraft, bytes);
    const auto found = static_cast<double>(fs::file_size(out + "/model.safetensors"));
    EXPECT_EQ(report_.bytes, fs::file_size(out + "/model.safetensors"));
    EXPECT_NEAR(found, static_cast<double>(bytes), 0.01 * static_cast<double>(bytes));
    const auto device = CpuDevice::create("", 1).value();
    const ModelConfig config = load_model_config(out).value();
    const auto model = Transformer::load(*device, out, config, 1, 1, {}).value();
    uint64_t streamed = 0;
    for (const Weights::Piece& each : model->weights().streamed) streamed += each.bytes;
    EXPECT_GE(static_cast<double>(streamed), 0.98 * found);
    EXPECT_LE(static_cast<double>(streamed), 1.05 * found);  // rows of panels are padded
  }
}

TEST_F(Ballast, shapes_of_any_size_are_met_within_a_percent) {
  const ModelConfig config = load_model_config(kTarget).value();
  constexpr uint64_t kSource = 28'300'000;
  for (uint64_t bytes = 32'000'000; bytes < 8'000'000'000; bytes += bytes / 7) {
    const auto shape = ballast_shape(config, config.hidden_size, kSource, {}, bytes);
    ASSERT_TRUE(shape.ok()) << bytes << shape.status().to_string();
    EXPECT_NEAR(static_cast<double>(shape.value().data_bytes), static_cast<double>(bytes),
                0.01 * static_cast<double>(bytes));
    EXPECT_LE(shape.value().intermediate_size, 16 * config.hidden_size + 512);
    EXPECT_GT(shape.value().intermediate_size, config.intermediate_size);
  }
}

TEST_F(Ballast, tokens_are_those_of_the_source_greedy_and_seeded_with_and_without_drafts) {
  const std::string heavy = make(kTarget, 48'000'000);
  std::vector<Request> requests;
  for (size_t i = 0; i < 3; ++i) {
    for (const float temperature : {0.0f, 0.8f})
      requests.push_back(request(prompts()[i], "off", 32, temperature, 5 + i));
  }
  start(options("pico-target"));
  const std::vector<Outcome> expected = run_all(requests);
  EngineOptions with_drafts = options("pico-target");
  with_drafts.model.path = heavy;
  with_drafts.routes = {route("lookup", plugin("specd.drafter.prompt_lookup"), 4)};
  start(with_drafts);
  EXPECT_EQ(engine_->model().architecture, "LlamaForCausalLM (ballast)");
  for (const char* name : {"off", "lookup"}) {
    for (Request& each : requests) each.route = name;
    const std::vector<Outcome> got = run_all(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(got[i].tokens.size(), 32u);
      EXPECT_EQ(got[i].tokens, expected[i].tokens) << name << " " << i;
    }
  }
  EXPECT_GT(report("lookup").counts.accepted, 0u);
}

TEST_F(Ballast, quantized_logits_are_those_of_the_quantized_source_to_the_bit) {
  for (const WeightFormat format : kFormats) {
    const std::string source = quantized(kDraft, format);
    const std::string wider = make(kDraft, 3'500'000, 0, format);
    EXPECT_EQ(report_.shape.n_layers, load_model_config(kDraft).value().n_layers);
    const std::string deeper = make(kDraft, 9'000'000, 0, format);
    EXPECT_GT(report_.shape.n_layers, load_model_config(kDraft).value().n_layers);
    const std::string stream = make(kDraft, 28'000'000, 0, format, 4 * kDraftHidden);
    for (const std::string& isa : available_isas()) {
      const auto expected = logits_of(source, isa);
      EXPECT_FALSE(same_rows(logits_of(kDraft, isa), expected)) << weight_format_name(format);
      EXPECT_TRUE(same_rows(logits_of(stream, isa), expected)) << isa << weight_format_name(format);
      EXPECT_TRUE(same_rows(logits_of(wider, isa), expected)) << isa << weight_format_name(format);
      EXPECT_TRUE(same_rows(logits_of(deeper, isa), expected)) << isa << weight_format_name(format);
    }
  }
  const auto expected = logits_of(quantized(kTarget, WeightFormat::kInt4, 128), "");
  const std::string heavy = make(kTarget, 30'000'000, 0, WeightFormat::kInt4);
  EXPECT_TRUE(same_rows(logits_of(heavy, ""), expected));
}

TEST_F(Ballast, quantized_widths_that_segments_do_not_divide_keep_the_bits_in_every_type) {
  for (const char* type : {"F32", "F16", "BF16"}) {
    const std::string small = odd_model(type, 103);
    for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kFloat8}) {
      const auto expected = logits_of(quantized(small, format), "");
      for (const uint64_t bytes : {960'000u, 2'000'000u}) {
        EXPECT_TRUE(same_rows(logits_of(make(small, bytes, 0, format), ""), expected))
            << type << weight_format_name(format) << bytes;
      }
    }
    // quantize.py refuses 103 inputs, no whole groups. A ballast has zeros behind them.
    const std::string source = odd_model(type, 103, 64);
    const auto expected = logits_of(make(source, 1'300'000, 0, WeightFormat::kInt4), "");
    const int32_t width = report_.shape.intermediate_size;
    EXPECT_TRUE(same_rows(logits_of(make(source, 1'800'000, 0, WeightFormat::kInt4), ""), expected))
        << type;
    EXPECT_NE(report_.shape.intermediate_size, width);
    EXPECT_TRUE(same_rows(logits_of(make(source, 3'000'000, 0, WeightFormat::kInt4), ""), expected))
        << type;
  }
}

// Random rows of up_proj would give activations that are larger than these, and their scales to these.
TEST_F(Ballast, what_is_added_does_not_change_how_small_activations_are_rounded) {
  const std::string source = folder_ + "/small";
  fs::copy(kDraft, source, fs::copy_options::recursive);
  for (const char* layer : {"0", "1"}) {
    std::vector<uint16_t> weights;
    uint64_t at = 0;
    {
      const SafetensorsFile file = SafetensorsFile::open(source + "/model.safetensors").value();
      const TensorView& view =
          *file.find(std::string("model.layers.") + layer + ".mlp.up_proj.weight");
      weights.resize(view.bytes / 2);
      std::memcpy(weights.data(), view.data, view.bytes);
      at = view.file_offset;
    }
    for (uint16_t& each : weights)  // times 2^-20, or zero
      each = (each & 0x7f80) > 21 << 7 ? static_cast<uint16_t>(each - (20 << 7)) : uint16_t{0};
    std::fstream out(source + "/model.safetensors",
                     std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(static_cast<std::streamoff>(at));
    out.write(reinterpret_cast<const char*>(weights.data()),
              static_cast<std::streamsize>(weights.size() * 2));
  }
  for (const WeightFormat format : kFormats) {
    const auto expected = logits_of(quantized(source, format), "");
    EXPECT_TRUE(same_rows(logits_of(make(source, 6'000'000, 0, format), ""), expected))
        << weight_format_name(format);
  }
}

// Of matrices that have the same shape in both, with a zero row, a tiny one and one that cannot be
// scaled among them.
TEST_F(Ballast, codes_and_scales_are_those_of_quantize_py) {
  for (const char* type : {"F32", "F16", "BF16"}) {
    const std::string source = odd_model(type, 128, 128);
    {
      const SafetensorsFile file = SafetensorsFile::open(source + "/model.safetensors").value();
      const TensorView& view = *file.find("model.layers.0.self_attn.q_proj.weight");
      const uint64_t row = view.bytes / 128, at = view.file_offset;
      std::fstream out(source + "/model.safetensors",
                       std::ios::in | std::ios::out | std::ios::binary);
      for (const char byte : {'\0', '\1', '\2'}) {  // float32: 0, 2.4e-38 and 9.6e-38
        out.seekp(static_cast<std::streamoff>(at + static_cast<uint64_t>(byte) * row));
        out << std::string(row, byte);
      }
    }
    for (const WeightFormat format : kFormats) {
      const std::string made = make(source, 3'000'000, 0, format);
      const SafetensorsFile expected = SafetensorsFile::open(quantized(source, format, 128) +
                                                             "/model.safetensors")
                                           .value(),
                            found = SafetensorsFile::open(made + "/model.safetensors").value();
      int n_same = 0;
      for (const auto& [name, view] : expected.tensors()) {
        const TensorView* const other = found.find(name);
        ASSERT_NE(other, nullptr) << name;
        EXPECT_EQ(other->type, view.type) << name;
        if (other->shape != view.shape || name.ends_with("_shape")) continue;
        EXPECT_EQ(std::memcmp(other->data, view.data, view.bytes), 0)
            << type << weight_format_name(format) << name;
        ++n_same;
      }
      EXPECT_GE(n_same, 2 * 4 * 2 + 6) << "q, k, v, o of two layers, norms and the embedding";
    }
  }
}

TEST_F(Ballast, quantized_sizes_are_met_and_a_forward_reads_all_of_it) {
  for (const WeightFormat format : kFormats) {
    for (const uint64_t bytes : {4'000'000u, 10'000'000u, 20'000'000u}) {
      const std::string out = make(kDraft, bytes, 0, format);
      const std::string path = out + "/model.safetensors";
      EXPECT_EQ(report_.bytes, fs::file_size(path));
      EXPECT_NEAR(static_cast<double>(report_.bytes), static_cast<double>(bytes),
                  0.01 * static_cast<double>(bytes))
          << weight_format_name(format);
      const SafetensorsFile file = SafetensorsFile::open(path).value();
      uint64_t data = 0;
      for (const auto& [name, view] : file.tensors()) {
        data += view.bytes;
        EXPECT_EQ(view.file_offset % tensor_type_bytes(view.type), 0u) << name;
      }
      EXPECT_EQ(report_.shape.data_bytes, data);
      const auto device = CpuDevice::create("", 1).value();
      const ModelConfig config = load_model_config(out).value();
      EXPECT_EQ(config.quantization.name(),
                std::string("compressed-tensors ") +
                    (format == WeightFormat::kInt8   ? "int-quantized"
                     : format == WeightFormat::kInt4 ? "pack-quantized"
                                                     : "float-quantized"));
      const auto model = Transformer::load(*device, out, config, 1, 1, {}).value();
      uint64_t streamed = 0;
      for (const Weights::Piece& each : model->weights().streamed) streamed += each.bytes;
      // The head stands for the embedding. Scales are float32 there, which 64 codes of 4 bits notice.
      EXPECT_GE(static_cast<double>(streamed), 0.97 * static_cast<double>(data));
      EXPECT_LE(static_cast<double>(streamed), 1.10 * static_cast<double>(data));
    }
  }
}

// As with bf16: Transformer.loading_allocates_less_than_half_more_than_the_file.
TEST_F(Ballast, loading_codes_allocates_less_than_half_more_than_the_file) {
  if (SPECD_HAS_SANITIZER) GTEST_SKIP() << "a sanitizer's own memory counts too";
  for (const WeightFormat format : kFormats) {
    const std::string model = make(kTarget, 30'000'000, 0, format);
    const auto file_kib = static_cast<long>(report_.bytes / 1024);
    const long allocated = allocated_by_loading(model);
    EXPECT_GT(allocated, file_kib / 2) << "is it measured at all?";
    EXPECT_LT(allocated, file_kib * 3 / 2) << weight_format_name(format);
  }
}

TEST_F(Ballast, quantized_tokens_are_those_of_the_quantized_source_with_and_without_drafts) {
  for (const WeightFormat format : kFormats) {
    const std::string source = quantized(kDraft, format);
    const std::string heavy = make(kDraft, 5'000'000, 0, format);
    std::vector<Request> requests;
    for (size_t i = 0; i < 2; ++i) requests.push_back(request(prompts()[i], "off", 32, 0.0f, 5));
    EngineOptions small = options("pico-draft");
    small.model.path = source;
    start(small);
    const std::vector<Outcome> expected = run_all(requests);
    EngineOptions with_drafts = options("pico-draft");
    with_drafts.model.path = heavy;
    with_drafts.routes = {route("lookup", plugin("specd.drafter.prompt_lookup"), 4)};
    start(with_drafts);
    const ModelReport model = engine_->model();
    EXPECT_EQ(model.weight_format, format == WeightFormat::kInt8   ? "W8A8 int8"
                                   : format == WeightFormat::kInt4 ? "W4A16 g64"
                                                                   : "FP8");
    EXPECT_GT(model.weight_bits, format == WeightFormat::kInt4 ? 4.25 : 8.0);
    EXPECT_LT(model.weight_bits, format == WeightFormat::kInt4 ? 4.26 : 8.1);
    EXPECT_TRUE(engine_->memory().front().detail.starts_with(model.weight_format + ", "));
    for (const char* name : {"off", "lookup"}) {
      for (Request& each : requests) each.route = name;
      const std::vector<Outcome> got = run_all(requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(got[i].tokens.size(), 32u);
        EXPECT_EQ(got[i].tokens, expected[i].tokens) << weight_format_name(format) << name << i;
      }
    }
  }
}

TEST_F(Ballast, says_what_it_is_in_every_file) {
  const std::string out = make(kDraft, 7'000'000, 8192);
  const Json config = parse_json_file(out + "/config.json", 1 << 20).value();
  EXPECT_NE(config["_specd_ballast"].get<std::string>().find("pico-draft"), std::string::npos);
  EXPECT_NE(config["_name_or_path"].get<std::string>().find("ballast"), std::string::npos);
  EXPECT_EQ(load_model_config(out).value().max_positions, 8192);
  EXPECT_TRUE(load_model_config(out).value().is_ballast);
  EXPECT_FALSE(load_model_config(kDraft).value().is_ballast);
  const std::string readme = read_text_file(out + "/README.md", 1 << 20).value();
  EXPECT_NE(readme.find("Not a model of its own"), std::string::npos) << readme;
  std::ifstream weights(out + "/model.safetensors", std::ios::binary);
  std::string head(4096, '\0');
  weights.read(head.data(), 4096);
  EXPECT_NE(head.find("specd_ballast"), std::string::npos);
  EXPECT_TRUE(fs::exists(out + "/tokenizer.json"));
  EXPECT_TRUE(fs::exists(out + "/generation_config.json"));
}

TEST_F(Ballast, chats_are_rendered_by_the_templates_of_its_source) {
  const std::string source = folder_ + "/with_templates";
  fs::copy(kDraft, source, fs::copy_options::recursive);
  const std::string names[] = {"/chat_template.jinja", "/additional_chat_templates/tool_use.jinja"};
  fs::create_directory(source + "/additional_chat_templates");
  for (const std::string& name : names) std::ofstream(source + name) << "{{ '" + name + "' }}";
  const std::string out = make(source, 7'000'000);
  for (const std::string& name : names)
    EXPECT_EQ(read_text_file(out + name, 100).value(), "{{ '" + name + "' }}");
}

TEST_F(Ballast, refusals_name_the_file_or_the_field_and_leave_nothing_behind) {
  const auto expect = [&](const BallastOptions& options, Code code, const std::string& part) {
    const Status status = refused(options);
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_NE(status.text().find(part), std::string::npos) << status.to_string();
  };
  const std::string out = folder_ + "/out";
  fs::create_directory(folder_ + "/there");
  expect({.model = kDraft, .out = folder_ + "/there", .bytes = 7'000'000},
         Code::kFailedPrecondition, folder_ + "/there: exists already");
  expect({.model = kDraft, .out = folder_ + "/none/out", .bytes = 7'000'000}, Code::kNotFound,
         folder_ + "/none: expected a folder");
  expect({.model = folder_ + "/there", .out = out, .bytes = 7'000'000}, Code::kNotFound,
         "/there/config.json");
  expect({.model = kDraft, .out = out, .bytes = 1'000'000}, Code::kInvalidArgument,
         "--bytes: expected at least");
  expect({.model = kDraft, .out = out, .bytes = uint64_t{1} << 50}, Code::kInvalidArgument,
         "--bytes: expected at most");
  expect({.model = kDraft, .out = out, .bytes = 7'000'000, .context = 5}, Code::kInvalidArgument,
         "--context: expected at least");
  const std::string heavy = make(kDraft, 7'000'000);
  expect({.model = heavy, .out = out, .bytes = 20'000'000}, Code::kInvalidArgument,
         "key '_specd_ballast'");
  fs::remove(heavy + "/tokenizer.json");
  fs::copy(kDraft + "/config.json", heavy + "/config.json", fs::copy_options::overwrite_existing);
  expect({.model = heavy, .out = out, .bytes = 20'000'000}, Code::kNotFound, "tokenizer.json");
  fs::copy(kDraft + "/tokenizer.json", heavy + "/tokenizer.json");
  expect({.model = heavy, .out = out, .bytes = 20'000'000}, Code::kDataLoss,
         "model.safetensors', tensor 'model.layers.");
  Json mistral = parse_json_file(kDraft + "/config.json", 1 << 20).value();
  mistral["architectures"] = {"MistralForCausalLM"};
  mistral["model_type"] = "mistral";
  std::ofstream(heavy + "/config.json") << mistral.dump();
  expect({.model = heavy, .out = out, .bytes = 20'000'000}, Code::kUnsupported,
         "found MistralForCausalLM, expected LlamaForCausalLM");
  Json biased = parse_json_file(kDraft + "/config.json", 1 << 20).value();
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    biased[key] = true;
    std::ofstream(heavy + "/config.json") << biased.dump();
    expect({.model = heavy, .out = out, .bytes = 20'000'000}, Code::kUnsupported,
           "key '" + std::string(key) + "': found true, expected false");
  }
  fs::remove_all(heavy);
  fs::rename(quantized(kDraft, WeightFormat::kInt8), heavy);
  expect({.model = heavy, .out = out, .bytes = 20'000'000}, Code::kUnsupported,
         "its weights are quantized (compressed-tensors int-quantized); expected the model that it "
         "was made from, which --weights int8, int4 or fp8 quantizes");
  expect(
      {.model = odd_model("BF16", 64),
       .out = out,
       .bytes = 20'000'000,
       .weights = WeightFormat::kInt4},
      Code::kUnsupported,
      "config.json: key 'hidden_size': found 48, expected a multiple of 64 with weights in int4");
  expect({.model = kDraft, .out = out, .bytes = 1'000, .weights = WeightFormat::kInt4},
         Code::kInvalidArgument, "--bytes: expected at least");
  const std::string infinite = odd_model("F32", 65);
  {
    const SafetensorsFile file = SafetensorsFile::open(infinite + "/model.safetensors").value();
    const uint64_t at = file.find("model.layers.1.mlp.down_proj.weight")->file_offset;
    std::fstream changed(infinite + "/model.safetensors",
                         std::ios::in | std::ios::out | std::ios::binary);
    changed.seekp(static_cast<std::streamoff>(at + (2 * 65 + 7) * 4));
    changed.write("\x00\x00\x80\x7f", 4);
  }
  expect(
      {.model = infinite, .out = out, .bytes = 2'000'000, .weights = WeightFormat::kFloat8},
      Code::kDataLoss,
      "tensor 'model.layers.1.mlp.down_proj.weight', [2, 7]: expected a finite number, found inf");
  for (const int32_t hidden : {96, 191, kDraftHidden, 384, 1000, 64 * kDraftHidden, -768}) {
    expect({.model = kDraft, .out = out, .bytes = 90'000'000, .hidden = hidden},
           Code::kInvalidArgument,
           "--hidden: expected 768 or 3072, 4 or 16 times that of " + kDraft +
               "/config.json, found " + std::to_string(hidden));
  }
  const std::string tiny = odd_model("F16", 65);
  const auto set_epsilon = [&](double epsilon) {
    Json changed = parse_json_file(tiny + "/config.json", 1 << 20).value();
    changed["rms_norm_eps"] = epsilon;
    std::ofstream(tiny + "/config.json") << changed.dump();
  };
  set_epsilon(1e-37);
  expect({.model = tiny, .out = out, .bytes = 20'000'000, .hidden = 16 * 48}, Code::kUnsupported,
         "config.json: key 'rms_norm_eps': found 1e-37, which is too small for --hidden 768");
  set_epsilon(1e-5);
  {
    const SafetensorsFile file = SafetensorsFile::open(tiny + "/model.safetensors").value();
    const uint64_t at = file.find("model.norm.weight")->file_offset;
    std::fstream changed(tiny + "/model.safetensors",
                         std::ios::in | std::ios::out | std::ios::binary);
    changed.seekp(static_cast<std::streamoff>(at + 5 * 2));
    changed.write("\x00\x08", 2);  // 2^-13, whose quarter is no normal number
  }
  expect(
      {.model = tiny, .out = out, .bytes = 20'000'000, .hidden = 16 * 48}, Code::kUnsupported,
      "tensor 'model.norm.weight', [5]: found 0.00012207031, which --hidden cannot halve exactly");
  std::atomic<bool> stop = true;
  expect({.model = kDraft,
          .out = out,
          .bytes = 7'000'000,
          .context = 0,
          .hidden = 0,
          .weights = WeightFormat::kOwn,
          .progress = {},
          .stop = &stop},
         Code::kCancelled, "stopped");
}

}  // namespace
}  // namespace specd::host
