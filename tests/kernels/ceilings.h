// The machine's limits, measured in the same run as the claims: the bandwidth of a loop that only
// reads, and the peak of fused multiply-adds on registers. For benchmarks only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "specd/kernels/cpu.h"

namespace specd::kernels::bench {

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Argument `index` of a benchmark, a number from 1; on any other value prints `usage` and exits.
inline int argument(int argc, char** argv, int index, int fallback, const char* usage) {
  if (argc <= index) return fallback;
  const int value = std::atoi(argv[index]);
  if (value > 0) return value;
  std::fprintf(stderr, "usage: %s\n", usage);
  std::exit(2);
}

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.size() % 2 != 0 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

#if defined(__x86_64__)
#define BENCH_X86 1
// Reads kStreams equal ranges side by side.
template <int kStreams>
__attribute__((target("avx2"))) uint64_t read_avx2(const char* p, size_t bytes) {
  const size_t stretch = bytes / kStreams / 64 * 64;
  __m256i a[kStreams], b[kStreams];
#pragma GCC unroll 8
  for (int s = 0; s < kStreams; ++s) a[s] = b[s] = _mm256_setzero_si256();
  for (size_t i = 0; i < stretch; i += 64) {
#pragma GCC unroll 8
    for (int s = 0; s < kStreams; ++s) {
      const char* q = p + s * stretch + i;
      a[s] = _mm256_xor_si256(a[s], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q)));
      b[s] = _mm256_xor_si256(b[s], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + 32)));
      _mm_prefetch(q + 1024, _MM_HINT_T0);
    }
  }
#pragma GCC unroll 8
  for (int s = 0; s < kStreams; ++s) a[0] = _mm256_xor_si256(a[0], _mm256_xor_si256(a[s], b[s]));
  return static_cast<uint64_t>(_mm256_extract_epi64(a[0], 0));
}

// 12 chains of vector multiply-adds; returns a value so that the compiler cannot drop them.
__attribute__((target("avx2,fma"))) inline float fma_avx2(int64_t rounds) {
  __m256 acc[12];
  const __m256 x = _mm256_set1_ps(0.999999f), y = _mm256_set1_ps(1e-6f);
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) acc[i] = _mm256_set1_ps(static_cast<float>(i));
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) acc[i] = _mm256_fmadd_ps(acc[i], x, y);
  }
#pragma GCC unroll 12
  for (int i = 1; i < 12; ++i) acc[0] = _mm256_add_ps(acc[0], acc[i]);
  return _mm256_cvtss_f32(acc[0]);
}
__attribute__((target("avx512f"))) inline float fma_avx512(int64_t rounds) {
  __m512 acc[12];
  const __m512 x = _mm512_set1_ps(0.999999f), y = _mm512_set1_ps(1e-6f);
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) acc[i] = _mm512_fmadd_ps(acc[i], x, y);
  }
#pragma GCC unroll 12
  for (int i = 1; i < 12; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  float lanes[16];
  _mm512_storeu_ps(lanes, acc[0]);
  return lanes[0];
}
#endif

inline uint64_t read_plain(const char* p, size_t bytes) {
  uint64_t sum[4] = {};
  for (size_t i = 0; i + 32 <= bytes; i += 32) {
    uint64_t v[4];
    std::memcpy(v, p + i, 32);
    for (int j = 0; j < 4; ++j) sum[j] ^= v[j];
  }
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

inline volatile uint64_t g_sink;

// One thread reads `bytes` bytes as `streams` ranges side by side (1, 2, 4 or 8).
inline void read_bytes(const char* p, size_t bytes, [[maybe_unused]] int streams) {
#if defined(BENCH_X86)
  // In a virtual machine the question takes 10 us, as long as reading a small matrix.
  static const bool has_avx2 = isa_available(Isa::kAvx2);
  if (has_avx2) {
    g_sink = streams == 1   ? read_avx2<1>(p, bytes)
             : streams == 2 ? read_avx2<2>(p, bytes)
             : streams == 4 ? read_avx2<4>(p, bytes)
                            : read_avx2<8>(p, bytes);
    return;
  }
#endif
  g_sink = read_plain(p, bytes);
}

struct FmaCall {
  Isa isa;
  int64_t rounds;
};

inline void fma_part(void* ctx, int, int) {
  const FmaCall& call = *static_cast<const FmaCall*>(ctx);
  float value = 0;
#if defined(BENCH_X86)
  if (call.isa == Isa::kAvx512) {
    value = fma_avx512(call.rounds);
  } else if (isa_available(Isa::kAvx2)) {
    value = fma_avx2(call.rounds);
  }
#endif
  g_sink = static_cast<uint64_t>(value);
}

// Multiply-adds per second of all threads of `pool` together.
inline double fma_peak(WorkerPool& pool, Isa isa) {
  FmaCall call{isa, 400000};
  const double start = seconds();
  pool.run(fma_part, &call);
  const int lanes = isa == Isa::kAvx512 ? 16 : 8;
  return 12.0 * lanes * static_cast<double>(call.rounds) * pool.n_threads() / (seconds() - start);
}

}  // namespace specd::kernels::bench
