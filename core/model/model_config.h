// A checked config.json of a model directory; for generation_config.json see generation_config.h.
//
// Supported: Llama 2, 3, 3.1 and 3.2, Mistral, Qwen2 and 2.5, Qwen3 (dense). A key that changes the
// arithmetic in an unsupported way is refused (kUnsupported) with its value and what is supported.
// So is an unknown key, because ignoring it could silently give wrong results. Values out of range
// are kDataLoss. Absent keys have the defaults of transformers' configuration_*.py, except those
// that every checkpoint of a family writes: they are required.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/model/quantization.h"
#include "core/model/rope.h"

namespace specd {

// Levels of a draft tree; SPECD_MAX_TREE_DEPTH of the plugin boundary.
inline constexpr int32_t kDraftDepthMax = 64;

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
  // All positions of rows are below this: draft nodes may be past the last position of a text.
  int32_t positions_end() const { return max_positions + kDraftDepthMax; }
  double rms_norm_eps = 0;
  Rope rope;
  bool tie_word_embeddings = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool head_norm = false;  // norms of q and k, per head, before the rotation
  // per layer: positions a row attends to, including its own; 0 = all
  std::vector<int32_t> window;
  int32_t bos_token = -1;           // -1: none
  bool is_ballast = false;          // "_specd_ballast": weights added for measurements only
  std::vector<int32_t> eos_tokens;  // any of them ends a text
  Quantization quantization;
};

// Reads model_dir/config.json, and the file beside it that says how the weights are quantized, if one does.
Result<ModelConfig> load_model_config(const std::string& model_dir);
// What config.json says of everything but quantization; `where` names it in errors.
Result<ModelConfig> read_model_config(const Json& config, const std::string& where);

// Stores the ids of config's `eos_token_id`, an integer or a list, in `out`. Leaves `out` unchanged
// when the key is absent or null.
Status read_eos_tokens(const Json& config, int32_t vocab_size, const std::string& where,
                       std::vector<int32_t>& out);

}  // namespace specd
