// What a folder of weights says about an EAGLE-1 or EAGLE-2 head, which have the same: its shape and
// the names of its tensors.
//
// Source: SafeAILab/EAGLE, model/cnets1.py.
#pragma once

#include <specd/sdk/layers.h>
#include <specd/sdk/rope.h>

#include <cstdint>
#include <string>
#include <vector>

namespace specd::eagle {

class Layout {
 public:
  int64_t hidden = 0, vocab = 0;
  std::vector<sdk::DecoderLayer::Shape> shapes;
  bool has_bias = false;  // of fc
  int64_t positions_max = 0;
  std::vector<float> inv_freq;
  std::vector<uint32_t> taps;  // what the target's output head gets

  int64_t width() const { return hidden; }
  int64_t columns() const { return vocab; }

  static std::string layer(std::size_t l) { return "layers." + std::to_string(l) + "."; }

  // Checks every tensor against the target, and accounts for it.
  Layout(sdk::Weights& weights, const specd_target_info& target, const sdk::Config&)
      : taps{target.n_layers + 1} {
    hidden = target.hidden_size;
    vocab = target.vocab_size;
    sdk::DecoderLayer::Shape shape{};
    shape.hidden = shape.input = hidden;
    bool says_bias = false;
    weights.from_config([&](const sdk::Config& config) {
      says_bias = config.has("bias");
      has_bias = config.boolean("bias", true);
      sdk::DecoderLayer::check_activation(config, "");
      shape.n_heads = config.i64("num_attention_heads", 32, 1, sdk::Kv::kHeadsMax);
      shape.n_kv_heads = config.i64("num_key_value_heads", shape.n_heads, 1, sdk::Kv::kKvHeadsMax);
      shape.head_dim = config.i64("head_dim", hidden / shape.n_heads, 1, sdk::Kv::kHeadDimMax);
      shape.norm_eps = config.f64("rms_norm_eps", 1e-6, 0, 1);
      shape.qkv_bias = config.boolean("qkv_bias", config.boolean("attention_bias", false));
      positions_max = config.i64("max_position_embeddings", 2048, 1, int64_t{1} << 28);
      inv_freq = sdk::rope_frequencies(config, "", shape.head_dim);
    });
    weights.expect("fc.weight", {hidden, 2 * hidden});
    if (has_bias != weights.has("fc.bias")) {
      weights.fail(std::string("config.json says bias ") + (has_bias ? "true" : "false") +
                   (says_bias ? "" : ", which is what leaving it out means") + ", and there is " +
                   (has_bias ? "no" : "a") + " tensor 'fc.bias'");
    }
    if (has_bias) weights.expect("fc.bias", {hidden});
    while (weights.has(layer(shapes.size()) + "self_attn.q_proj.weight")) {
      const std::string at = layer(shapes.size());
      shape.ffn = weights.rows_of(at + "mlp.gate_proj.weight");
      sdk::DecoderLayer::check(weights, at, shape);
      // The first layer has no input norm.
      if (!shapes.empty()) weights.expect(at + "input_layernorm.weight", {hidden});
      shapes.push_back(shape);
    }
    if (shapes.empty()) weights.fail_without("tensor 'layers.0.self_attn.q_proj.weight'");
    if (weights.has("embed_tokens.weight")) {
      // A copy of the target's, which is used instead.
      const specd_tensor table = weights.stored("embed_tokens.weight");
      if (table.rank != 2 || table.shape[0] != vocab || table.shape[1] != hidden) {
        weights.fail("tensor 'embed_tokens.weight' has shape " +
                     sdk::shape_text(table.shape, table.rank) + ", the target's table [" +
                     std::to_string(vocab) + ", " + std::to_string(hidden) + "]");
      }
      weights.ignore("embed_tokens.weight");
    }
    weights.expect_no_others();
  }
};

}  // namespace specd::eagle
