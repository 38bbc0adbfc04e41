// The limits of this GPU, measured in the same run as the other figures: reading memory, copying
// memory, tensor cores as the matmuls use them, and launching an empty graph.
//
//   ceilings [--json FILE]
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/ptx.cuh"

namespace {

void need(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "ceilings: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// Reads every element once, 16 bytes per load; the sum keeps the compiler from dropping the loads.
__global__ void read_all(const uint4* data, size_t n, uint32_t* sum) {
  uint32_t mine = 0;
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += 4 * stride) {
    uint4 each[4];
    for (int j = 0; j < 4; ++j) {
      each[j] = i + j * stride < n ? data[i + j * stride] : uint4{0, 0, 0, 0};
    }
    for (int j = 0; j < 4; ++j) mine ^= each[j].x ^ each[j].y ^ each[j].z ^ each[j].w;
  }
  if (mine == 0x5bd1e995u) *sum = mine;
}

// Independent chains of mma.m16n8k16 on registers, the instruction of the matmuls, by 8 warps.
constexpr int kChains = 16, kMmas = 2048, kMmaFlops = 2 * 16 * 8 * 16;
__global__ void __launch_bounds__(256) multiply_all(float* sum) {
  specd::kernels::cuda::Sums sums[kChains] = {};
  const uint4 a = make_uint4(threadIdx.x, 0x3f803f80, 0x3f803f80, 0x3f803f80);
  for (int i = 0; i < kMmas; ++i) {
#pragma unroll
    for (int c = 0; c < kChains; ++c) specd::kernels::cuda::mma(sums[c], a, 0x3f803f80, 0x3f813f81);
  }
  float mine = 0;
  for (const auto& each : sums) mine += each.v[0] + each.v[1] + each.v[2] + each.v[3];
  if (mine == 1.5f) *sum = mine;
}

template <typename Fn>
double median_ms(Fn&& submit) {
  cudaEvent_t start, end;
  need(cudaEventCreate(&start), "event");
  need(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 12; ++i) {
    need(cudaEventRecord(start), "record");
    submit();
    need(cudaEventRecord(end), "record");
    need(cudaEventSynchronize(end), "work");
    float ms = 0;
    need(cudaEventElapsedTime(&ms, start, end), "time");
    if (i >= 3) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  constexpr size_t kBytes = size_t{4} << 30;
  char *a = nullptr, *b = nullptr;
  uint32_t* sum = nullptr;
  need(cudaMalloc(&a, kBytes), "4 GiB");
  need(cudaMalloc(&b, kBytes), "4 GiB");
  need(cudaMalloc(&sum, sizeof(*sum)), "a word");
  need(cudaMemset(a, 0x5a, kBytes), "fill");
  cudaDeviceProp device{};
  need(cudaGetDeviceProperties(&device, 0), "properties");
  const unsigned blocks = static_cast<unsigned>(device.multiProcessorCount) * 8;
  const double read_ms = median_ms([&] {
    read_all<<<blocks, 512>>>(reinterpret_cast<const uint4*>(a), kBytes / sizeof(uint4), sum);
    need(cudaGetLastError(), "launch");
  });
  const double copy_ms =
      median_ms([&] { need(cudaMemcpyAsync(b, a, kBytes, cudaMemcpyDeviceToDevice), "copy"); });
  const double mma_ms = median_ms([&] {
    multiply_all<<<device.multiProcessorCount, 256>>>(reinterpret_cast<float*>(sum));
    need(cudaGetLastError(), "launch");
  });

  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  need(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
  read_all<<<1, 32, 0, stream>>>(reinterpret_cast<const uint4*>(a), 1, sum);
  need(cudaStreamEndCapture(stream, &graph), "capture");
  need(cudaGraphInstantiate(&ready, graph, 0), "graph");
  std::vector<double> times;
  for (int i = 0; i < 200; ++i) {
    const auto start = std::chrono::steady_clock::now();
    need(cudaGraphLaunch(ready, stream), "launch");
    need(cudaStreamSynchronize(stream), "wait");
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
            .count());
  }
  std::sort(times.begin(), times.end());
  const double read = static_cast<double>(kBytes) / read_ms / 1e6;
  const double copy = 2 * static_cast<double>(kBytes) / copy_ms / 1e6;
  const double empty_us = times[times.size() / 2];
  const double mma =
      double{kChains} * kMmas * kMmaFlops * 8 * device.multiProcessorCount / mma_ms / 1e9;
  std::printf(
      "%s: reads %.0f GB/s, copies %.0f GB/s (read and written), mma.m16n8k16 %.0f TFLOP/s, an empty graph "
      "and the wait for it %.1f us\n",
      device.name, read, copy, mma, empty_us);
  if (argc == 3 && std::strcmp(argv[1], "--json") == 0) {
    std::FILE* file = std::fopen(argv[2], "w");
    if (file == nullptr) return 1;
    std::fprintf(
        file,
        "{\"device\": \"%s\", \"read_gb_s\": %.1f, \"copy_gb_s\": %.1f, \"mma_tflop_s\": %.1f, "
        "\"empty_graph_us\": %.2f}\n",
        device.name, read, copy, mma, empty_us);
    std::fclose(file);
  }
  return 0;
}
