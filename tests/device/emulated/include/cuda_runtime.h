// What kernels/cuda uses of the CUDA runtime, on the emulator.
#pragma once

#include <math.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tests/device/emulated/emulator.h"

// ---- the language ------------------------------------------------------------------------------

#define __host__
#define __device__
#define __global__
#define threadIdx (::specd::emulated::now.thread)
#define blockIdx (::specd::emulated::now.block)
// Not macros: cudaLaunchConfig_t has members of these names.
inline constexpr const dim3& blockDim = ::specd::emulated::now.block_size;
inline constexpr const dim3& gridDim = ::specd::emulated::now.grid;

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline int __float_as_int(float a) { return std::bit_cast<int>(a); }
inline unsigned __float_as_uint(float a) { return std::bit_cast<unsigned>(a); }
inline float __int_as_float(int a) { return std::bit_cast<float>(a); }
inline float __uint_as_float(unsigned a) { return std::bit_cast<float>(a); }
inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
inline int __popc(unsigned a) { return std::popcount(a); }
inline int __ffs(int a) { return a == 0 ? 0 : std::countr_zero(static_cast<unsigned>(a)) + 1; }
inline int __clz(int a) { return std::countl_zero(static_cast<unsigned>(a)); }

template <typename T>
T __ldg(const T* p) {
  return *p;
}

[[noreturn]] inline void __trap(specd::emulated::Where where = specd::emulated::Where::current()) {
  specd::emulated::fail("__trap()", where);
}

// ---- barriers and exchanges --------------------------------------------------------------------

inline void __syncthreads(specd::emulated::Where where = specd::emulated::Where::current()) {
  specd::emulated::block_barrier(0, where);
}
inline int __syncthreads_or(int predicate,
                            specd::emulated::Where where = specd::emulated::Where::current()) {
  return specd::emulated::block_barrier(predicate, where) > 0 ? 1 : 0;
}
inline int __syncthreads_count(int predicate,
                               specd::emulated::Where where = specd::emulated::Where::current()) {
  return specd::emulated::block_barrier(predicate, where);
}

inline void __syncwarp(unsigned mask = 0xffffffffu,
                       specd::emulated::Where where = specd::emulated::Where::current()) {
  int nothing = 0;
  specd::emulated::warp_barrier("__syncwarp", mask, &nothing, nullptr, nullptr, true, where);
}

namespace specd::emulated {

struct Lane {
  uint64_t value;
  uint64_t result;
  int source;  // the lane that it reads; itself when out of range
};

inline void exchange(void* const lanes[kWarp], const void*) {
  for (int i = 0; i < kWarp; ++i) {
    if (lanes[i] == nullptr) continue;
    auto* mine = static_cast<Lane*>(lanes[i]);
    const auto* from = static_cast<const Lane*>(lanes[mine->source]);
    // Reading a lane that does not take part gives anything on a device.
    mine->result = from == nullptr ? 0xdeadbeefdeadbeefu : from->value;
  }
}
inline void vote(void* const lanes[kWarp], const void*) {
  uint64_t votes = 0;
  for (int i = 0; i < kWarp; ++i) {
    if (lanes[i] != nullptr && static_cast<Lane*>(lanes[i])->value != 0) votes |= uint64_t{1} << i;
  }
  for (int i = 0; i < kWarp; ++i) {
    if (lanes[i] != nullptr) static_cast<Lane*>(lanes[i])->result = votes;
  }
}

inline int lane_of_now() {
  const unsigned thread =
      now.thread.x + now.block_size.x * (now.thread.y + now.block_size.y * now.thread.z);
  return static_cast<int>(thread % kWarp);
}

template <typename T>
T shuffle(const char* what, unsigned mask, T value, int source, int width, Where where) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  const int lane = lane_of_now(), first = lane / width * width;
  Lane mine{0, 0, source >= first && source < first + width ? source : lane};
  std::memcpy(&mine.value, &value, sizeof(T));
  warp_barrier(what, mask, &mine, &exchange, nullptr, false, where);
  std::memcpy(&value, &mine.result, sizeof(T));
  return value;
}

}  // namespace specd::emulated

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = specd::emulated::kWarp,
              specd::emulated::Where where = specd::emulated::Where::current()) {
  const int lane = specd::emulated::lane_of_now();
  return specd::emulated::shuffle("__shfl_sync", mask, value,
                                  lane / width * width + (source & (width - 1)), width, where);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = specd::emulated::kWarp,
                   specd::emulated::Where where = specd::emulated::Where::current()) {
  return specd::emulated::shuffle("__shfl_down_sync", mask, value,
                                  specd::emulated::lane_of_now() + static_cast<int>(delta), width,
                                  where);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = specd::emulated::kWarp,
                 specd::emulated::Where where = specd::emulated::Where::current()) {
  return specd::emulated::shuffle("__shfl_up_sync", mask, value,
                                  specd::emulated::lane_of_now() - static_cast<int>(delta), width,
                                  where);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = specd::emulated::kWarp,
                  specd::emulated::Where where = specd::emulated::Where::current()) {
  return specd::emulated::shuffle("__shfl_xor_sync", mask, value,
                                  specd::emulated::lane_of_now() ^ lanes, width, where);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              specd::emulated::Where where = specd::emulated::Where::current()) {
  specd::emulated::Lane mine{predicate != 0 ? 1u : 0u, 0, 0};
  specd::emulated::warp_barrier("__ballot_sync", mask, &mine, &specd::emulated::vote, nullptr,
                                false, where);
  return static_cast<unsigned>(mine.result);
}

// ---- atomics -----------------------------------------------------------------------------------

// Fibers change only at barriers, so this needs no instruction; the compiler must not report it as
// two plain accesses.
template <typename T>
__attribute__((no_sanitize("thread"))) T atomicAdd(
    T* at, T value, specd::emulated::Where where = specd::emulated::Where::current()) {
  specd::emulated::touch(at, sizeof(T), true, true, where);
  const T before = *at;
  *at = before + value;
  return before;
}

// ---- the runtime -------------------------------------------------------------------------------

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
};
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

struct EmulatedEvent;
struct EmulatedGraph;
using cudaEvent_t = EmulatedEvent*;
using cudaGraph_t = EmulatedGraph*;
using cudaGraphExec_t = EmulatedGraph*;

enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3
};
enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal = 0, cudaStreamCaptureModeRelaxed = 2 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
constexpr unsigned cudaStreamNonBlocking = 1;

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

struct cudaDeviceProp {
  char name[256];
  int major, minor;
  int multiProcessorCount;
  size_t sharedMemPerBlockOptin;
};
struct cudaPointerAttributes {
  cudaMemoryType type;
};
struct cudaFuncAttributes {
  size_t sharedSizeBytes;
};

cudaError_t cudaGetLastError();
cudaError_t cudaDeviceReset();
cudaError_t cudaGetDeviceCount(int* n);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);

template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               Args... args) {
  specd::emulated::Launch how(config->gridDim, config->blockDim, config->dynamicSmemBytes,
                              config->stream);
  how.kernel = reinterpret_cast<const void*>(kernel);
  how.early =
      config->numAttrs > 0 && config->attrs->val.programmaticStreamSerializationAllowed != 0;
  specd::emulated::launch("of cudaLaunchKernelEx", kernel, how, Params(args)...);
  return cudaGetLastError();
}

cudaError_t cudaMalloc(void** data, size_t bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaMallocHost(void** data, size_t bytes);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_stride, const void* from, size_t from_stride,
                              size_t bytes, size_t rows, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready);
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream);

cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end);
