// The instructions of kernels/cuda/ptx.cuh, for the emulator.
#pragma once

#include <bit>
#include <cstdint>

#include "tests/device/emulated/include/cuda_bf16.h"
#include "tests/device/emulated/include/cuda_runtime.h"

namespace specd::kernels::cuda {

struct Sums {
  float v[4];
};

namespace emulated {

struct MmaLane {
  Sums* c;
  uint32_t a[4];
  uint32_t b[2];
};

inline float half_of(uint32_t pair, int which) {
  return std::bit_cast<float>(which == 0 ? pair << 16 : pair & 0xffff0000u);
}

// D = A B + C with the fragments of mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"):
// A[16][16] by rows, B[16][8] by columns, C[16][8]. A product of two bfloat16 is exact in float32.
//
// The PTX ISA leaves the order of the sum open. order 0: k increasing. order 1: two halves of 8, each
// summed as a tree, then added to C; the tensor cores of sm_80 and later add groups of 8.
__attribute__((no_sanitize("thread"))) inline void mma_16x8x16(
    void* const lanes[specd::emulated::kWarp], const void* context) {
  const int order = *static_cast<const int*>(context);
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < specd::emulated::kWarp; ++lane) {
    const auto& from = *static_cast<const MmaLane*>(lanes[lane]);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const int row = group + i % 2 * 8, k = pair + i / 2 * 8;
      a[row][k] = half_of(from.a[i], 0), a[row][k + 1] = half_of(from.a[i], 1);
      c[group + i / 2 * 8][pair + i % 2] = from.c->v[i];
    }
    for (int i = 0; i < 2; ++i) {
      const int k = pair + i * 8;
      b[k][group] = half_of(from.b[i], 0), b[k + 1][group] = half_of(from.b[i], 1);
    }
  }
  for (int row = 0; row < 16; ++row) {
    if (order == 0) {
      for (int k = 0; k < 16; ++k) {
        for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
      }
      continue;
    }
    for (int half = 0; half < 16; half += 8) {
      float product[8][8];
      for (int k = 0; k < 8; ++k) {
        for (int column = 0; column < 8; ++column) {
          product[k][column] = a[row][half + k] * b[half + k][column];
        }
      }
      for (int width = 4; width > 0; width /= 2) {
        for (int k = 0; k < width; ++k) {
          for (int column = 0; column < 8; ++column)
            product[k][column] += product[k + width][column];
        }
      }
      for (int column = 0; column < 8; ++column) c[row][column] += product[0][column];
    }
  }
  for (int lane = 0; lane < specd::emulated::kWarp; ++lane) {
    Sums& to = *static_cast<const MmaLane*>(lanes[lane])->c;
    for (int i = 0; i < 4; ++i) to.v[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

}  // namespace emulated

inline void mma(Sums& c, const uint4& a, uint32_t b0, uint32_t b1,
                specd::emulated::Where where = specd::emulated::Where::current()) {
  emulated::MmaLane mine{&c, {a.x, a.y, a.z, a.w}, {b0, b1}};
  specd::emulated::warp_barrier("mma.sync", 0xffffffffu, &mine, &emulated::mma_16x8x16,
                                &specd::emulated::mma_order, false, where);
}

inline int32_t add_products(int32_t sum, uint32_t codes, uint32_t x) {
  auto total = static_cast<uint32_t>(sum);
  for (int i = 0; i < 4; ++i) {
    const int32_t product =
        static_cast<uint8_t>(codes >> 8 * i) * int32_t{static_cast<int8_t>(x >> 8 * i)};
    total += static_cast<uint32_t>(product);
  }
  return static_cast<int32_t>(total);
}

inline uint32_t bfloat16_pair(float low, float high) {
  return uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(low))} |
         uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(high))} << 16;
}

inline uint32_t multiply_pairs(uint32_t left, uint32_t right) {
  const auto product = [&](int which) {
    return emulated::half_of(left, which) * emulated::half_of(right, which);
  };
  return bfloat16_pair(product(0), product(1));
}

using SharedAt = char*;
inline SharedAt shared_at(void* data) { return static_cast<char*>(data); }

namespace emulated {

struct MatrixLane {
  const uint16_t* row;
  uint32_t got[4];
};
__attribute__((no_sanitize("thread"))) inline void transpose(
    void* const lanes[specd::emulated::kWarp], const void*) {
  for (int lane = 0; lane < specd::emulated::kWarp; ++lane) {
    auto& to = *static_cast<MatrixLane*>(lanes[lane]);
    for (int matrix = 0; matrix < 4; ++matrix) {
      const auto element = [&](int row) {
        return uint32_t{static_cast<const MatrixLane*>(lanes[matrix * 8 + row])->row[lane / 4]};
      };
      to.got[matrix] = element(lane % 4 * 2) | element(lane % 4 * 2 + 1) << 16;
    }
  }
}

}  // namespace emulated

inline uint4 load_transposed(SharedAt row,
                             specd::emulated::Where where = specd::emulated::Where::current()) {
  specd::emulated::touch(row, 16, false, false, where);
  emulated::MatrixLane mine{reinterpret_cast<const uint16_t*>(row), {}};
  specd::emulated::warp_barrier("ldmatrix", 0xffffffffu, &mine, &emulated::transpose, nullptr,
                                false, where);
  return make_uint4(mine.got[0], mine.got[1], mine.got[2], mine.got[3]);
}

constexpr int kCopyBytes = 16;
inline void copy_async(SharedAt to, const void* from, bool wanted = true,
                       specd::emulated::Where where = specd::emulated::Where::current()) {
  if (wanted) specd::emulated::copy_async(to, from, kCopyBytes, where);
}
inline void commit_copies() { specd::emulated::commit_copies(); }
template <int kPending>
void wait_for_groups() {
  specd::emulated::wait_for_groups(kPending);
}
inline void let_next_start() {}
inline void wait_for_previous() { specd::emulated::wait_for_previous(); }
inline void wait_for_copies() { specd::emulated::wait_for_copies(); }

}  // namespace specd::kernels::cuda
