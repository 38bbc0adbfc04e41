// config.json (and generation_config.json) of a model directory, checked.
//
// Supported: LlamaForCausalLM with plain rotary positions, no biases, silu, full attention. A key
// that would change the arithmetic in a way not implemented here is refused (kUnsupported) with its
// value and what is supported; so is a key nobody here has heard of, because ignoring it could be
// wrong in silence. Values out of range are kDataLoss.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace specd {

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM"
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t n_layers = 0;
  int32_t n_heads = 0;
  int32_t n_kv_heads = 0;  // divides n_heads
  int32_t head_dim = 0;    // a multiple of 16; not always hidden_size / n_heads
  int32_t vocab_size = 0;
  int32_t max_positions = 0;
  double rms_norm_eps = 0;
  double rope_theta = 0;
  bool tie_word_embeddings = false;
  int32_t bos_token = -1;           // -1: none
  bool is_ballast = false;          // "_specd_ballast": weights added for measurements only
  std::vector<int32_t> eos_tokens;  // any of them ends a text; generation_config.json goes first
};

// Reads model_dir/config.json, and model_dir/generation_config.json when it exists.
Result<ModelConfig> load_model_config(const std::string& model_dir);

}  // namespace specd
