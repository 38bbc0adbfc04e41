// Row-wise ops without a reduction.
#pragma once

#include "specd/kernels/types.h"

namespace specd::kernels {

// out[r] = table[token[r]], widened; zeros for a token outside [0, vocab).
struct EmbedArgs {
  const void* table = nullptr;  // [vocab, n] row-major, may be unaligned
  DType dtype = DType::kF32;
  const int32_t* token = nullptr;  // [n_rows]
  float* out = nullptr;            // [n_rows, n]
  int32_t n_rows = 0;
  int32_t n = 0;
  int32_t vocab = 0;
};

// out[r][i] = f(x[r][i], y[r][i]). Rows may be apart by any stride, in elements; with 0 all rows are
// one (a bias). `out` may be x or y; otherwise it overlaps neither.
// silu(x) = x / (1 + exp(-x)), exp as in kernels/cpu/math.h (equal bits for every instruction set).
enum class MapOp : uint8_t {
  kAdd,      // x + y
  kMul,      // x * y
  kSilu,     // silu(x); y is not read
  kSiluAdd,  // silu(x) + y
  kSiluMul   // silu(x) * y
};
struct MapArgs {
  MapOp op = MapOp::kAdd;
  const float* x = nullptr;
  const float* y = nullptr;
  float* out = nullptr;
  int32_t n_rows = 0;
  int32_t n = 0;
  int64_t x_stride = 0, y_stride = 0, out_stride = 0;
};

// x[r] += bias, for dense rows.
inline MapArgs add_bias(float* x, const float* bias, int32_t n_rows, int32_t n) {
  return {.op = MapOp::kAdd,
          .x = x,
          .y = bias,
          .out = x,
          .n_rows = n_rows,
          .n = n,
          .x_stride = n,
          .y_stride = 0,
          .out_stride = n};
}

// out[i] = parts[0][i] + parts[1][i] + .., in this order: the sums of a matmul whose segments are apart.
struct AddSegmentsArgs {
  const float* parts = nullptr;  // [n_parts, n_rows, n], contiguous
  float* out = nullptr;          // [n_rows, n]; overlaps no part
  int32_t n_parts = 0;           // 1 to 8
  int32_t n_rows = 0;
  int32_t n = 0;
};

// to[to_row[i]] = from[from_row[i]] for rows of n elements of 32 bits, strides in elements; a null
// list means row i. A row outside [0, from_rows) or [0, to_rows) is skipped. No row is written twice
// and none is read that is written.
struct CopyRowsArgs {
  const void* from = nullptr;
  void* to = nullptr;
  const int32_t* from_row = nullptr;  // [n_rows] or null
  const int32_t* to_row = nullptr;    // [n_rows] or null
  int32_t n_rows = 0;
  int32_t n = 0;
  int32_t from_rows = 0, to_rows = 0;
  int64_t from_stride = 0, to_stride = 0;
};

}  // namespace specd::kernels
