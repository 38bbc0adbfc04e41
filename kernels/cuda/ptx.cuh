// Instructions that CUDA C++ has no name for. tests/device/emulated has a plain body for each.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace specd::kernels::cuda {

// A lane's part of fragment C of mma.m16n8k16.
struct Sums {
  float v[4];
};

// These two are not volatile: volatile assembler keeps its order, and then no load is on its way beside
// another.

// c += A B, by all lanes of a warp. The order in which the instruction adds its 16 products to c is the
// device's own (PTX ISA, "Matrix multiply-accumulate operation using mma instruction").
__device__ inline void mma(Sums& c, const uint4& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// Weights are read once and must not evict x from the cache.
__device__ inline uint4 read_once(const uint4* p) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p));
  return v;
}

// Copies 16 bytes of device memory into shared memory without a wait; both aligned to 16. This thread
// sees them after wait_for_copies(), others after a barrier that follows it.
constexpr int kCopyBytes = 16;
__device__ inline void copy_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(__cvta_generic_to_global(from))
               : "memory");
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace specd::kernels::cuda
