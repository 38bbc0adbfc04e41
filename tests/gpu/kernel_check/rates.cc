// Rates of the matmuls of a layer, for 1 to 512 rows.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/kernel_check/rig.h"

namespace specd::kernels {

namespace {

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

}  // namespace

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

}  // namespace specd::kernels
