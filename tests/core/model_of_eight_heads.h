// A model with eight heads and all kinds of biases, small enough to be written by a test.
#pragma once

#include <cstdint>
#include <string>

#include "tests/head_files.h"

namespace specd {

// Returns `folder`.
inline std::string model_of_eight_heads(const std::string& folder, int32_t n_kv_heads,
                                        int32_t columns = 72, int32_t vocab = 101) {
  constexpr int32_t kHidden = 32, kHead = 16, kHeads = 8, kLayers = 2;
  HeadFile file;
  file.add("model.embed_tokens.weight", {vocab, kHidden}, 1);
  file.add("lm_head.weight", {vocab, kHidden});
  file.add("model.norm.weight", {kHidden}, 0.25f, 1);
  for (int32_t i = 0; i < kLayers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    file.add(layer + "input_layernorm.weight", {kHidden}, 0.25f, 1);
    file.add(layer + "post_attention_layernorm.weight", {kHidden}, 0.25f, 1);
    const auto matrix = [&](const std::string& name, int32_t n_out, int32_t n_in) {
      file.add(layer + name + ".weight", {n_out, n_in});
      file.add(layer + name + ".bias", {n_out});
    };
    matrix("self_attn.q_proj", kHeads * kHead, kHidden);
    matrix("self_attn.k_proj", n_kv_heads * kHead, kHidden);
    matrix("self_attn.v_proj", n_kv_heads * kHead, kHidden);
    matrix("self_attn.o_proj", kHidden, kHeads * kHead);
    matrix("mlp.gate_proj", columns, kHidden);
    matrix("mlp.up_proj", columns, kHidden);
    matrix("mlp.down_proj", kHidden, columns);
  }
  file.write(folder, {{"architectures", {"LlamaForCausalLM"}},
                      {"model_type", "llama"},
                      {"hidden_size", kHidden},
                      {"intermediate_size", columns},
                      {"num_hidden_layers", kLayers},
                      {"num_attention_heads", kHeads},
                      {"num_key_value_heads", n_kv_heads},
                      {"head_dim", kHead},
                      {"vocab_size", vocab},
                      {"max_position_embeddings", 256},
                      {"rms_norm_eps", 1e-5},
                      {"rope_theta", 10000.0},
                      {"hidden_act", "silu"},
                      {"attention_bias", true},
                      {"mlp_bias", true},
                      {"tie_word_embeddings", false},
                      {"bos_token_id", 1},
                      {"eos_token_id", 2},
                      {"torch_dtype", "float32"}});
  return folder;
}

}  // namespace specd
