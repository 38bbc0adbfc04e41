// Every op of the CUDA backend on a real device: fresh random inputs, outputs poisoned with NaN.
//
//   kernel_check LIBRARY [--seed N] [--json FILE] [--only GROUP] [--rates 0] [--fast 1] [--small 1]
//     fast: with cuBLASLt. small: fewer and smaller shapes, with the same edges, for what is slow.
//     GROUP: elementwise, norms, matmul, cache, attention, draw, penalties, logits, tree or graph.
//
// Ops that promise the CPU's bits are compared by bits with the scalar CPU ops. The others are
// compared with float64, and by bits with themselves for other numbers of rows, another page order
// and a replayed graph. Then come rates of the matmuls. The exit status is 1 when something fails.
// Does not use GoogleTest, because a machine with a GPU may have little else.
#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "specd/kernels/cpu.h"
#include "specd/kernels/cuda.h"

namespace specd::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
const char* name_of(DType type) {
  return type == DType::kF32 ? "f32" : type == DType::kF16 ? "f16" : "bf16";
}

[[noreturn]] void stop(const std::string& why) {
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
    CudaProblem problem;
    device = entry()->open(0, limits, problem);
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

std::mt19937 g_random;

std::vector<float> floats(size_t n, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(n);
  for (float& each : values) each = normal(g_random);
  return values;
}
int32_t below(int32_t n) { return static_cast<int32_t>(g_random() % static_cast<uint32_t>(n)); }

float widen(uint16_t h, DType type) {
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
Typed typed(size_t n, DType type, float scale) {
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
std::string beyond(const std::vector<float>& got, const std::vector<double>& expected,
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

// ---- the ops -----------------------------------------------------------------------------------

struct Rig {
  Gpu& gpu;
  const Ops& cpu;
  CpuStream& cpu_stream;
  Report& report;
  bool small;
};

// Scratch memory so small that the shapes of check_matmul() need several pieces.
CudaLimits small_limits() {
  return {.rows_max = 64, .width_max = 1040, .positions_max = 2048, .scratch_bytes = 0};
}

void check_elementwise(Rig& rig) {
  Gpu& gpu = rig.gpu;
  for (const DType type : kTypes) {
    const int32_t vocab = 777, n = 1000 + below(100), rows = 9;
    const Typed table = typed(static_cast<size_t>(vocab) * n, type, 1);
    std::vector<int32_t> token(rows);
    for (int32_t& t : token) t = below(vocab);
    std::vector<float> expected(static_cast<size_t>(rows) * n);
    EmbedArgs a{.table = table.bytes.data(),
                .dtype = type,
                .token = token.data(),
                .out = expected.data(),
                .n_rows = rows,
                .n = n};
    rig.cpu.embed(rig.cpu_stream, a);
    a.table = gpu.in(table.bytes), a.token = gpu.in(token), a.out = gpu.poisoned(expected.size());
    gpu.ops().embed(gpu.stream(), a);
    const std::string problem = difference(gpu.out(a.out, expected.size()), expected);
    rig.report.check(std::string("embed has the CPU's bits, ") + name_of(type), problem.empty(),
                     problem);
  }
  {
    const int32_t n = 3000 + below(50), rows = 7;
    std::vector<float> gate_up = floats(static_cast<size_t>(rows) * 2 * n, 8);
    const float odd[] = {0, -0.0f, 200, -200, HUGE_VALF, -HUGE_VALF, 88.5f, -103.9f};
    std::copy(std::begin(odd), std::end(odd), gate_up.begin());
    std::vector<float> expected(static_cast<size_t>(rows) * n);
    SiluMulArgs a{.gate_up = gate_up.data(), .out = expected.data(), .n_rows = rows, .n = n};
    rig.cpu.silu_mul(rig.cpu_stream, a);
    a.gate_up = gpu.in(gate_up), a.out = gpu.poisoned(expected.size());
    gpu.ops().silu_mul(gpu.stream(), a);
    std::vector<float> got = gpu.out(a.out, expected.size());
    for (size_t i = 0; i < got.size(); ++i) {  // the payload of a NaN is unspecified
      if (std::isnan(got[i]) && std::isnan(expected[i])) got[i] = expected[i];
    }
    const std::string problem = difference(got, expected);
    rig.report.check("silu_mul has the CPU's bits", problem.empty(), problem);
  }
  {
    const int32_t n = 513, rows = 21;
    std::vector<float> x = floats(static_cast<size_t>(rows) * n);
    const std::vector<float> bias = floats(static_cast<size_t>(n));
    const AddBiasArgs a{.x = gpu.in(x), .bias = gpu.in(bias), .n_rows = rows, .n = n};
    gpu.ops().add_bias(gpu.stream(), a);
    for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] + bias[i % bias.size()];
    const std::string problem = difference(gpu.out(a.x, x.size()), x);
    rig.report.check("add_bias adds", problem.empty(), problem);
  }
  {
    const int32_t n = 513, rows = 21;
    const std::vector<float> x = floats(static_cast<size_t>(40) * n);
    std::vector<int32_t> row(rows);
    for (int32_t& r : row) r = below(40);
    std::vector<float> expected;
    for (const int32_t r : row)
      expected.insert(expected.end(), x.begin() + r * n, x.begin() + (r + 1) * n);
    const GatherRowsArgs a{.x = gpu.in(x),
                           .row = gpu.in(row),
                           .out = gpu.poisoned(expected.size()),
                           .n_rows = rows,
                           .n = n};
    gpu.ops().gather_rows(gpu.stream(), a);
    const std::string problem = difference(gpu.out(a.out, expected.size()), expected);
    rig.report.check("gather_rows copies", problem.empty(), problem);
  }
}

void check_norms(Rig& rig) {
  Gpu& gpu = rig.gpu;
  for (const int32_t n : {16, 384, 4096, 5000}) {
    const int32_t rows = 37;
    const std::vector<float> x = floats(static_cast<size_t>(rows) * n, 3), delta = floats(x.size()),
                             weight = floats(static_cast<size_t>(n));
    const auto run = [&](int32_t first, int32_t count, std::vector<float>* x_after) {
      const std::vector<float> part(x.begin() + first * n, x.begin() + (first + count) * n);
      const std::vector<float> part_delta(delta.begin() + first * n,
                                          delta.begin() + (first + count) * n);
      RmsNormArgs a{.x = gpu.in(part),
                    .delta = gpu.in(part_delta),
                    .weight = gpu.in(weight),
                    .out = gpu.poisoned(part.size()),
                    .n_rows = count,
                    .n = n,
                    .eps = 1e-5f};
      gpu.ops().rmsnorm(gpu.stream(), a);
      if (x_after != nullptr) *x_after = gpu.out(a.x, part.size());
      return gpu.out(a.out, part.size());
    };
    std::vector<float> after;
    const std::vector<float> all = run(0, rows, &after);
    std::vector<double> expected(x.size()), allowed(x.size());
    bool added = true;
    for (int32_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (int32_t i = 0; i < n; ++i) {
        const float v = x[static_cast<size_t>(r * n + i)] + delta[static_cast<size_t>(r * n + i)];
        added = added && v == after[static_cast<size_t>(r * n + i)];
        sum += double{v} * v;
      }
      for (int32_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(r * n + i);
        expected[at] =
            double{after[at]} / std::sqrt(sum / n + 1e-5) * weight[static_cast<size_t>(i)];
        allowed[at] = 1e-6 * std::fabs(expected[at]) + 1e-30;
      }
    }
    std::string problem = added ? beyond(all, expected, allowed) : "the residual is not x + delta";
    for (const int32_t r : {0, 5, rows - 1}) {
      if (!problem.empty()) break;
      const std::vector<float> one = run(r, 1, nullptr);
      problem = difference(one, {all.begin() + r * n, all.begin() + (r + 1) * n});
    }
    rig.report.check("rmsnorm, n " + std::to_string(n), problem.empty(), problem);
    gpu.free_all();
  }
  const int32_t rows = 37, heads = 6, groups = 2;
  for (const int32_t dim : {16, 128, 256}) {
    const int32_t width = (heads + 2 * groups) * dim;
    const std::vector<float> qkv = floats(static_cast<size_t>(rows) * width, 3);
    const std::vector<float> q = floats(static_cast<size_t>(dim)), k = floats(q.size());
    const auto run = [&](int32_t first, int32_t count) {
      const HeadNormArgs a{.qkv = gpu.in(std::vector<float>(qkv.begin() + first * width,
                                                            qkv.begin() + (first + count) * width)),
                           .q_weight = gpu.in(q),
                           .k_weight = gpu.in(k),
                           .n_rows = count,
                           .n_heads = heads,
                           .n_kv_heads = groups,
                           .head_dim = dim,
                           .eps = 1e-6f};
      gpu.ops().head_norm(gpu.stream(), a);
      return gpu.out(a.qkv, static_cast<size_t>(count) * width);
    };
    const std::vector<float> all = run(0, rows);
    std::vector<double> expected(qkv.begin(), qkv.end()), allowed(qkv.size(), 1e-30);
    for (size_t head = 0; head * dim < qkv.size(); ++head) {
      const size_t in_row = head % (heads + 2 * groups);
      if (in_row >= heads + groups) continue;
      double sum = 0;
      for (size_t i = head * dim; i < (head + 1) * dim; ++i) sum += double{qkv[i]} * qkv[i];
      for (size_t i = head * dim; i < (head + 1) * dim; ++i) {
        expected[i] *= (in_row < heads ? q : k)[i % dim] / std::sqrt(sum / dim + 1e-6);
        allowed[i] = 1e-6 * std::fabs(expected[i]) + 1e-30;
      }
    }
    std::string problem = beyond(all, expected, allowed);
    if (problem.empty()) {
      problem = difference(run(5, 1), {all.begin() + 5 * width, all.begin() + 6 * width});
    }
    rig.report.check("head_norm, heads of " + std::to_string(dim), problem.empty(), problem);
    gpu.free_all();
  }
}

// fast: cuBLASLt, bfloat16 only, x rounded to bfloat16, not strict.
void check_matmul(Rig& rig, bool fast) {
  Gpu& gpu = rig.gpu;
  struct Shape {
    int32_t n_out, n_in, segments, rows;
  };
  const Shape full[] = {{96, 64, 1, 257},     {130, 72, 1, 257},   {384, 384, 8, 257},
                        {1000, 1030, 1, 257}, {512, 2048, 8, 257}, {20000, 4096, 1, 3}};
  // Few and many outputs, segments of more tiles than are read ahead, x and packs in several pieces.
  const Shape reduced[] = {{96, 64, 1, 257},
                           {130, 72, 1, 129},
                           {80, 1040, 1, 20},
                           {144, 640, 8, 70},
                           {200, 1030, 1, 134}};
  const std::span<const Shape> shapes = rig.small ? std::span<const Shape>(reduced) : full;
  const std::vector<int32_t> counts =
      rig.small ? std::vector<int32_t>{1, 8, 9, 17, 33, 65}
                : std::vector<int32_t>{1, 2, 3, 5, 8, 9, 16, 17, 32, 33, 64, 65, 127};
  for (const DType type : kTypes) {
    for (const Shape& shape : shapes) {
      if (fast && (type != DType::kBF16 || shape.n_in % 8 != 0)) continue;
      const int32_t rows = shape.rows;
      const Typed w = typed(static_cast<size_t>(shape.n_out) * shape.n_in, type, 0.05f);
      const std::vector<float> x = floats(static_cast<size_t>(rows) * shape.n_in);
      PackedMatrix packed{.dtype = type, .n_out = shape.n_out, .n_in = shape.n_in, .data = nullptr};
      packed.data = gpu.bytes(gpu.ops().packed_bytes(type, shape.n_out, shape.n_in));
      // In three pieces, like k, v and q.
      const auto pack = [&](const std::vector<char>& source) {
        const int32_t sixth = shape.n_out / 6;
        const size_t row_bytes = static_cast<size_t>(shape.n_in) * dtype_bytes(type);
        for (const auto& [begin, end] :
             {std::pair{0, sixth}, {sixth, 2 * sixth}, {2 * sixth, shape.n_out}}) {
          gpu.ops().pack(gpu.stream(),
                         {.packed = packed,
                          .source = source.data() + static_cast<size_t>(begin) * row_bytes,
                          .n_rows = end - begin,
                          .column_begin = begin});
        }
      };
      pack(w.bytes);
      const auto run_on = [&](const float* from, int32_t n) {
        const MatmulArgs a{.x = from,
                           .weights = packed,
                           .out = gpu.poisoned(static_cast<size_t>(n) * shape.n_out),
                           .n_rows = n,
                           .k_segments = shape.segments};
        gpu.ops().matmul(gpu.stream(), a);
        return gpu.out(a.out, static_cast<size_t>(n) * shape.n_out);
      };
      const float* x_gpu = gpu.in(x);
      const auto run = [&](int32_t first, int32_t n) {
        return run_on(x_gpu + static_cast<size_t>(first) * shape.n_in, n);
      };
      const std::vector<float> all = run(0, rows);
      std::string problem;
      if (type == DType::kBF16) {
        std::vector<double> expected(all.size()), allowed(all.size());
        for (int32_t r = 0; r < rows; ++r) {
          for (int32_t j = 0; j < shape.n_out; ++j) {
            double sum = 0, size = 0;
            for (int32_t k = 0; k < shape.n_in; ++k) {
              const double each = double{x[static_cast<size_t>(r) * shape.n_in + k]} *
                                  w.values[static_cast<size_t>(j) * shape.n_in + k];
              sum += each;
              size += std::fabs(each);
            }
            expected[static_cast<size_t>(r) * shape.n_out + j] = sum;
            allowed[static_cast<size_t>(r) * shape.n_out + j] =
                size * (fast ? 0x1p-8 : 0x1p-16) + 1e-30;
          }
        }
        problem = beyond(all, expected, allowed);
      } else {
        std::vector<char> cpu_packed(rig.cpu.packed_bytes(type, shape.n_out, shape.n_in) + 64);
        void* at = cpu_packed.data();
        size_t space = cpu_packed.size();
        std::align(64, space - 64, at, space);
        const PackedMatrix on_cpu{
            .dtype = type, .n_out = shape.n_out, .n_in = shape.n_in, .data = at};
        rig.cpu.pack(
            rig.cpu_stream,
            {.packed = on_cpu, .source = w.bytes.data(), .n_rows = shape.n_out, .column_begin = 0});
        std::vector<float> expected(all.size());
        rig.cpu.matmul(rig.cpu_stream, {.x = x.data(),
                                        .weights = on_cpu,
                                        .out = expected.data(),
                                        .n_rows = rows,
                                        .k_segments = shape.segments});
        problem = difference(all, expected);
      }
      for (const int32_t n : counts) {
        if (!problem.empty() || n > rows || fast) break;
        const int32_t first = below(rows - n + 1);
        problem = difference(run(first, n),
                             {all.begin() + static_cast<ptrdiff_t>(first) * shape.n_out,
                              all.begin() + static_cast<ptrdiff_t>(first + n) * shape.n_out});
        if (!problem.empty())
          problem = std::to_string(n) + " rows from " + std::to_string(first) + ", " + problem;
      }
      for (const int32_t n : {8, 9}) {
        if (!problem.empty() || fast || n > rows) break;
        // A NaN stays in its row and output. It begins a row that follows another one: what reads past
        // the end of that one, k >= n_in, reads it.
        const int32_t own_row = n / 2, own_output = shape.n_out / 2;
        std::vector<float> x_nan(x.begin(), x.begin() + n * shape.n_in);
        x_nan[static_cast<size_t>(own_row) * shape.n_in] = kNan;
        std::vector<char> w_nan = w.bytes;
        const uint16_t half = type == DType::kBF16 ? 0x7fc0 : 0x7e00;
        std::memcpy(&w_nan[static_cast<size_t>(own_output) * shape.n_in * dtype_bytes(type)],
                    type == DType::kF32 ? static_cast<const void*>(&kNan) : &half,
                    dtype_bytes(type));
        pack(w_nan);
        std::vector<float> got = run_on(gpu.in(x_nan), n);
        for (int32_t r = 0; r < n; ++r) {
          for (int32_t j = 0; j < shape.n_out; ++j) {
            const auto at = static_cast<size_t>(r) * shape.n_out + static_cast<size_t>(j);
            if ((r == own_row || j == own_output) && std::isnan(got[at])) got[at] = all[at];
          }
        }
        problem = difference(got, {all.begin(), all.begin() + n * shape.n_out});
        if (!problem.empty()) problem = "with a NaN elsewhere, " + problem;
      }
      rig.report.check(std::string("matmul ") + name_of(type) + " " + std::to_string(shape.n_out) +
                           " x " + std::to_string(shape.n_in) +
                           (fast ? ", fast" : ", strict in rows"),
                       problem.empty(), problem);
      gpu.free_all();
    }
  }
}

// Random caches of several layers' pages, rows over spans and tails.
void check_attention(Rig& rig) {
  Gpu& gpu = rig.gpu;
  for (const DType type : kTypes) {
    for (const auto& [heads, groups, dim] :
         {std::tuple{5, 1, 64}, {8, 8, 128}, {28, 4, 128}, {12, 1, 80}, {3, 1, 256}}) {
      const int32_t n_pages = 160, positions = rig.small ? 400 : 1500;
      // Pages that cannot be copied 16 bytes at a time, and such that can.
      const size_t gap = heads == 5 ? 3 : 32;
      const size_t stride = static_cast<size_t>(groups) * dim * kPageTokens + gap;
      Typed k = typed(stride * n_pages, type, 1);
      const Typed v = typed(stride * n_pages, type, 1);
      // Scores far below 0, so that whoever takes 0 for the largest has no weight left.
      const bool is_negative = heads == 12;
      for (size_t i = 0; is_negative && i < k.values.size(); ++i) {
        k.values[i] = -std::fabs(k.values[i]);
        k.bytes[(i + 1) * dtype_bytes(type) - 1] |= static_cast<char>(0x80);  // the sign
      }
      KvLayer cache{.k = gpu.in(k.bytes),
                    .v = gpu.in(v.bytes),
                    .dtype = type,
                    .n_kv_heads = groups,
                    .head_dim = dim,
                    .page_stride = stride};
      std::vector<int32_t> pages(n_pages);
      std::iota(pages.begin(), pages.end(), 0);
      std::shuffle(pages.begin(), pages.end(), g_random);
      const int32_t width = (heads + 2 * groups) * dim;
      // Enough for the schedule for many rows; fewer use the other one.
      const int32_t blocks = groups * ((heads / groups + 3) / 4);
      const int32_t rows = 4 * gpu.device->info().multiprocessors / blocks + (rig.small ? 9 : 40);
      // boundaries of pages and parts
      const int32_t edges[] = {0, 1, 15, 16, 127, 128, 255, 256};
      std::vector<float> qkv = floats(static_cast<size_t>(rows) * width);
      for (float& each : qkv) each = is_negative ? 25 * std::fabs(each) : each;
      std::vector<int32_t> position(rows), span(rows), table(rows), tail_begin(rows), tail;
      for (int32_t r = 0; r < rows; ++r) {
        position[static_cast<size_t>(r)] = r < 8 ? edges[r] : below(positions);
        table[static_cast<size_t>(r)] = r % 2 * 3;
        const int32_t in_tail = std::min(below(9), position[static_cast<size_t>(r)] + 1);
        span[static_cast<size_t>(r)] = position[static_cast<size_t>(r)] + 1 - in_tail;
        tail_begin[static_cast<size_t>(r)] = static_cast<int32_t>(tail.size());
        for (int32_t i = 0; i < in_tail; ++i)
          tail.push_back(pages[static_cast<size_t>(100 + below(60))] * kPageTokens +
                         below(kPageTokens));
      }
      tail.push_back(0);
      const float scale = 1 / std::sqrt(static_cast<float>(dim));
      const int32_t window = heads == 28   ? 200
                             : heads == 12 ? 5
                                           : 0;  // over parts, within one, none
      const float* qkv_gpu = gpu.in(qkv);
      const int32_t *position_gpu = gpu.in(position), *span_gpu = gpu.in(span),
                    *table_gpu = gpu.in(table), *begin_gpu = gpu.in(tail_begin);
      const int32_t *pages_gpu = gpu.in(pages), *tail_gpu = gpu.in(tail);
      const auto run = [&](int32_t first, int32_t n) {
        const AttentionArgs a{.qkv = qkv_gpu + static_cast<size_t>(first) * width,
                              .out = gpu.poisoned(static_cast<size_t>(n) * heads * dim),
                              .kv = cache,
                              .position = position_gpu + first,
                              .span = span_gpu + first,
                              .table = table_gpu + first,
                              .pages = pages_gpu,
                              .tail_begin = begin_gpu + first,
                              .tail = tail_gpu,
                              .n_rows = n,
                              .n_heads = heads,
                              .window = window,
                              .scale = scale};
        gpu.ops().attention(gpu.stream(), a);
        return gpu.out(a.out, static_cast<size_t>(n) * heads * dim);
      };
      const std::vector<float> all = run(0, rows);
      std::vector<double> expected(all.size()), allowed(all.size(), is_negative ? 2e-3 : 2e-5);
      for (int32_t r = 0; r < rows; ++r) {
        const auto at = static_cast<size_t>(r);
        for (int32_t h = 0; h < heads; ++h) {
          const int32_t g = h / (heads / groups);
          std::vector<double> score(static_cast<size_t>(position[at] + 1));
          std::vector<int32_t> slot(score.size());
          double largest = -HUGE_VAL, sum = 0;
          for (int32_t p = 0; p <= position[at]; ++p) {
            const int32_t s =
                p < span[at]
                    ? pages[static_cast<size_t>(table[at] + p / kPageTokens)] * kPageTokens +
                          p % kPageTokens
                    : tail[static_cast<size_t>(tail_begin[at] + p - span[at])];
            slot[static_cast<size_t>(p)] = s;
            double dot = 0;
            for (int32_t d = 0; d < dim; ++d) {
              dot += double{qkv[at * width + static_cast<size_t>(h * dim + d)]} *
                     k.values[static_cast<size_t>(s / kPageTokens) * stride +
                              (static_cast<size_t>(g) * dim + d) * kPageTokens + s % kPageTokens];
            }
            score[static_cast<size_t>(p)] = dot * scale;
            largest = std::max(largest, dot * scale);
          }
          for (int32_t p = 0; p <= position[at]; ++p) {
            double& each = score[static_cast<size_t>(p)];
            each = window > 0 && p <= position[at] - window ? 0 : std::exp(each - largest);
            sum += each;
          }
          for (int32_t d = 0; d < dim; ++d) {
            double out = 0;
            for (size_t p = 0; p < score.size(); ++p) {
              out += score[p] *
                     v.values[static_cast<size_t>(slot[p] / kPageTokens) * stride +
                              (static_cast<size_t>(g) * kPageTokens + slot[p] % kPageTokens) * dim +
                              d];
            }
            expected[(at * heads + static_cast<size_t>(h)) * dim + static_cast<size_t>(d)] =
                out / sum;
          }
        }
      }
      std::string problem = beyond(all, expected, allowed);
      for (const int32_t n : {1, 2, 3, 5, 7, 8, 33}) {
        if (!problem.empty() || n > rows) break;
        const int32_t first = below(rows - n + 1);
        const size_t each = static_cast<size_t>(heads) * dim;
        problem =
            difference(run(first, n), {all.begin() + static_cast<ptrdiff_t>(first * each),
                                       all.begin() + static_cast<ptrdiff_t>((first + n) * each)});
        if (!problem.empty()) problem = std::to_string(n) + " rows, " + problem;
      }
      // The same cache with its pages in other places.
      std::vector<int32_t> to(n_pages);
      std::iota(to.begin(), to.end(), 0);
      std::shuffle(to.begin(), to.end(), g_random);
      std::vector<char> k_moved(k.bytes.size()), v_moved(v.bytes.size());
      const size_t page_bytes = stride * dtype_bytes(type);
      for (size_t page = 0; page < to.size(); ++page) {
        const size_t target = static_cast<size_t>(to[page]) * page_bytes;
        std::memcpy(&k_moved[target], &k.bytes[page * page_bytes], page_bytes);
        std::memcpy(&v_moved[target], &v.bytes[page * page_bytes], page_bytes);
      }
      for (int32_t& page : pages) page = to[static_cast<size_t>(page)];
      for (int32_t& slot : tail) {
        slot = to[static_cast<size_t>(slot / kPageTokens)] * kPageTokens + slot % kPageTokens;
      }
      cache.k = gpu.in(k_moved), cache.v = gpu.in(v_moved);
      pages_gpu = gpu.in(pages), tail_gpu = gpu.in(tail);
      if (problem.empty()) {
        problem = difference(run(0, rows), all);
        if (!problem.empty()) problem = "pages in another order, " + problem;
      }
      rig.report.check(std::string("attention ") + name_of(type) + ", " + std::to_string(heads) +
                           "/" + std::to_string(groups) + " heads of " + std::to_string(dim) +
                           (window > 0 ? ", window " + std::to_string(window) : "") +
                           ", strict in rows and pages",
                       problem.empty(), problem);
      gpu.free_all();
    }
  }
}

void check_cache(Rig& rig) {
  Gpu& gpu = rig.gpu;
  for (const DType type : kTypes) {
    const int32_t heads = 6, groups = 2, dim = 64, rows = 23, n_pages = 8;
    const size_t stride = static_cast<size_t>(groups) * dim * kPageTokens + 48,
                 cells = stride * n_pages;
    const std::vector<float> qkv =
        floats(static_cast<size_t>(rows) * (heads + 2 * groups) * dim, 2);
    std::vector<int32_t> position(rows), slot(static_cast<size_t>(n_pages * kPageTokens));
    std::iota(slot.begin(), slot.end(), 0);
    std::shuffle(slot.begin(), slot.end(), g_random);
    slot.resize(rows);
    for (int32_t& p : position) p = below(100000);
    std::vector<float> inv_freq;
    for (int32_t i = 0; i < dim / 2; ++i)
      inv_freq.push_back(static_cast<float>(std::pow(500000.0, -2.0 * i / dim)));
    std::vector<float> cos_sin(static_cast<size_t>(rows) * dim);
    rig.cpu.rope_table(rig.cpu_stream, {.position = position.data(),
                                        .inv_freq = inv_freq.data(),
                                        .cos_sin = cos_sin.data(),
                                        .n_rows = rows,
                                        .head_dim = dim});
    if (type == DType::kF32) {
      float* table = gpu.poisoned(cos_sin.size());
      gpu.ops().rope_table(gpu.stream(), {.position = gpu.in(position),
                                          .inv_freq = gpu.in(inv_freq),
                                          .cos_sin = table,
                                          .n_rows = rows,
                                          .head_dim = dim});
      const std::vector<double> expected(cos_sin.begin(), cos_sin.end());
      const std::string problem = beyond(gpu.out(table, cos_sin.size()), expected,
                                         std::vector<double>(expected.size(), 0x1p-23));
      rig.report.check("rope_table is the CPU's within a rounding", problem.empty(), problem);
    }
    std::vector<float> rotated = qkv;
    std::vector<char> k(cells * dtype_bytes(type), 1), v = k;
    KvLayer on_cpu{.k = k.data(),
                   .v = v.data(),
                   .dtype = type,
                   .n_kv_heads = groups,
                   .head_dim = dim,
                   .page_stride = stride};
    KvLayer on_gpu = on_cpu;
    on_gpu.k = gpu.in(k), on_gpu.v = gpu.in(v);
    float* qkv_gpu = gpu.in(qkv);
    rig.cpu.rope_append(rig.cpu_stream, {.qkv = rotated.data(),
                                         .cos_sin = cos_sin.data(),
                                         .slot = slot.data(),
                                         .kv = on_cpu,
                                         .n_rows = rows,
                                         .n_heads = heads});
    gpu.ops().rope_append(gpu.stream(), {.qkv = qkv_gpu,
                                         .cos_sin = gpu.in(cos_sin),
                                         .slot = gpu.in(slot),
                                         .kv = on_gpu,
                                         .n_rows = rows,
                                         .n_heads = heads});
    std::string problem = difference(gpu.out(qkv_gpu, qkv.size()), rotated);
    const auto same_cache = [&] {
      if (problem.empty()) problem = difference(gpu.out(static_cast<char*>(on_gpu.k), k.size()), k);
      if (problem.empty()) problem = difference(gpu.out(static_cast<char*>(on_gpu.v), v.size()), v);
    };
    same_cache();
    rig.report.check(std::string("rope_append has the CPU's bits, ") + name_of(type),
                     problem.empty(), problem);
    // A chain that overwrites its sources, as commit produces.
    const std::vector<int32_t> from{20, 22, 25, 31, 40}, to{19, 20, 22, 25, 31};
    rig.cpu.kv_move(rig.cpu_stream, {.kv = on_cpu, .from = from.data(), .to = to.data(), .n = 5});
    gpu.ops().kv_move(gpu.stream(), {.kv = on_gpu, .from = gpu.in(from), .to = gpu.in(to), .n = 5});
    problem.clear();
    same_cache();
    rig.report.check(std::string("kv_move has the CPU's bits, ") + name_of(type), problem.empty(),
                     problem);
    gpu.free_all();
  }
}

void check_draw(Rig& rig) {
  Gpu& gpu = rig.gpu;
  {
    const int32_t rows = 5, vocab = rig.small ? 5001 : 50001;
    std::vector<uint64_t> seed(rows);
    std::vector<int32_t> position(rows);
    for (int32_t r = 0; r < rows; ++r)
      seed[static_cast<size_t>(r)] = (uint64_t{g_random()} << 32) | g_random(),
      position[static_cast<size_t>(r)] = below(1 << 30);
    std::vector<float> expected(static_cast<size_t>(rows) * vocab);
    rig.cpu.draw_noise(rig.cpu_stream, {.seed = seed.data(),
                                        .position = position.data(),
                                        .out = expected.data(),
                                        .n_rows = rows,
                                        .vocab = vocab});
    float* out = gpu.poisoned(expected.size());
    gpu.ops().draw_noise(gpu.stream(), {.seed = gpu.in(seed),
                                        .position = gpu.in(position),
                                        .out = out,
                                        .n_rows = rows,
                                        .vocab = vocab});
    const std::string problem = difference(gpu.out(out, expected.size()), expected);
    rig.report.check("draw_noise has the CPU's bits", problem.empty(), problem);
    gpu.free_all();
  }
  for (const int32_t vocab : {7, 4096, rig.small ? 9001 : 128256}) {
    const int32_t rows = 64;
    std::vector<float> logits = floats(static_cast<size_t>(rows) * vocab, 4);
    std::vector<DrawRow> row(rows);
    for (int32_t r = 0; r < rows; ++r) {
      DrawRow& each = row[static_cast<size_t>(r)];
      each.greedy = r % 8 == 0;
      each.temperature = 0.3f + 0.1f * static_cast<float>(below(15));
      each.top_k = r % 3 == 0 ? 1 + below(vocab) : r % 3 == 1 ? 0 : 40;
      each.min_p = r % 7 == 3 ? 0.05f : 0.0f;
      each.top_p = r % 4 == 0 ? 1.0f : r % 4 == 1 ? 0.95f : r % 4 == 2 ? 0.3f : 1e-6f;
      each.position = below(100000);
      each.seed = g_random();
      float* own = &logits[static_cast<size_t>(r) * vocab];
      if (r % 5 == 1) {  // ties everywhere
        for (int32_t t = 0; t < vocab; ++t) own[t] = std::round(own[t]);
      }
      if (r == 10) own[below(vocab)] = kNan;
      if (r == 11) std::fill(own, own + vocab, -HUGE_VALF);
      if (r == 12) std::fill(own, own + vocab - 1, -HUGE_VALF);
      if (r == 13) own[below(vocab)] = HUGE_VALF;
    }
    std::vector<int32_t> expected(rows, -7);
    rig.cpu.draw(rig.cpu_stream, {.logits = logits.data(),
                                  .row = row.data(),
                                  .token = expected.data(),
                                  .n_rows = rows,
                                  .vocab = vocab});
    int32_t* token = gpu.in(std::vector<int32_t>(rows, -7));
    gpu.ops().draw(gpu.stream(), {.logits = gpu.in(logits),
                                  .row = gpu.in(row),
                                  .token = token,
                                  .n_rows = rows,
                                  .vocab = vocab});
    const std::string problem = difference(gpu.out(token, rows), expected);
    rig.report.check("draw gives the CPU's tokens, vocabulary " + std::to_string(vocab),
                     problem.empty(), problem);
    gpu.free_all();
  }
}

void check_penalties(Rig& rig) {
  Gpu& gpu = rig.gpu;
  const int32_t rows = 12, vocab = 5000, n_tokens = 64;
  std::vector<float> logits = floats(static_cast<size_t>(rows) * vocab, 4);
  std::vector<int32_t> token(n_tokens), path;
  for (int32_t& t : token) t = below(vocab);
  token[7] = token[9];  // twice on a path
  std::vector<PenaltySeen> seen;
  std::vector<PenaltyRow> row(rows);
  for (int32_t r = 0; r < rows; ++r) {
    PenaltyRow& own = row[static_cast<size_t>(r)];
    own = {.repetition = 1.2f,
           .frequency = 0.3f,
           .presence = r % 2 == 0 ? 0.7f : -0.1f,
           .seen_begin = static_cast<int32_t>(seen.size()),
           .path_begin = static_cast<int32_t>(path.size())};
    for (int32_t t = r; t < vocab && r % 5 != 4; t += 11) seen.push_back({t, t % 3});
    for (int32_t i = 0; i < 20 * (r % 3); ++i) path.push_back(i);
    own.seen_end = static_cast<int32_t>(seen.size());
    own.path_end = static_cast<int32_t>(path.size());
  }
  path.push_back(0);
  float* on_gpu = gpu.in(logits);
  gpu.ops().penalize(gpu.stream(), {.logits = on_gpu,
                                    .row = gpu.in(row),
                                    .seen = gpu.in(seen),
                                    .path = gpu.in(path),
                                    .token = gpu.in(token),
                                    .n_rows = rows,
                                    .vocab = vocab});
  rig.cpu.penalize(rig.cpu_stream, {.logits = logits.data(),
                                    .row = row.data(),
                                    .seen = seen.data(),
                                    .path = path.data(),
                                    .token = token.data(),
                                    .n_rows = rows,
                                    .vocab = vocab});
  const std::string problem = difference(gpu.out(on_gpu, logits.size()), logits);
  rig.report.check("penalize has the CPU's bits", problem.empty(), problem);
  gpu.free_all();
}

// Top-k, log-probabilities and the draw, with gaps between rows and a shorter vocabulary.
void check_logits(Rig& rig) {
  Gpu& gpu = rig.gpu;
  const int32_t rows = 9, vocab = rig.small ? 5003 : 32003, width = vocab + 97, k = 11, stride = 14;
  std::vector<float> logits = floats(static_cast<size_t>(rows) * width, 4);
  for (int32_t r = 0; r < rows; ++r) {  // the gaps would win
    std::fill_n(logits.begin() + static_cast<ptrdiff_t>(r) * width + vocab, width - vocab, 1e9f);
  }
  for (int32_t t = 0; t < vocab; ++t) logits[t] = std::round(logits[t]);  // ties
  logits[static_cast<size_t>(2 * width + 5)] = kNan;
  const size_t cells = static_cast<size_t>(rows) * stride;
  std::vector<int32_t> top(cells, -7), drawn(cells, -7), asked(cells);
  std::vector<float> logprob(cells, 7);
  for (int32_t& t : asked) t = below(vocab);
  asked[3] = -1, asked[4] = vocab;  // for these nothing is written
  std::vector<DrawRow> row(rows);
  for (int32_t r = 0; r < rows; ++r) {
    row[static_cast<size_t>(r)] = {
        .temperature = 0.8f, .position = r, .seed = g_random(), .greedy = r % 2 == 0};
  }
  const auto run = [&](const Ops& ops, Stream& stream, const float* l, const DrawRow* d,
                       const int32_t* tokens, int32_t* t, int32_t* n, float* p) {
    ops.top_k(stream, {.logits = l,
                       .token = t,
                       .n_rows = rows,
                       .vocab = vocab,
                       .k = k,
                       .logits_stride = width,
                       .token_stride = stride});
    ops.log_prob(stream, {.logits = l,
                          .token = tokens,
                          .out = p,
                          .n_rows = rows,
                          .vocab = vocab,
                          .k = k,
                          .logits_stride = width,
                          .token_stride = stride,
                          .out_stride = stride});
    ops.draw(stream, {.logits = l,
                      .row = d,
                      .token = n,
                      .n_rows = rows,
                      .vocab = vocab,
                      .logits_stride = width,
                      .token_stride = stride});
  };
  int32_t *gpu_top = gpu.in(top), *gpu_drawn = gpu.in(drawn);
  float* gpu_logprob = gpu.in(logprob);
  run(gpu.ops(), gpu.stream(), gpu.in(logits), gpu.in(row), gpu.in(asked), gpu_top, gpu_drawn,
      gpu_logprob);
  run(rig.cpu, rig.cpu_stream, logits.data(), row.data(), asked.data(), top.data(), drawn.data(),
      logprob.data());
  std::string problem = difference(gpu.out(gpu_top, cells), top);
  rig.report.check("top_k gives the CPU's tokens and writes nothing else", problem.empty(),
                   problem);
  problem = difference(gpu.out(gpu_drawn, cells), drawn);
  rig.report.check("draw keeps to its strides and its vocabulary", problem.empty(), problem);
  const std::vector<float> got = gpu.out(gpu_logprob, cells);
  double worst = 0;
  for (size_t i = 0; i < cells; ++i) {
    if (i / stride == 2) continue;  // the row with a NaN is undefined
    worst = std::max(worst, std::fabs(static_cast<double>(got[i]) - logprob[i]));
  }
  rig.report.check("log_prob is the CPU's within 1e-5", worst < 1e-5, std::to_string(worst));
  gpu.free_all();
}

void check_tree(Rig& rig) {
  Gpu& gpu = rig.gpu;
  const int32_t n = 300, capacity = 40, room = 9, vocab = 3;
  std::vector<int32_t> n_nodes, token, parent, flags, wanted;
  for (int32_t s = 0; s < n; ++s) {
    // Some paths are longer than their room, because every token is wanted.
    const bool is_deep = s % 5 == 0;
    n_nodes.push_back(s % 17 == 0 ? INT32_MAX : below(capacity + 1));
    wanted.push_back(is_deep ? 1 : below(3));
    for (int32_t i = 0; i < capacity; ++i) {
      const bool is_none = below(50) == 0;
      token.push_back(is_none ? below(2) * (vocab + 1) - 1 : is_deep ? 1 : below(vocab));
      parent.push_back(i - 1 - below(std::min(i + 1, 3)));
      flags.push_back(is_deep ? 0 : below(4));
      wanted.push_back(is_deep ? 1 : below(vocab));
    }
  }
  std::vector<int32_t> path(static_cast<size_t>(n) * room, -7), n_path(n, -7), last(n, -7);
  std::vector<int32_t> from, to, picked(token.size(), -7);
  for (int32_t i = 0; i < n * capacity; i += 3)
    from.push_back(i), to.push_back(n * capacity - 1 - i);
  struct Columns {
    int32_t *n_nodes, *token, *parent, *flags, *wanted, *path, *n_path, *last, *from, *to, *picked;
  };
  const auto run = [&](const Ops& ops, Stream& stream, const Columns& c) {
    ops.clamp_nodes(
        stream,
        {.n_nodes = c.n_nodes, .token = c.token, .n = n, .capacity = capacity, .vocab = vocab});
    ops.walk_tree(stream, {.n_nodes = c.n_nodes,
                           .token = c.token,
                           .parent = c.parent,
                           .flags = c.flags,
                           .wanted = c.wanted,
                           .n_path = c.n_path,
                           .path = c.path,
                           .last = c.last,
                           .n = n,
                           .capacity = capacity,
                           .path_capacity = room,
                           .skip_flags = 1});
    ops.pick_tokens(stream, {.source = c.token,
                             .from = c.from,
                             .target = c.picked,
                             .to = c.to,
                             .n = static_cast<int32_t>(from.size()),
                             .vocab = 2,
                             .otherwise = -3});
  };
  const Columns on_gpu{gpu.in(n_nodes), gpu.in(token), gpu.in(parent), gpu.in(flags),
                       gpu.in(wanted),  gpu.in(path),  gpu.in(n_path), gpu.in(last),
                       gpu.in(from),    gpu.in(to),    gpu.in(picked)};
  run(gpu.ops(), gpu.stream(), on_gpu);
  run(rig.cpu, rig.cpu_stream,
      {n_nodes.data(), token.data(), parent.data(), flags.data(), wanted.data(), path.data(),
       n_path.data(), last.data(), from.data(), to.data(), picked.data()});
  const auto same = [&](const char* what, int32_t* got, const std::vector<int32_t>& expected) {
    const std::string problem = difference(gpu.out(got, expected.size()), expected);
    rig.report.check(std::string(what) + " is the CPU's", problem.empty(), problem);
  };
  same("clamp_nodes", on_gpu.n_nodes, n_nodes);
  same("walk_tree, length,", on_gpu.n_path, n_path);
  same("walk_tree, path,", on_gpu.path, path);
  same("walk_tree, last token,", on_gpu.last, last);
  same("pick_tokens", on_gpu.picked, picked);
  gpu.free_all();
}

void check_graph(Rig& rig) {
  Gpu& gpu = rig.gpu;
  const int32_t n = 512, rows = 5;
  const Typed w = typed(static_cast<size_t>(n) * 2 * n, DType::kBF16, 0.05f);
  PackedMatrix packed{.dtype = DType::kBF16, .n_out = 2 * n, .n_in = n, .data = nullptr};
  packed.data = gpu.bytes(gpu.ops().packed_bytes(packed.dtype, packed.n_out, packed.n_in));
  gpu.ops().pack(gpu.stream(),
                 {.packed = packed, .source = w.bytes.data(), .n_rows = 2 * n, .column_begin = 0});
  float* x = gpu.in(floats(static_cast<size_t>(rows) * n));
  const float* weight = gpu.in(floats(static_cast<size_t>(n)));
  float *h = gpu.poisoned(static_cast<size_t>(rows) * n),
        *up = gpu.poisoned(static_cast<size_t>(rows) * 2 * n),
        *act = gpu.poisoned(static_cast<size_t>(rows) * n);
  const auto submit = [&] {
    gpu.ops().rmsnorm(gpu.stream(), {.x = x,
                                     .delta = nullptr,
                                     .weight = weight,
                                     .out = h,
                                     .n_rows = rows,
                                     .n = n,
                                     .eps = 1e-5f});
    gpu.ops().matmul(gpu.stream(),
                     {.x = h, .weights = packed, .out = up, .n_rows = rows, .k_segments = 1});
    gpu.ops().silu_mul(gpu.stream(), {.gate_up = up, .out = act, .n_rows = rows, .n = n});
  };
  submit();
  const std::vector<float> eager = gpu.out(act, static_cast<size_t>(rows) * n);
  CudaProblem problem;
  int32_t graph = -1;
  if (gpu.device->begin_capture(problem)) {
    submit();
    graph = gpu.device->end_capture(problem);
  }
  std::string words = problem.text;
  if (graph >= 0) {
    const std::vector<float> poison(static_cast<size_t>(rows) * n, kNan);
    gpu.device->copy_in(act, poison.data(), poison.size() * sizeof(float));
    gpu.device->launch(graph);
    words = difference(gpu.out(act, poison.size()), eager);
  }
  rig.report.check("a replayed graph has the bits of the eager calls", words.empty(), words);
  gpu.free_all();
}

// ---- rates -------------------------------------------------------------------------------------

double median_ns(Gpu& gpu, int repeat, const std::function<void()>& submit) {
  std::vector<double> times;
  submit();
  for (int i = 0; i < repeat; ++i) {
    gpu.device->mark(0);
    submit();
    gpu.device->mark(1);
    times.push_back(static_cast<double>(gpu.device->elapsed_ns()));
  }
  gpu.sync();
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// The matrices of one layer of an 8B Llama, in eight copies, so that no cache holds them.
std::string rates(Rig& rig) {
  Gpu& gpu = rig.gpu;
  struct Shape {
    int32_t n_out, n_in, segments;
  };
  const Shape shapes[] = {{6144, 4096, 1}, {4096, 4096, 8}, {28672, 4096, 1}, {4096, 14336, 8}};
  constexpr int kLayers = 8;
  const Typed random = typed(size_t{28672} * 4096, DType::kBF16, 0.02f);
  std::vector<PackedMatrix> all;
  uint64_t bytes = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Shape& shape : shapes) {
      PackedMatrix packed{
          .dtype = DType::kBF16, .n_out = shape.n_out, .n_in = shape.n_in, .data = nullptr};
      const size_t size = gpu.ops().packed_bytes(packed.dtype, packed.n_out, packed.n_in);
      packed.data = gpu.bytes(size);
      bytes += size;
      all.push_back(packed);
      // Not zeros, which would save power; the same for every layer.
      gpu.ops().pack(gpu.stream(), {.packed = packed,
                                    .source = random.bytes.data(),
                                    .n_rows = shape.n_out,
                                    .column_begin = 0});
    }
  }
  const int32_t rows_max = 512;
  const float* x = gpu.in(floats(static_cast<size_t>(rows_max) * 14336));
  float* out = gpu.poisoned(static_cast<size_t>(rows_max) * 28672);
  std::string json = "{\"weight_bytes\": " + std::to_string(bytes) + ", \"rows\": {";
  double one = 0;
  std::printf("\n%8s %12s %10s %10s %12s\n", "rows", "ms", "V(n)", "GB/s", "TFLOP/s");
  for (const int32_t rows : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}) {
    const double ns = median_ns(gpu, 9, [&] {
      for (size_t i = 0; i < all.size(); ++i) {
        gpu.ops().matmul(gpu.stream(), {.x = x,
                                        .weights = all[i],
                                        .out = out,
                                        .n_rows = rows,
                                        .k_segments = shapes[i % 4].segments});
      }
    });
    if (rows == 1) one = ns;
    const double flops = static_cast<double>(bytes) * rows;  // two per parameter of two bytes
    std::printf("%8d %12.3f %10.3f %10.0f %12.1f\n", rows, ns / 1e6, ns / one,
                static_cast<double>(bytes) / ns, flops / ns / 1e3);
    json += (rows == 1 ? "\"" : ", \"") + std::to_string(rows) + "\": " + std::to_string(ns / 1e6);
  }
  gpu.free_all();
  return json + "}}";
}

}  // namespace
}  // namespace specd::kernels

int main(int argc, char** argv) {
  using namespace specd::kernels;
  const std::pair<const char*, std::function<void(Rig&)>> groups[] = {
      {"elementwise", check_elementwise},
      {"norms", check_norms},
      {"matmul", [](Rig& rig) { check_matmul(rig, false); }},
      {"cache", check_cache},
      {"attention", check_attention},
      {"draw", check_draw},
      {"penalties", check_penalties},
      {"logits", check_logits},
      {"tree", check_tree},
      {"graph", check_graph}};
  if (argc < 2) {
    stop(
        "usage: kernel_check LIBRARY [--seed N] [--json FILE] [--only GROUP] [--rates 0] [--fast 1] "
        "[--small 1]");
  }
  uint32_t seed = std::random_device()();
  std::string json_path, only;
  bool with_rates = true, with_fast = false, small = false;
  for (int i = 2; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seed") == 0)
      seed = static_cast<uint32_t>(std::strtoul(argv[i + 1], nullptr, 10));
    if (std::strcmp(argv[i], "--json") == 0) json_path = argv[i + 1];
    if (std::strcmp(argv[i], "--only") == 0) only = argv[i + 1];
    if (std::strcmp(argv[i], "--fast") == 0) with_fast = std::strcmp(argv[i + 1], "0") != 0;
    if (std::strcmp(argv[i], "--small") == 0) small = std::strcmp(argv[i + 1], "0") != 0;
    if (std::strcmp(argv[i], "--rates") == 0) with_rates = std::strcmp(argv[i + 1], "0") != 0;
  }
  g_random.seed(seed);
  CudaLimits limits = small ? small_limits() : CudaLimits();
  Gpu gpu(argv[1], limits);
  const CudaDeviceInfo& info = gpu.device->info();
  std::printf("%s, compute capability %d.%d, %d multiprocessors, %.1f GiB; seed %u\n\n", info.name,
              info.major, info.minor, info.multiprocessors,
              static_cast<double>(info.total_bytes) / (1 << 30), seed);
  WorkerPool pool(8);
  CpuStream cpu_stream(pool);
  Report report;
  Rig rig{gpu, cpu_ops(Isa::kScalar), cpu_stream, report, small};
  bool ran = false;
  for (const auto& [name, check] : groups) {
    if (!only.empty() && only != name) continue;
    check(rig);
    ran = true;
  }
  if (!ran) stop("--only " + only + ": no such group");
  if (with_fast) {
    limits.fast = true;
    Gpu fast(argv[1], limits);
    Rig fast_rig{fast, cpu_ops(Isa::kScalar), cpu_stream, report, small};
    check_matmul(fast_rig, true);
    if (with_rates) std::printf("\nby cuBLASLt:"), (void)rates(fast_rig);
  }
  const std::string speed = report.failures == 0 && with_rates ? rates(rig) : "null";
  std::printf("\n%d failed\n", report.failures);
  if (!json_path.empty()) {
    std::FILE* file = std::fopen(json_path.c_str(), "w");
    if (file == nullptr) stop("cannot write " + json_path);
    std::fprintf(file, "%s], \"device\": \"%s\", \"seed\": %u, \"matmul\": %s}\n",
                 report.json.c_str(), info.name, seed, speed.c_str());
    std::fclose(file);
  }
  return report.failures == 0 ? 0 : 1;
}
