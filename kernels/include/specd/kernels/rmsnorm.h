// Residual add and RMSNorm: x += delta; out = x / sqrt(mean(x^2) + eps) * weight. float32.
// Strict: element i goes to partial sum i % 16 by fused multiply-add in increasing i; the 16 sums
// are added as a tree (stride 8, 4, 2, 1). Source: transformers modeling_llama.py, LlamaRMSNorm.
#pragma once

#include "specd/kernels/types.h"

namespace specd::kernels {

struct RmsNormArgs {
  float* x = nullptr;             // [n_rows, n], in and out: the residual stream
  const float* delta = nullptr;   // [n_rows, n] or null
  const float* weight = nullptr;  // [n]
  float* out = nullptr;           // [n_rows, n]; may not alias x; null = only the addition
  int32_t n_rows = 0;
  int32_t n = 0;
  float eps = 0;
};

// The same over every head of q and k, in place; v is unchanged (Qwen3, before the rotation).
struct HeadNormArgs {
  float* qkv = nullptr;             // [n_rows, (n_heads + 2 n_kv_heads) * head_dim]
  const float* q_weight = nullptr;  // [head_dim]
  const float* k_weight = nullptr;  // [head_dim]
  int32_t n_rows = 0;
  int32_t n_heads = 0;
  int32_t n_kv_heads = 0;
  int32_t head_dim = 0;
  float eps = 0;
};

}  // namespace specd::kernels
