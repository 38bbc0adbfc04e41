// What packing, rounding and multiplying matrices of codes share: where codes, scales and x are.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/backend.h"

namespace specd::kernels::cuda {

constexpr int kWarp = 32;

// k of the 16 bytes of a lane. A run may begin and end within.
__host__ __device__ constexpr int chunk_of(int bits) { return 128 / bits; }

// Codes, [panel][chunk][lane] of 16 bytes: those of 8 bits along k; of 4 bits in words that have k 0 to 3 in the
// low halves of their bytes and k 4 to 7 in the high halves. Then the scales, [panel][group][lane], times 256
// for E4M3FN, and the zeros, likewise.
struct CodePanels {
  uint4* codes;
  float* scale;
  uint8_t* zero;  // null: none
  int32_t chunks, groups;
};

// Of a run of a row.
struct alignas(8) OfRun {
  float scale;
  int32_t sum;  // of q
};

struct MultiplyArgs {
  CodePanels weights;
  const uint4* x;       // [n_rows][chunk][pieces of a chunk]
  const OfRun* of_run;  // [n_rows][n_runs]
  const Run* runs;
  float* out;
  int32_t n_out, n_rows, n_runs;
};

void multiply_codes(CudaStream& stream, int32_t bits, int32_t x_bits, const MultiplyArgs& a);
// E4M3FN, `numerics: fast`. x: bfloat16, each four k in the order 0, 2, 1, 3, and 0 behind the last run.
void multiply_codes_fast(CudaStream& stream, const MultiplyArgs& a);

}  // namespace specd::kernels::cuda
