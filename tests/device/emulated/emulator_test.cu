// The emulator runs kernels as a device would, and names what breaks a rule.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/base/sanitizer.h"
#include "kernels/cuda/ptx.cuh"

namespace specd::emulated {
namespace {

constexpr unsigned kAll = 0xffffffffu;

// Under AddressSanitizer accesses are its own: it sees those outside of memory and ends the process.
#if SPECD_ASAN
constexpr bool kSeesAccesses = false;
// The stacks of threads that failed are left as they are, with the words of the report.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:specd::emulated::Block::run_thread";
}
#else
constexpr bool kSeesAccesses = true;
#endif

class Emulator : public testing::Test {
 protected:
  Emulator() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess); }
  ~Emulator() override {
    cudaDeviceReset();
    cudaStreamDestroy(stream);
  }

  template <typename T>
  T* device(const std::vector<T>& values) {
    void* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, values.size() * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(data, values.data(), values.size() * sizeof(T),
                              cudaMemcpyHostToDevice, stream),
              cudaSuccess);
    return static_cast<T*>(data);
  }
  template <typename T>
  std::vector<T> host(const T* data, size_t n) {
    std::vector<T> values(n);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost, stream),
              cudaSuccess);
    return values;
  }
  // The report of work that must fail.
  template <typename Fn>
  std::string report_of(Fn&& submit) {
    testing::internal::CaptureStderr();
    submit();
    const cudaError_t at_launch = cudaGetLastError();
    const cudaError_t later = cudaStreamSynchronize(stream);
    EXPECT_TRUE(at_launch != cudaSuccess || later != cudaSuccess);
    const std::string report = testing::internal::GetCapturedStderr();
    cudaDeviceReset();
    return report;
  }
  static void names(const std::string& report, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
      EXPECT_NE(report.find(part), std::string::npos) << part << " is not in: " << report;
    }
  }

  cudaStream_t stream = nullptr;
};

// ---- what is right -----------------------------------------------------------------------------

__global__ void __launch_bounds__(256) sum_of_block(const int* in, int* out) {
  __shared__ int sums[256];
  sums[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    __syncthreads();
    if (threadIdx.x < stride) sums[threadIdx.x] += sums[threadIdx.x + stride];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}

TEST_F(Emulator, blocks_add_through_shared_memory) {
  std::vector<int> in(4 * 256);
  std::iota(in.begin(), in.end(), 0);
  const int* from = device(in);
  int* to = device(std::vector<int>(4, -1));
  sum_of_block<<<4, 256, 0, stream>>>(from, to);
  for (int block = 0; block < 4; ++block) {
    EXPECT_EQ(host(to, 4)[static_cast<size_t>(block)],
              std::accumulate(in.begin() + block * 256, in.begin() + (block + 1) * 256, 0));
  }
}

__global__ void coordinates(unsigned* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}

TEST_F(Emulator, every_thread_of_every_block_runs_once) {
  unsigned* out = device(std::vector<unsigned>(2 * 3 * 5 * 4 * 3 * 2, 7));
  coordinates<<<dim3(2, 3, 5), dim3(4, 3, 2), 0, stream>>>(out);
  const std::vector<unsigned> got = host(out, 2 * 3 * 5 * 24);
  for (unsigned i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], i / 24 * 1000 + i % 24);
}

__global__ void exchanges(int* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32, own = static_cast<int>(threadIdx.x) * 10;
  int* mine = out + threadIdx.x * 7;
  mine[0] = __shfl_down_sync(kAll, own, 3);
  mine[1] = __shfl_up_sync(kAll, own, 3);
  mine[2] = __shfl_xor_sync(kAll, own, 5);
  mine[3] = __shfl_sync(kAll, own, 40);  // modulo the width
  mine[4] = static_cast<int>(__ballot_sync(kAll, lane % 3 == 0));
  mine[5] = __shfl_down_sync(kAll, own, 2, 8);
  mine[6] = __syncthreads_count(lane < 5);
}

TEST_F(Emulator, lanes_exchange_values_as_the_programming_guide_says) {
  int* out = device(std::vector<int>(64 * 7, -1));
  exchanges<<<1, 64, 0, stream>>>(out);
  const std::vector<int> got = host(out, 64 * 7);
  for (int t = 0; t < 64; ++t) {
    const int lane = t % 32, first = t - lane;
    const auto* mine = &got[static_cast<size_t>(t) * 7];
    EXPECT_EQ(mine[0], (lane + 3 < 32 ? t + 3 : t) * 10);
    EXPECT_EQ(mine[1], (lane >= 3 ? t - 3 : t) * 10);
    EXPECT_EQ(mine[2], (first + (lane ^ 5)) * 10);
    EXPECT_EQ(mine[3], (first + 8) * 10);
    EXPECT_EQ(static_cast<unsigned>(mine[4]), 0x49249249u);
    EXPECT_EQ(mine[5], (lane % 8 + 2 < 8 ? t + 2 : t) * 10);
    EXPECT_EQ(mine[6], 10);
  }
}

__global__ void some_lanes(unsigned* out) {
  const unsigned mask = __ballot_sync(kAll, threadIdx.x % 2 == 0);
  if (threadIdx.x % 2 == 0) out[threadIdx.x] = __ballot_sync(mask, threadIdx.x < 8);
}

TEST_F(Emulator, a_mask_of_some_lanes_waits_for_those_only) {
  unsigned* out = device(std::vector<unsigned>(32, 0));
  some_lanes<<<1, 32, 0, stream>>>(out);
  EXPECT_EQ(host(out, 32)[4], 0x55u);
}

__global__ void count_all(unsigned long long* in_shared, int* in_device) {
  __shared__ unsigned long long sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, 2ull);
  atomicAdd(in_device, 1);
  __syncthreads();
  if (threadIdx.x == 0) in_shared[blockIdx.x] = sum;
}

TEST_F(Emulator, atomics_of_threads_and_blocks_lose_nothing) {
  auto* in_shared = device(std::vector<unsigned long long>(9));
  int* in_device = device(std::vector<int>(1));
  count_all<<<9, 100, 0, stream>>>(in_shared, in_device);
  EXPECT_EQ(host(in_shared, 9), std::vector<unsigned long long>(9, 200));
  EXPECT_EQ(host(in_device, 1)[0], 900);
}

__global__ void through_a_warp(int* out) {
  __shared__ int values[64];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncwarp();
  out[threadIdx.x] = values[threadIdx.x ^ 1];
}

TEST_F(Emulator, a_warp_barrier_orders_the_accesses_of_its_warp) {
  int* out = device(std::vector<int>(64));
  through_a_warp<<<1, 64, 0, stream>>>(out);
  EXPECT_EQ(host(out, 64)[10], 11);
}

__global__ void through_dynamic_memory(int* out) {
  extern __shared__ int values[];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

TEST_F(Emulator, dynamic_shared_memory_has_the_size_of_the_launch) {
  int* out = device(std::vector<int>(64));
  through_dynamic_memory<<<1, 64, 64 * sizeof(int), stream>>>(out);
  EXPECT_EQ(host(out, 64)[10], 53);
  if (!kSeesAccesses) return;
  names(report_of([&] { through_dynamic_memory<<<1, 64, 60 * sizeof(int), stream>>>(out); }),
        {"outside of what was allocated"});
}

__global__ void through_copies(const uint4* from, uint4* out, int order) {
  extern __shared__ uint4 values[];
  const unsigned other = threadIdx.x ^ 1;
  kernels::cuda::copy_async(kernels::cuda::shared_at(values + threadIdx.x), from + threadIdx.x);
  if (order == 4) values[threadIdx.x] = make_uint4(0, 0, 0, 0);
  if (order == 5) out[threadIdx.x] = make_uint4(1, 1, 1, 1);
  if (order != 1) kernels::cuda::wait_for_copies();
  if (order != 2) __syncthreads();
  out[threadIdx.x] = values[other];
  if (order == 3)
    kernels::cuda::copy_async(kernels::cuda::shared_at(values + threadIdx.x), from + threadIdx.x);
}

TEST_F(Emulator, asynchronous_copies_arrive_after_a_wait_and_a_barrier) {
  std::vector<uint4> values(64);
  for (unsigned i = 0; i < 64; ++i) values[i] = make_uint4(i, 2 * i, 3 * i, 4 * i);
  const uint4* from = device(values);
  uint4* out = device(std::vector<uint4>(64));
  through_copies<<<1, 64, 64 * sizeof(uint4), stream>>>(from, out, 0);
  EXPECT_EQ(host(out, 64)[10].w, 44u);
}

__global__ void one_mma(const uint4* a, const uint2* b, float* c) {
  kernels::cuda::Sums sums;
  for (int i = 0; i < 4; ++i) sums.v[i] = c[threadIdx.x * 4 + i];
  const uint2 pair = b[threadIdx.x];
  kernels::cuda::mma(sums, a[threadIdx.x], pair.x, pair.y);
  for (int i = 0; i < 4; ++i) c[threadIdx.x * 4 + i] = sums.v[i];
}

TEST_F(Emulator, mma_multiplies_the_matrices_of_its_fragments_in_either_order) {
  std::mt19937 random(5);
  float a[16][16], b[16][8];
  const auto any = [&] {
    const float x = static_cast<float>(random() % 2001) / 1000 - 1;
    return __bfloat162float(__float2bfloat16_rn(x));
  };
  const auto bits = [](float x) { return uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(x))}; };
  for (auto& row : a)
    for (float& each : row) each = any();
  for (auto& row : b)
    for (float& each : row) each = any();
  std::vector<uint4> a_lanes;
  std::vector<uint2> b_lanes;
  std::vector<float> c(128);
  for (float& each : c) each = any();
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, pair = lane % 4 * 2;
    const auto two = [&](int row, int k) { return bits(a[row][k]) | bits(a[row][k + 1]) << 16; };
    a_lanes.push_back(make_uint4(two(group, pair), two(group + 8, pair), two(group, pair + 8),
                                 two(group + 8, pair + 8)));
    b_lanes.push_back(make_uint2(bits(b[pair][group]) | bits(b[pair + 1][group]) << 16,
                                 bits(b[pair + 8][group]) | bits(b[pair + 9][group]) << 16));
  }
  std::vector<float> results[2];
  for (int order = 0; order < 2; ++order) {
    mma_order = order;
    float* c_device = device(c);
    one_mma<<<1, 32, 0, stream>>>(device(a_lanes), device(b_lanes), c_device);
    results[order] = host(c_device, 128);
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = c[static_cast<size_t>(lane * 4 + i)];
        for (int k = 0; k < 16; ++k) sum += double{a[row][k]} * b[k][column];
        EXPECT_NEAR(results[order][static_cast<size_t>(lane * 4 + i)], sum, 1e-5);
      }
    }
  }
  mma_order = 0;
  EXPECT_NE(results[0], results[1]);
}

#ifdef __FLT16_MAX__  // clang 14 has no _Float16 on this processor
TEST(EmulatorTypes, float16_is_converted_as_the_compiler_does) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const __half half = __ushort_as_half(static_cast<uint16_t>(bits));
    const auto same = std::bit_cast<_Float16>(static_cast<uint16_t>(bits));
    const float wide = __half2float(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(same != same);
      continue;
    }
    ASSERT_EQ(std::bit_cast<uint32_t>(wide), std::bit_cast<uint32_t>(static_cast<float>(same)));
  }
  std::mt19937 random(3);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto x = std::bit_cast<float>((static_cast<uint32_t>(random()) & 0x87ffffffu) +
                                        (i % 2 == 0 ? 0x33000000u : 0x40000000u));
    if (std::isnan(x)) continue;
    ASSERT_EQ(__half_as_ushort(__float2half_rn(x)),
              std::bit_cast<uint16_t>(static_cast<_Float16>(x)))
        << x;
  }
}
#endif

// ---- streams -----------------------------------------------------------------------------------

__global__ void add_one(int* value) { *value += 1; }

TEST_F(Emulator, work_runs_when_somebody_waits_for_it) {
  int* value = device(std::vector<int>{41});
  void* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, sizeof(int)), cudaSuccess);
  auto* seen = static_cast<int*>(pinned);
  *seen = -1;
  add_one<<<1, 1, 0, stream>>>(value);
  cudaMemcpyAsync(seen, value, sizeof(int), cudaMemcpyDeviceToHost, stream);
  EXPECT_EQ(*seen, -1);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(*seen, 42);
  // Pinned memory is read late; other memory at once.
  int unpinned = 1;
  *seen = 1;
  cudaMemcpyAsync(value, seen, sizeof(int), cudaMemcpyHostToDevice, stream);
  *seen = 2;
  EXPECT_EQ(host(value, 1)[0], 2);
  cudaMemcpyAsync(value, &unpinned, sizeof(int), cudaMemcpyHostToDevice, stream);
  unpinned = 2;
  EXPECT_EQ(host(value, 1)[0], 1);
  cudaFreeHost(pinned);
}

TEST_F(Emulator, a_graph_runs_what_was_captured_and_nothing_before) {
  int* value = device(std::vector<int>{0});
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
  add_one<<<1, 1, 0, stream>>>(value);
  add_one<<<1, 1, 0, stream>>>(value);
  int unpinned = 0;
  EXPECT_EQ(cudaMemcpyAsync(value, &unpinned, sizeof(int), cudaMemcpyHostToDevice, stream),
            cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t ready = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);
  cudaGraphDestroy(graph);
  EXPECT_EQ(host(value, 1)[0], 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaGraphLaunch(ready, stream), cudaSuccess);
  EXPECT_EQ(host(value, 1)[0], 6);
  cudaFree(value);
  if (kSeesAccesses) {
    names(report_of([&] { cudaGraphLaunch(ready, stream); }),
          {"kernel add_one", "outside of what was allocated"});
  }
  cudaGraphExecDestroy(ready);
}

// ---- what is wrong -----------------------------------------------------------------------------

__global__ void no_barrier(int* out) {
  __shared__ int values[64];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = values[threadIdx.x ^ 1];
}
__global__ void write_after_read(int* out) {
  __shared__ int values[64];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  const int seen = values[threadIdx.x ^ 33];
  values[threadIdx.x] = seen;
  out[threadIdx.x] = seen;
}

TEST_F(Emulator, a_missing_barrier_is_a_race) {
  if (!kSeesAccesses) GTEST_SKIP() << "AddressSanitizer's business";
  int* out = device(std::vector<int>(64));
  names(report_of([&] { no_barrier<<<1, 64, 0, stream>>>(out); }),
        {"kernel no_barrier, block (0,0,0), thread (", "emulator_test.cu:"});
  out = device(std::vector<int>(64));
  names(report_of([&] { write_after_read<<<1, 64, 0, stream>>>(out); }),
        {"two threads of the block, without a barrier in between"});
}

__global__ void twice(const int* from, int* out, int order) {
  if (order == 1) out[threadIdx.x] = 1;
  const int early = order == 2 ? from[threadIdx.x] : 0;
  if (order != 3 || threadIdx.x != 5) kernels::cuda::wait_for_previous();
  if (order == 3) return;
  out[threadIdx.x] = 2 * (order == 2 ? early : from[threadIdx.x]);
}
void launch_twice(cudaStream_t stream, const int* from, int* out, int order) {
  cudaLaunchAttribute early = {cudaLaunchAttributeProgrammaticStreamSerialization, {1}};
  const cudaLaunchConfig_t config = {1, 64, 0, stream, &early, 1};
  EXPECT_EQ(cudaLaunchKernelEx(&config, twice, from, out, order), cudaSuccess);
}

TEST_F(Emulator, a_launch_that_starts_early_waits_before_it_touches_what_others_do) {
  int* from = device(std::vector<int>(64, 7));
  int* out = device(std::vector<int>(64));
  launch_twice(stream, from, out, 0);
  launch_twice(stream, out, from, 0);
  EXPECT_EQ(host(from, 64)[10], 28);
  launch_twice(stream, from, out, 2);  // nothing has written it since the wait
  EXPECT_EQ(host(out, 64)[10], 56);
  names(report_of([&] { launch_twice(stream, from, out, 3); }),
        {"kernel twice", "thread (5,0,0)", "has not waited for the kernels before it"});
  if (!kSeesAccesses) return;
  from = device(std::vector<int>(64, 7)), out = device(std::vector<int>(64));
  names(report_of([&] { launch_twice(stream, from, out, 1); }),
        {"kernel twice", "writes device memory before it waits", "emulator_test.cu:"});
  from = device(std::vector<int>(64, 7)), out = device(std::vector<int>(64));
  names(report_of([&] {
          launch_twice(stream, from, out, 0);
          launch_twice(stream, out, from, 2);
        }),
        {"kernel twice", "reads what a kernel before it wrote", "emulator_test.cu:"});
}

TEST_F(Emulator, a_copy_without_its_wait_or_barrier_is_named) {
  if (!kSeesAccesses) GTEST_SKIP() << "AddressSanitizer's business";
  const std::vector<uint4> values(64);
  for (int order = 1; order <= 3; ++order) {
    const uint4* from = device(values);
    uint4* out = device(values);
    const std::string report =
        report_of([&] { through_copies<<<1, 64, 64 * sizeof(uint4), stream>>>(from, out, order); });
    names(report, {"kernel through_copies", "emulator_test.cu:"});
    // Which of them depends on the order of the threads.
    const auto says = [&](const char* words) { return report.find(words) != std::string::npos; };
    EXPECT_TRUE(says("reads what nobody has written") || says("without a barrier in between") ||
                (order != 2 && says("has not waited for its asynchronous copies")))
        << order << ": " << report;
  }
  uint4* out = device(values);
  const uint4* other = device(values);
  names(report_of([&] { through_copies<<<1, 64, 64 * sizeof(uint4), stream>>>(other, out, 4); }),
        {"somebody wrote to where a copy was on its way"});
  out = device(values);
  names(report_of([&] { through_copies<<<1, 64, 64 * sizeof(uint4), stream>>>(out, out, 5); }),
        {"its source changed while a copy was on its way"});
  out = device(values);
  names(report_of(
            [&] { through_copies<<<1, 64, 64 * sizeof(uint4), stream>>>(values.data(), out, 0); }),
        {"not from device memory into shared memory"});
  const uint4* from = device(values);
  out = device(values);
  names(report_of([&] { through_copies<<<1, 64, 60 * sizeof(uint4), stream>>>(from, out, 0); }),
        {"a write of 16 bytes", "outside of what was allocated"});
}

__global__ void same_element(int* out) { out[0] = static_cast<int>(blockIdx.x); }
__global__ void plain_add(int* out) { *out += 1; }

TEST_F(Emulator, blocks_that_write_the_same_bytes_are_a_race) {
  if (!kSeesAccesses) GTEST_SKIP() << "AddressSanitizer's business";
  int* out = device(std::vector<int>(1));
  names(report_of([&] { same_element<<<2, 1, 0, stream>>>(out); }),
        {"a write of 4 bytes", "two blocks of the launch, without an order"});
  out = device(std::vector<int>(1));
  names(report_of([&] { plain_add<<<2, 1, 0, stream>>>(out); }), {"two blocks of the launch"});
}

__global__ void early_return() {
  if (threadIdx.x == 5) return;
  __syncthreads();
}
__global__ void other_barrier() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_F(Emulator, a_barrier_that_not_all_threads_reach_is_named) {
  names(report_of([&] { early_return<<<1, 64, 0, stream>>>(); }),
        {"kernel early_return", "waits in __syncthreads at ",
         "emulator_test.cu:", "1 of 64 threads have returned"});
  names(report_of([&] { other_barrier<<<1, 64, 0, stream>>>(); }),
        {"kernel other_barrier", "is at another __syncthreads() than the others"});
}

__global__ void other_mask(unsigned* out) {
  out[threadIdx.x] = __ballot_sync(threadIdx.x == 7 ? 0x80u : kAll, 1);
}
__global__ void other_collective(unsigned* out) {
  if (threadIdx.x < 16) {
    __syncwarp();
  } else {
    out[threadIdx.x] = __ballot_sync(kAll, 1);
  }
}
__global__ void lane_gone(unsigned* out) {
  if (threadIdx.x < 3) return;
  out[threadIdx.x] = __ballot_sync(kAll, 1);
}
__global__ void not_in_mask(unsigned* out) { out[threadIdx.x] = __ballot_sync(0xffu, 1); }

TEST_F(Emulator, lanes_of_a_warp_must_agree) {
  const std::vector<unsigned> zeros(64);
  unsigned* out = device(zeros);
  names(report_of([&] { other_mask<<<1, 32, 0, stream>>>(out); }), {"__ballot_sync"});
  out = device(zeros);
  names(report_of([&] { other_collective<<<1, 32, 0, stream>>>(out); }),
        {"__ballot_sync", "__syncwarp", "emulator_test.cu:"});
  out = device(zeros);
  // The lanes that came first wait for ever, or those that come later see that one has returned.
  names(report_of([&] { lane_gone<<<1, 32, 0, stream>>>(out); }), {"kernel lane_gone", "returned"});
  out = device(zeros);
  names(report_of([&] { not_in_mask<<<1, 32, 0, stream>>>(out); }),
        {"its mask leaves this lane out"});
  out = device(zeros);
  names(report_of([&] { some_lanes<<<1, 16, 0, stream>>>(out); }), {"does not exist"});
}

__global__ void read_at(const int* from, int i, int* out) { *out = from[i]; }
__global__ void read_wide(const char* from, uint4* out) {
  *out = *reinterpret_cast<const uint4*>(from);
}
__global__ void never_written(int* out) {
  __shared__ int values[2];
  values[0] = 1;
  out[0] = values[0] + values[1];
}

TEST_F(Emulator, an_access_outside_of_device_memory_is_named) {
  if (!kSeesAccesses) GTEST_SKIP() << "AddressSanitizer's business";
  std::vector<int> on_host(4);
  int *from = device(on_host), *out = device(on_host);
  names(report_of([&] { read_at<<<1, 1, 0, stream>>>(from, 4, out); }),
        {"kernel read_at", "a read of 4 bytes at 0x", "outside of what was allocated",
         "emulator_test.cu:"});
  from = device(on_host), out = device(on_host);
  cudaFree(from);
  names(report_of([&] { read_at<<<1, 1, 0, stream>>>(from, 0, out); }),
        {"outside of what was allocated"});
  out = device(on_host);
  names(report_of([&] { read_at<<<1, 1, 0, stream>>>(on_host.data(), 0, out); }), {"host memory"});
  auto* bytes = device(std::vector<char>(64));
  auto* wide = device(std::vector<uint4>(1));
  names(report_of([&] { read_wide<<<1, 1, 0, stream>>>(bytes + 8, wide); }), {"not aligned"});
  out = device(on_host);
  names(report_of([&] { never_written<<<1, 1, 0, stream>>>(out); }),
        {"reads what nobody has written"});
  from = device(on_host);
  names(
      report_of([&] { cudaMemcpyAsync(from, on_host.data(), 32, cudaMemcpyHostToDevice, stream); }),
      {"cudaMemcpyAsync: 32 bytes"});
}

__global__ void __launch_bounds__(64) bounded() {}
__global__ void large_shared() {
  __shared__ char bytes[49 << 10];
  bytes[threadIdx.x] = 0;
}
__global__ void nothing() {}

TEST_F(Emulator, launches_beyond_the_limits_are_refused) {
  names(report_of([&] { nothing<<<0, 32, 0, stream>>>(); }),
        {"kernel nothing", "a grid of 0 x 1 x 1"});
  names(report_of([&] { nothing<<<dim3(1, 65536), 32, 0, stream>>>(); }),
        {"a grid of 1 x 65536 x 1"});
  names(report_of([&] { nothing<<<1, 1025, 0, stream>>>(); }), {"a block of 1025 x 1 x 1"});
  names(report_of([&] { nothing<<<1, 32, 49 << 10, stream>>>(); }),
        {"50176 bytes of dynamic shared memory", "cudaFuncSetAttribute()"});
  const auto* kernel = reinterpret_cast<const void*>(&nothing);
  const auto most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  EXPECT_EQ(cudaFuncSetAttribute(kernel, most, 228 << 10), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(kernel, most, 49 << 10), cudaSuccess);
  nothing<<<1, 32, 49 << 10, stream>>>();
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  names(report_of([&] { bounded<<<1, 65, 0, stream>>>(); }),
        {"65 threads, __launch_bounds__ allows 64"});
  names(report_of([&] { large_shared<<<1, 32, 0, stream>>>(); }),
        {"more shared memory", "bytes, line"});
  names(report_of([&] { nothing<<<1, 32>>>(); }), {"the NULL stream"});
}

TEST_F(Emulator, after_a_fault_every_call_fails) {
  int* out = device(std::vector<int>(1));
  testing::internal::CaptureStderr();
  early_return<<<1, 64, 0, stream>>>();
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  add_one<<<1, 1, 0, stream>>>(out);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 1), cudaErrorLaunchFailure);
  (void)testing::internal::GetCapturedStderr();
}

__global__ void forever(volatile int* flag) {
  while (*flag == 0) {
  }
}

TEST(EmulatorDeathTest, a_kernel_that_never_ends_ends_the_process_with_a_report) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("SPECD_EMULATED_CUDA", "seconds=1", 1);
        cudaStream_t stream = nullptr;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        void* flag = nullptr;
        cudaMalloc(&flag, sizeof(int));
        cudaMemsetAsync(flag, 0, sizeof(int), stream);
        forever<<<1, 2, 0, stream>>>(static_cast<int*>(flag));
        cudaStreamSynchronize(stream);
      },
      testing::ExitedWithCode(70),
      "kernel forever, block .0,0,0., thread .*runs for more than 1 second");
}

TEST(EmulatorDeathTest, host_code_cannot_touch_device_memory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        void* data = nullptr;
        cudaMalloc(&data, sizeof(int));
        *static_cast<volatile int*>(data) = 1;
      },
      "");
}

}  // namespace
}  // namespace specd::emulated
