// What the checks of kernel_check share: a device with its memory, random inputs, comparisons, the report.
#pragma once

#include <dlfcn.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "specd/kernels/cpu.h"
#include "specd/kernels/cuda.h"
#include "tests/kernels/code_cases.h"

namespace specd::kernels {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
inline const char* name_of(DType type) {
  return type == DType::kF32 ? "f32" : type == DType::kF16 ? "f16" : "bf16";
}

constexpr KvDType kKvTypes[] = {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kF8E4M3,
                                KvDType::kInt8};
inline const char* name_of(KvDType type) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16", "f8e4m3", "int8"};
  return kNames[static_cast<int>(type)];
}

[[noreturn]] inline void stop(const std::string& why) {
  std::fprintf(stderr, "kernel_check: %s\n", why.c_str());
  std::exit(2);
}

class Gpu {
 public:
  Gpu(const char* path, const CudaLimits& limits) {
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) stop(dlerror());
    const auto entry = reinterpret_cast<CudaLibraryFn>(dlsym(handle, kCudaSymbol));
    if (entry == nullptr) stop(std::string(path) + " has no " + kCudaSymbol);
    if (std::strcmp(entry()->build, kCudaBuild) != 0) stop("the library is of another build");
    library = entry();
    CudaProblem problem;
    device = library->open(0, limits, problem);
    if (device == nullptr) stop(problem.text);
  }
  ~Gpu() {
    for (void* each : held_) device->release(each);
    delete device;
  }

  const Ops& ops() const { return device->ops(); }
  Stream& stream() { return device->stream(); }
  void sync() {
    CudaProblem problem;
    if (!device->synchronize(problem)) stop(problem.text);
  }
  // Device memory for the rest of this check.
  void* bytes(uint64_t n) {
    CudaProblem problem;
    void* data = device->allocate(n, problem);
    if (data == nullptr) stop(problem.text);
    held_.push_back(data);
    return data;
  }
  template <typename T>
  T* in(const std::vector<T>& values) {
    auto* data = static_cast<T*>(bytes(values.size() * sizeof(T)));
    device->copy_in(data, values.data(), values.size() * sizeof(T));
    return data;
  }
  float* poisoned(size_t n) { return in(std::vector<float>(n, kNan)); }
  template <typename T>
  std::vector<T> out(const T* data, size_t n) {
    std::vector<T> values(n);
    device->copy_out(values.data(), data, n * sizeof(T));
    sync();
    return values;
  }
  void free_all() {
    sync();
    for (void* each : held_) device->release(each);
    held_.clear();
  }

  const CudaLibrary* library = nullptr;
  CudaDevice* device = nullptr;

 private:
  std::vector<void*> held_;
};

struct Report {
  int failures = 0;
  std::string json = "{\"checks\": [";

  void check(const std::string& what, bool good, const std::string& detail = "") {
    std::printf("%-6s %s%s%s\n", good ? "ok" : "FAILED", what.c_str(), detail.empty() ? "" : ": ",
                detail.c_str());
    std::fflush(stdout);
    failures += good ? 0 : 1;
    if (json.back() != '[') json += ", ";
    json += "{\"what\": \"" + what + "\", \"passed\": " + (good ? "true" : "false") +
            ", \"detail\": \"" + detail + "\"}";
  }
};

inline std::mt19937 g_random;

inline std::vector<float> floats(size_t n, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(n);
  for (float& each : values) each = normal(g_random);
  return values;
}
inline int32_t below(int32_t n) {
  return static_cast<int32_t>(g_random() % static_cast<uint32_t>(n));
}

inline float widen(uint16_t h, DType type) {
  if (type == DType::kBF16) return std::bit_cast<float>(uint32_t{h} << 16);
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -24)
                              : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  return (h & 0x8000) != 0 ? -magnitude : magnitude;
}
// Random finite values of a type, and their float32 values.
struct Typed {
  std::vector<char> bytes;
  std::vector<float> values;
};
inline Typed typed(size_t n, DType type, float scale) {
  Typed made;
  made.values = floats(n, scale);
  made.bytes.resize(n * dtype_bytes(type));
  for (size_t i = 0; i < n; ++i) {
    if (type == DType::kF32) {
      std::memcpy(&made.bytes[i * 4], &made.values[i], 4);
      continue;
    }
    uint16_t h = 0;
    if (type == DType::kBF16) {
      h = static_cast<uint16_t>(std::bit_cast<uint32_t>(made.values[i]) >> 16);
    } else {  // rounds toward zero, to 11 bits
      int exponent = 0;
      const float m = std::frexp(std::fabs(made.values[i]), &exponent);
      const int field = exponent + 14;
      if (field >= 1 && field <= 30) {
        h = static_cast<uint16_t>(field << 10 | (static_cast<int>(m * 2048) & 1023));
      }
      if (made.values[i] < 0) h |= 0x8000;
    }
    made.values[i] = widen(h, type);
    std::memcpy(&made.bytes[i * 2], &h, 2);
  }
  return made;
}

// The same of a cache: of one in 8 bits, codes and what they are without a scale.
inline Typed typed(size_t n, KvDType type, float scale) {
  if (type == KvDType::kF32) return typed(n, DType::kF32, scale);
  if (type == KvDType::kF16) return typed(n, DType::kF16, scale);
  if (type == KvDType::kBF16) return typed(n, DType::kBF16, scale);
  Typed made;
  for (size_t i = 0; i < n; ++i) {
    uint8_t code = static_cast<uint8_t>(below(256));
    if (type == KvDType::kF8E4M3 && (code & 0x7f) == 0x7f) code = 0;
    made.bytes.push_back(static_cast<char>(code));
    made.values.push_back(type == KvDType::kInt8 ? static_cast<float>(static_cast<int8_t>(code))
                                                 : widen_f8(code));
  }
  return made;
}

template <typename T>
std::string difference(const std::vector<T>& got, const std::vector<T>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], sizeof(T)) != 0) {
      return "element " + std::to_string(i) + " of " + std::to_string(expected.size()) + ": " +
             std::to_string(got[i]) + ", expected " + std::to_string(expected[i]);
    }
  }
  return "";
}
// The largest |got - expected| / allowed; infinity for a NaN.
inline std::string beyond(const std::vector<float>& got, const std::vector<double>& expected,
                          const std::vector<double>& allowed) {
  double worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(double{got[i]} - expected[i]) / allowed[i];
    if (!(error <= worst)) worst = std::isnan(error) ? HUGE_VAL : error, where = i;
  }
  if (worst <= 1) return "";
  return "element " + std::to_string(where) + ": " + std::to_string(got[where]) + ", expected " +
         std::to_string(expected[where]) + " within " + std::to_string(allowed[where]);
}

struct Rig {
  Gpu& gpu;
  const Ops& cpu;
  CpuStream& cpu_stream;
  Report& report;
  bool small;
};

// Each group of checks; kernel_check.cc calls them.
void check_elementwise(Rig& rig);
void check_norms(Rig& rig);
// fast: cuBLASLt, bfloat16 only, x rounded to bfloat16, not strict.
void check_matmul(Rig& rig, bool fast);
// fast: E4M3FN only, x rounded to bfloat16, strict in rows.
void check_codes(Rig& rig, bool fast);
void check_attention(Rig& rig);
void check_cache(Rig& rig);
void check_draw(Rig& rig);
void check_penalties(Rig& rig);
void check_logits(Rig& rig);
void check_tree(Rig& rig);
void check_graph(Rig& rig);
void check_ranks(Rig& rig);
// Prints the rates of the matmuls; the same as JSON.
std::string rates(Rig& rig);

}  // namespace specd::kernels
