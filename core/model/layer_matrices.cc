#include "core/model/layer_matrices.h"

namespace specd {

std::array<LayerMatrix, 7> layer_matrices(const ModelConfig& c, int32_t layer) {
  const int32_t h = c.hidden_size, q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim,
                mlp = c.intermediate_size;
  const auto of = [&](LayerMatrixKind kind, int32_t n_out, int32_t n_in, bool has_bias) {
    return LayerMatrix{"model.layers." + std::to_string(layer) + "." + kLayerMatrixNames[kind],
                       n_out, n_in, has_bias};
  };
  return {of(kQProj, q, h, c.qkv_bias),      of(kKProj, kv, h, c.qkv_bias),
          of(kVProj, kv, h, c.qkv_bias),     of(kOProj, h, q, c.o_bias),
          of(kGateProj, mlp, h, c.mlp_bias), of(kUpProj, mlp, h, c.mlp_bias),
          of(kDownProj, h, mlp, c.mlp_bias)};
}

}  // namespace specd
