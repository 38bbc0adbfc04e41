// The linear layers of a decoder layer: their modules in a checkpoint and their shapes.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/model/model_config.h"

namespace specd {

// In the order of a forward.
enum LayerMatrixKind { kQProj, kKProj, kVProj, kOProj, kGateProj, kUpProj, kDownProj };
inline constexpr std::array<const char*, 7> kLayerMatrixNames = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};

struct LayerMatrix {
  std::string module;  // "model.layers.0.self_attn.q_proj"
  int32_t n_out = 0, n_in = 0;
  bool has_bias = false;  // by config.json; quantizers write some for layers that had none
};

// By LayerMatrixKind.
std::array<LayerMatrix, 7> layer_matrices(const ModelConfig& config, int32_t layer);

}  // namespace specd
