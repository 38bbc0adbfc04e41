// A captured step, replayed.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/gpu/kernel_check/rig.h"

namespace specd::kernels {

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
    gpu.ops().map(gpu.stream(), {.op = MapOp::kSiluMul,
                                 .x = up,
                                 .y = up + n,
                                 .out = act,
                                 .n_rows = rows,
                                 .n = n,
                                 .x_stride = 2 * n,
                                 .y_stride = 2 * n,
                                 .out_stride = n});
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

}  // namespace specd::kernels
