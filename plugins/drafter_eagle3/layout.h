// What a folder of weights says about an EAGLE-3 head: its shape, the names of its tensors, and the
// states of the target that it reads.
//
//   midlayer.*                 SafeAILab/EAGLE, SpecForge
//   midlayer.{l}.*             NVIDIA ModelOpt, several layers
//   layers.{l}.*               vLLM speculators; layer keys under transformer_layer_config
#pragma once

#include <specd/sdk/layers.h>
#include <specd/sdk/rope.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace specd::eagle3 {

class Layout {
 public:
  int64_t hidden = 0, target_hidden = 0, vocab = 0;
  int64_t n_columns = 0;  // of the logits
  std::vector<std::string> layers;
  std::vector<sdk::DecoderLayer::Shape> shapes;
  std::vector<uint32_t> taps;  // as in specd_drafter_caps
  bool has_fc = false, has_fc_bias = false, has_embedding = false;
  bool norm_before_fc = false, fc_norm = false;  // of the target's states
  bool norm_before_residual = false, norm_output = false;
  int64_t positions_max = 0;
  std::vector<float> inv_freq;
  std::vector<int32_t> ids;  // the token of each column; empty = the column's number
  double eps = 1e-6;

  int64_t width() const { return hidden; }
  int64_t columns() const { return n_columns; }

  // Checks every tensor against the target, and accounts for it. `settings`: the plugin's
  // configuration.
  Layout(sdk::Weights& weights, const specd_target_info& target, const sdk::Config& settings) {
    target_hidden = target.hidden_size;
    vocab = target.vocab_size;
    hidden = weights.rows_of("norm.weight");
    weights.expect("norm.weight", {hidden});
    find_layers(weights);
    sdk::DecoderLayer::Shape shape{};
    std::vector<int64_t> listed;
    weights.from_config([&](const sdk::Config& config) {
      shape = read_shape(config);
      norm_before_residual = config.boolean("norm_before_residual", false);
      norm_output = config.boolean("norm_output", false);
      says_norm_before_fc_ = config.boolean("norm_before_fc", false);
      for (const char* each :
           {"eagle_aux_hidden_state_layer_ids", "eagle_config.eagle_aux_hidden_state_layer_ids"}) {
        if (listed.empty()) listed = ids_at(config, each);
      }
    });
    read_layers(weights, shape);
    read_fusion(weights);
    read_vocabulary(weights);
    has_embedding = weights.has("embed_tokens.weight");
    if (has_embedding) weights.expect_table("embed_tokens.weight", vocab, hidden);
    if (!has_embedding && hidden != target_hidden) {
      weights.fail("the head has hidden size " + std::to_string(hidden) + ", the target " +
                   std::to_string(target_hidden) +
                   "; expected a head that was trained for this target, or one with an "
                   "'embed_tokens.weight' of its own");
    }
    weights.expect_no_others();
    read_taps(weights, listed, settings, target.n_layers);
  }

 private:
  // Of every layer, but for what the tensors say.
  sdk::DecoderLayer::Shape read_shape(const sdk::Config& config) {
    // speculators writes only what differs from the defaults of the layer's class.
    const std::string at = config.has("transformer_layer_config.hidden_size") ||
                                   config.has("transformer_layer_config.model_type") ||
                                   config.has("speculators_model_type")
                               ? "transformer_layer_config."
                               : "";
    const auto key = [&](const char* name) { return at + name; };
    const bool is_qwen3 = config.string(key("model_type").c_str(), "llama") == "qwen3";
    const auto number = [&](const char* name, int64_t otherwise, int64_t most) {
      return config.i64(key(name).c_str(), otherwise, 1, most);
    };
    constexpr int64_t kPositionsMax = int64_t{1} << 28;
    sdk::DecoderLayer::check_activation(config, at);
    sdk::DecoderLayer::Shape shape{};
    shape.hidden = hidden;
    shape.n_heads = number("num_attention_heads", 32, sdk::Kv::kHeadsMax);
    shape.n_kv_heads =
        number("num_key_value_heads", is_qwen3 ? 32 : shape.n_heads, sdk::Kv::kKvHeadsMax);
    shape.head_dim =
        number("head_dim", is_qwen3 ? 128 : hidden / shape.n_heads, sdk::Kv::kHeadDimMax);
    shape.norm_eps = eps = config.f64(key("rms_norm_eps").c_str(), 1e-6, 0, 1);
    positions_max = number("max_position_embeddings", is_qwen3 ? 32768 : 2048, kPositionsMax);
    inv_freq = sdk::rope_frequencies(config, at, shape.head_dim);
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const std::string type =
          config.string((key("layer_types.") + std::to_string(l)).c_str(), "full_attention");
      const bool is_windowed = type == "sliding_attention";
      windows_.push_back(is_windowed ? number("sliding_window", 4096, kPositionsMax) : 0);
    }
    return shape;
  }

  void find_layers(const sdk::Weights& weights) {
    for (const char* each : {"midlayer.", "layers."}) {
      const std::string name = each;
      const auto is_layer = [&](const std::string& at) {
        return weights.has(at + "self_attn.q_proj.weight");
      };
      if (is_layer(name)) layers.push_back(name);
      while (is_layer(name + std::to_string(layers.size()) + ".")) {
        layers.push_back(name + std::to_string(layers.size()) + ".");
      }
      if (!layers.empty()) break;
    }
    if (layers.empty()) {
      weights.fail_without(
          "a layer of EAGLE-3 ('midlayer.self_attn.q_proj.weight', "
          "'layers.0.self_attn.q_proj.weight' or the like)");
    }
  }

  void read_layers(sdk::Weights& weights, sdk::DecoderLayer::Shape shape) {
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const std::string& layer = layers[l];
      shape.input = l == 0 ? 2 * hidden : hidden;
      shape.ffn = weights.rows_of(layer + "mlp.gate_proj.weight");
      shape.qkv_bias = weights.has(layer + "self_attn.q_proj.bias");
      shape.o_bias = weights.has(layer + "self_attn.o_proj.bias");
      shape.mlp_bias = weights.has(layer + "mlp.gate_proj.bias");
      shape.head_norm = weights.has(layer + "self_attn.q_norm.weight");
      shape.window = windows_[l];
      sdk::DecoderLayer::check(weights, layer, shape);
      weights.expect(layer + "input_layernorm.weight", {hidden});
      if (l == 0) weights.expect(layer + "hidden_norm.weight", {hidden});
      shapes.push_back(shape);
    }
  }

  void read_fusion(sdk::Weights& weights) {
    has_fc = weights.has("fc.weight");
    n_taps_ = 1;
    if (has_fc) {
      const specd_tensor fc = weights.stored("fc.weight");
      const int64_t width = fc.rank == 2 ? fc.shape[1] : 0;
      n_taps_ = width / target_hidden;
      if (n_taps_ < 1 || n_taps_ > SPECD_MAX_TAPS || n_taps_ * target_hidden != width) {
        weights.fail("tensor 'fc.weight' has " + std::to_string(width) +
                     " columns, expected 1 to " + std::to_string(SPECD_MAX_TAPS) +
                     " states of the target's " + std::to_string(target_hidden));
      }
      weights.expect("fc.weight", {hidden, width});
      has_fc_bias = weights.has("fc.bias");
      if (has_fc_bias) weights.expect("fc.bias", {hidden});
    } else if (hidden != target_hidden) {
      weights.fail_without("tensor 'fc.weight'");
    }
    norm_before_fc = has_fc && weights.has("input_norm.weight");
    if (says_norm_before_fc_ && !norm_before_fc) {
      weights.fail_without("tensor 'input_norm.weight', of norm_before_fc in config.json,");
    }
    if (norm_before_fc) weights.expect("input_norm.weight", {n_taps_ * target_hidden});
    fc_norm = has_fc && !norm_before_fc && weights.has("fc_norm.0.weight");
    for (int64_t t = 0; fc_norm && t < n_taps_; ++t) {
      weights.expect("fc_norm." + std::to_string(t) + ".weight", {target_hidden});
    }
  }

  void read_vocabulary(sdk::Weights& weights) {
    n_columns = weights.rows_of("lm_head.weight");
    weights.expect("lm_head.weight", {n_columns, hidden});
    if (!weights.has("d2t")) {
      if (n_columns != vocab) {
        weights.fail("tensor 'lm_head.weight' has " + std::to_string(n_columns) +
                     " rows, the target's vocabulary " + std::to_string(vocab) +
                     ", and there is no 'd2t'");
      }
    } else {
      const std::vector<int64_t> offset = weights.integers("d2t", n_columns);
      std::vector<bool> is_used(static_cast<std::size_t>(vocab));
      for (std::size_t i = 0; i < offset.size(); ++i) {
        const bool is_near = offset[i] >= -vocab && offset[i] <= vocab;
        const int64_t id = is_near ? static_cast<int64_t>(i) + offset[i] : -1;
        if (id < 0 || id >= vocab || is_used[static_cast<std::size_t>(id)]) {
          weights.fail("tensor 'd2t'[" + std::to_string(i) + "] is " + std::to_string(offset[i]) +
                       ", expected offsets to different ids below " + std::to_string(vocab));
        }
        is_used[static_cast<std::size_t>(id)] = true;
        ids.push_back(static_cast<int32_t>(id));
      }
      if (weights.has("t2d")) {
        const std::vector<int64_t> mask = weights.integers("t2d", vocab);
        for (std::size_t id = 0; id < mask.size(); ++id) {
          if ((mask[id] != 0) == is_used[id]) continue;
          weights.fail("tensor 't2d'[" + std::to_string(id) + "] is " + std::to_string(mask[id]) +
                       ", 'd2t' says the opposite");
        }
      }
    }
    if (weights.has("t2d")) weights.ignore("t2d");
  }

  // Explicit ids name inputs of layers or outputs, and files do not say which. A setting decides;
  // otherwise a list that begins with 1 names outputs, as SGLang reads it.
  void read_taps(const sdk::Weights& weights, std::vector<int64_t> listed,
                 const sdk::Config& settings, int64_t n_layers) {
    const std::vector<int64_t> set = ids_at(settings, "layer_ids");
    if (!set.empty()) listed = set;
    const std::string what = settings.string("layer_ids_are", "");
    const bool says_outputs = what.empty() ? !listed.empty() && listed[0] == 1 : what == "outputs";
    const bool are_outputs = says_outputs && !listed.empty();
    if (listed.empty() && !has_fc) listed = {n_layers + 1};  // what the output head gets
    if (listed.empty()) listed = {2, n_layers / 2, n_layers - 3};
    if (static_cast<int64_t>(listed.size()) != n_taps_) {
      weights.fail("tensor 'fc.weight' is for " + std::to_string(n_taps_) + " states, " +
                   std::to_string(listed.size()) +
                   " are named; name them in layer_ids of this configuration");
    }
    for (const int64_t id : listed) {
      const int64_t tap = id + (are_outputs ? 1 : 0);
      if (tap < 0 || tap > n_layers + 1) {
        const std::string why = "found " + std::to_string(id) + ", expected 0 to " +
                                std::to_string(n_layers + (are_outputs ? 0 : 1)) + ", " +
                                (are_outputs ? "outputs" : "inputs") + " of the target's " +
                                std::to_string(n_layers) + " layers";
        if (set.empty()) weights.fail("config.json: eagle_aux_hidden_state_layer_ids: " + why);
        throw sdk::Error(SPECD_E_CONFIG, "layer_ids: " + why);
      }
      taps.push_back(static_cast<uint32_t>(tap));
    }
  }
  static std::vector<int64_t> ids_at(const sdk::Config& config, const std::string& key) {
    std::vector<int64_t> all;
    while (all.size() <= SPECD_MAX_TAPS) {
      const std::string each = key + "." + std::to_string(all.size());
      if (!config.has(each.c_str())) break;
      all.push_back(config.i64(each.c_str(), 0, 0, 1 << 20));
    }
    return all;
  }

  int64_t n_taps_ = 0;
  bool says_norm_before_fc_ = false;
  std::vector<int64_t> windows_;  // of each layer
};

}  // namespace specd::eagle3
