// Instructions that CUDA C++ has no name for. tests/device/emulated has a plain body for each.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace specd::kernels::cuda {

// A lane's part of fragment C of mma.m16n8k16.
struct Sums {
  float v[4];
};

// c += A B, by all lanes of a warp. The order in which the instruction adds its 16 products to c is the
// device's own (PTX ISA, "Matrix multiply-accumulate operation using mma instruction").
__device__ inline void mma(Sums& c, const uint4& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// sum + the products of four codes, without signs, and four bytes of x, with signs.
__device__ inline int32_t add_products(int32_t sum, uint32_t codes, uint32_t x) {
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(codes), "r"(x));
  return sum;
}

// Two bfloat16, rounded to nearest even, `low` in the low half.
__device__ inline uint32_t bfloat16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// The products of two pairs of bfloat16, rounded likewise, with subnormals. -0 is added, so that a zero keeps its
// sign.
__device__ inline uint32_t multiply_pairs(uint32_t left, uint32_t right) {
  uint32_t products;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(products) : "r"(left), "r"(right), "r"(0x80008000u));
  return products;
}

// An address in shared memory. shared_at() keeps it in a register; the compiler would compute it again for
// each copy.
using SharedAt = uint32_t;
__device__ inline SharedAt shared_at(const void* data) {
  auto at = static_cast<SharedAt>(__cvta_generic_to_shared(data));
  asm volatile("" : "+r"(at));
  return at;
}

// Copies 16 bytes of device memory into shared memory without a wait, if wanted; both aligned to 16. This
// thread sees them after a wait, others after a barrier that follows it.
constexpr int kCopyBytes = 16;
__device__ inline void copy_async(SharedAt to, const void* from, bool wanted = true) {
  asm volatile(
      "{ .reg .pred wanted; setp.ne.b32 wanted, %2, 0; @wanted cp.async.cg.shared.global [%0], [%1], 16; }" ::
          "r"(to),
      "l"(__cvta_generic_to_global(from)), "r"(static_cast<int>(wanted))
      : "memory");
}
// Ends a group of copies, which may be empty.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all groups of this thread but the last kPending.
template <int kPending>
__device__ inline void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// Waits for all copies of this thread, in a group or not.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Four 8 x 8 matrices of 16 bits from shared memory, transposed, as A of mma() (ldmatrix). A lane gives the
// address of 8 elements, aligned to 16 bytes: row lane % 8 of matrix lane / 8. It gets of each matrix the
// elements [2 * (lane % 4)], [2 * (lane % 4) + 1] of column lane / 4.
__device__ inline uint4 load_transposed(SharedAt row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row)
               : "memory");
  return v;
}

// A kernel of launch_early() calls the first where the next kernel of the stream may start, and the second,
// in every thread, before it reads what an earlier kernel wrote and before it writes device memory.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace specd::kernels::cuda
