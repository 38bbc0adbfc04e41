// out[r][j] = sum over k of x[r][k] * w[j][k], in strict arithmetic.
//
// Strict: out[r][j] is one fixed sequence of float32 operations for any n_rows, threads and
// instruction set. For each of k_segments segments of k ([n_in*s/S, n_in*(s+1)/S)), in order, it is
// a chain of fused multiply-adds from zero along increasing k; the segment sums are then added in
// order. Weights are widened exactly. k_segments is 8 for the row-parallel matrices (o_proj,
// down_proj), otherwise 1. A matrix of codes has its own arithmetic (codes.h), without segments.
//
// Ranks: the part [n_in*r/R, n_in*(r+1)/R) of k with S/R segments has the segment sums that all of k
// has there (SplitRule). Each rank leaves its sums apart, and adding those of all ranks in order
// (AddSegmentsArgs) gives the bits of one rank.
#pragma once

#include "specd/kernels/codes.h"
#include "specd/kernels/types.h"

namespace specd::kernels {

// A weight matrix in the backend's layout; the caller owns `data`.
struct PackedMatrix {
  DType dtype = DType::kF32;
  int32_t n_out = 0;
  int32_t n_in = 0;
  void* data = nullptr;  // packed_bytes(), aligned to 64
  // Of a matrix of codes, see codes.h; it has no dtype, and `data` is packed_code_bytes().
  const CodeOrder* order = nullptr;
};

// Copies rows [0, n_rows) of a row-major [n_rows, n_in] source into output columns [column_begin,
// column_begin + n_rows) of `packed` (q, k and v are packed side by side). The source has the dtype
// of `packed` and may be unaligned. Columns that are never packed are undefined.
struct PackArgs {
  PackedMatrix packed;
  const void* source = nullptr;
  int64_t source_stride = 0;  // elements from one row to the next; 0 = n_in
  int32_t n_rows = 0;
  int32_t column_begin = 0;
  // Of a matrix of codes, whose source has a byte for each code:
  const float* scale = nullptr;   // [n_rows, n_groups]
  const uint8_t* zero = nullptr;  // [n_rows, n_groups], if order->has_zeros
};

// How ranks may share the k of a row-parallel matrix.
struct SplitRule {
  int32_t grain = 1;  // a rank's part of k is a multiple of it
  // Of all ranks together; the number of ranks divides it. 0: the backend does not keep the order of
  // additions, and a rank has one segment.
  int32_t segments = 8;
};

struct MatmulArgs {
  const float* x = nullptr;  // [n_rows, n_in], contiguous
  PackedMatrix weights;
  float* out = nullptr;  // [n_rows, n_out], contiguous; never aliases x
  int32_t n_rows = 0;
  int32_t k_segments = 1;
  // Segment sums are not added: out is [k_segments, n_rows, n_out]. Not of codes.
  bool apart = false;
  // For codes on the CPU: matmul_scratch_bytes(), aligned to 64. Devices have their own.
  void* scratch = nullptr;
  // The matrix of the matmul after this one, if known: a hint, by which the CPU fetches codes ahead. Lives as long
  // as the call may run.
  const PackedMatrix* next = nullptr;
};

// Where a matmul of codes on the CPU keeps x in its scratch: in the packed order, and rounded with x_bits 8 and 16.
struct RoundedRows {
  // Bytes of a row of integers: an odd number of lines, so that rows use different sets of a cache.
  __attribute__((always_inline)) static size_t stride(const CodeOrder& order) {
    const size_t bytes = static_cast<size_t>(order.depth) * static_cast<size_t>(order.x_bits / 8);
    return ((bytes + 63) / 64 | 1) * 64;
  }
  // [n_rows][stride]: int8_t, or int16_t of which each 8 are reordered by place_of_word() (kernels/cpu/code_tiles.h),
  // or for the tiles of kernels/cpu/amx.cc the high bytes [depth] of all k, then the low ones.
  int8_t* integers = nullptr;
  float* scale = nullptr;  // [n_rows, n_runs]
  // [n_rows, n_runs]: -(sum of q), multiplied by the zero of all columns if they have the same.
  int32_t* start = nullptr;
  // Floats: [blocks][n_rows][kFloatStride], each with kFloatBlock k. So the distance of two rows is a
  // constant, and not a power of two.
  static constexpr size_t kFloatBlock = 512, kFloatStride = kFloatBlock + 16;
  float* value = nullptr;
  size_t rows = 0;
  __attribute__((always_inline)) float* value_at(size_t row, size_t k) const {
    return value + (k / kFloatBlock * rows + row) * kFloatStride + k % kFloatBlock;
  }

  __attribute__((always_inline)) RoundedRows(const CodeOrder& order, int32_t n_rows, void* scratch)
      : rows(static_cast<size_t>(n_rows)) {
    if (order.x_bits == 32) {
      value = static_cast<float*>(scratch);
      return;
    }
    integers = static_cast<int8_t*>(scratch);
    scale = reinterpret_cast<float*>(integers + rows * stride(order));
    start = reinterpret_cast<int32_t*>(scale + rows * static_cast<size_t>(order.n_runs));
  }
  __attribute__((always_inline)) static size_t bytes(const CodeOrder& order, int32_t n_rows) {
    const size_t depth = static_cast<size_t>(order.depth),
                 of_row =
                     order.x_bits == 32
                         ? (depth + kFloatBlock - 1) / kFloatBlock * kFloatStride * sizeof(float)
                         : stride(order) + static_cast<size_t>(order.n_runs) *
                                               (sizeof(float) + sizeof(int32_t));
    return static_cast<size_t>(n_rows) * of_row;
  }
};
inline size_t matmul_scratch_bytes(const PackedMatrix& weights, int32_t n_rows) {
  return weights.order == nullptr ? 0 : RoundedRows::bytes(*weights.order, n_rows);
}

}  // namespace specd::kernels
