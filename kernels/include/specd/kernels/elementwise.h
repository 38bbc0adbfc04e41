// Row-wise ops without a reduction.
#pragma once

#include "specd/kernels/types.h"

namespace specd::kernels {

// out[r] = table[token[r]], widened. REQUIRES tokens in range.
struct EmbedArgs {
  const void* table = nullptr;  // [vocab, n] row-major, may be unaligned
  DType dtype = DType::kF32;
  const int32_t* token = nullptr;  // [n_rows]
  float* out = nullptr;            // [n_rows, n]
  int32_t n_rows = 0;
  int32_t n = 0;
};

// out[r] = silu(gate[r]) * up[r], with gate and up side by side in one row.
// silu(g) = g / (1 + exp(-g)), exp as in kernels/cpu/math.h (equal bits for every instruction set).
struct SiluMulArgs {
  const float* gate_up = nullptr;  // [n_rows, 2 * n]
  float* out = nullptr;            // [n_rows, n]
  int32_t n_rows = 0;
  int32_t n = 0;
};

// x[r] += bias
struct AddBiasArgs {
  float* x = nullptr;           // [n_rows, n]
  const float* bias = nullptr;  // [n]
  int32_t n_rows = 0;
  int32_t n = 0;
};

// out[i] = x[row[i]]
struct GatherRowsArgs {
  const float* x = nullptr;      // [.., n]
  const int32_t* row = nullptr;  // [n_rows]
  float* out = nullptr;          // [n_rows, n]
  int32_t n_rows = 0;
  int32_t n = 0;
};

}  // namespace specd::kernels
