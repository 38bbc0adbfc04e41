// A ballast target says to the bit what its source says, and a forward reads all of it.
#include "host/bench/ballast.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "core/base/json.h"
#include "core/model/safetensors.h"
#include "tests/core/engine_rig.h"
#include "tests/core/model/forward_rig.h"

namespace specd::host {
namespace {

namespace fs = std::filesystem;

const std::string kTarget = std::string(SPECD_TEST_ZOO) + "/pico-target";
const std::string kDraft = std::string(SPECD_TEST_ZOO) + "/pico-draft";

class Ballast : public EngineTest {
 protected:
  std::string make(const std::string& model, uint64_t bytes, int32_t context = 0) {
    const std::string out = folder_ + "/ballast-" + std::to_string(++made_);
    const auto report =
        write_ballast({.model = model, .out = out, .bytes = bytes, .context = context});
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
  // Random weights in a shape whose sizes divide badly; `type` as a safetensors name.
  std::string odd_model(const std::string& type, int32_t width) {
    constexpr int32_t kHidden = 48, kLayers = 2, kVocab = 4096;
    const std::string folder = folder_ + "/odd-" + type + "-" + std::to_string(width);
    fs::create_directories(folder);
    const Json config{{"architectures", {"LlamaForCausalLM"}},
                      {"model_type", "llama"},
                      {"hidden_size", kHidden},
                      {"intermediate_size", width},
                      {"num_hidden_layers", kLayers},
                      {"num_attention_heads", 3},
                      {"num_key_value_heads", 1},
                      {"head_dim", 16},
                      {"vocab_size", kVocab},
                      {"max_position_embeddings", 64},
                      {"rms_norm_eps", 1e-5},
                      {"tie_word_embeddings", true}};
    std::ofstream(folder + "/config.json") << config.dump();
    fs::copy_file(kDraft + "/tokenizer.json", folder + "/tokenizer.json");
    std::vector<std::pair<std::string, std::vector<int64_t>>> tensors = {
        {"model.embed_tokens.weight", {kVocab, kHidden}}, {"model.norm.weight", {kHidden}}};
    for (int32_t i = 0; i < kLayers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      tensors.push_back({layer + "input_layernorm.weight", {kHidden}});
      tensors.push_back({layer + "post_attention_layernorm.weight", {kHidden}});
      tensors.push_back({layer + "self_attn.q_proj.weight", {48, kHidden}});
      tensors.push_back({layer + "self_attn.k_proj.weight", {16, kHidden}});
      tensors.push_back({layer + "self_attn.v_proj.weight", {16, kHidden}});
      tensors.push_back({layer + "self_attn.o_proj.weight", {kHidden, 48}});
      tensors.push_back({layer + "mlp.gate_proj.weight", {width, kHidden}});
      tensors.push_back({layer + "mlp.up_proj.weight", {width, kHidden}});
      tensors.push_back({layer + "mlp.down_proj.weight", {kHidden, width}});
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

// The control of the two tests above: columns of another segment do change the bits.
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
    const auto shape = ballast_shape(config, kSource, 2, bytes);
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
  std::atomic<bool> stop = true;
  expect({.model = kDraft,
          .out = out,
          .bytes = 7'000'000,
          .context = 0,
          .progress = {},
          .stop = &stop},
         Code::kCancelled, "stopped");
}

}  // namespace
}  // namespace specd::host
