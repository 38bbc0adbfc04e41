// Rates of a layer's ops, replayed as graphs, for 1 to 512 rows.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/kernel_check/rig.h"
#include "tests/kernels/code_cases.h"

namespace specd::kernels {

namespace {

double median_ns(Gpu& gpu, int repeat, const std::function<void()>& submit) {
  submit();  // outside of a capture first: a kernel is loaded at its first launch
  gpu.sync();
  CudaProblem problem;
  if (!gpu.device->begin_capture(problem)) stop(problem.text);
  submit();
  const int32_t graph = gpu.device->end_capture(problem);
  if (graph < 0) stop(problem.text);
  gpu.device->launch(graph);
  std::vector<double> times;
  for (int i = 0; i < repeat; ++i) {
    gpu.device->mark(0);
    gpu.device->launch(graph);
    gpu.device->mark(1);
    times.push_back(static_cast<double>(gpu.device->elapsed_ns()));
  }
  gpu.sync();
  gpu.device->release_graph(graph);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// An 8B Llama's layer. Eight copies of its matrices, so that no cache holds them.
constexpr int kLayers = 8, kRepeat = 9;
constexpr int32_t kHidden = 4096, kFfn = 14336, kHeads = 32, kKvHeads = 8, kDim = 128,
                  kRowsMax = 512;
constexpr int32_t kContext = 1024;
struct Shape {
  const char* name;
  int32_t n_out, n_in, segments;
};
constexpr Shape kShapes[] = {{"qkv", 6144, kHidden, 1},
                             {"o", 4096, kHidden, 8},
                             {"gate and up", 2 * kFfn, kHidden, 1},
                             {"down", kHidden, kFfn, 8}};
constexpr int kShapesOfLayer = 4;

void print_us(const char* name, const std::vector<double>& us) {
  std::printf("%18s", name);
  for (const double each : us) std::printf(" %9.2f", each);
  std::printf("\n");
}

// Microseconds of the ops between the matmuls, for 1, 8, 64 and 512 rows of one sequence.
void rates_between(Gpu& gpu, const std::vector<int32_t>& counts) {
  constexpr int kCalls = 32;
  const Ops& ops = gpu.ops();
  float* x = gpu.in(floats(size_t{kRowsMax} * kHidden));
  const float* delta = gpu.in(floats(size_t{kRowsMax} * kHidden));
  const float* weight = gpu.in(floats(kHidden));
  float* out = gpu.poisoned(size_t{kRowsMax} * kFfn);
  float* qkv = gpu.in(floats(size_t{kRowsMax} * (kHeads + 2 * kKvHeads) * kDim));
  const float* gate = gpu.in(floats(size_t{kRowsMax} * 2 * kFfn));
  const float* cos_sin = gpu.in(floats(size_t{kRowsMax} * kDim));
  constexpr int32_t kPages = (kContext + kRowsMax) / kPageTokens;
  const size_t elements = size_t{kPages} * kKvHeads * kDim * kPageTokens;
  std::vector<int32_t> position, slot, span, pages, zero(kRowsMax, 0);
  for (int32_t i = 0; i < kPages; ++i) pages.push_back(i);
  for (int32_t i = 0; i < kRowsMax; ++i) {
    position.push_back(kContext + i), slot.push_back(kContext + i),
        span.push_back(kContext + i + 1);
  }
  const KvLayer kv{.k = gpu.in(typed(elements, DType::kBF16, 1).bytes),
                   .v = gpu.in(typed(elements, DType::kBF16, 1).bytes),
                   .dtype = KvDType::kBF16,
                   .n_kv_heads = kKvHeads,
                   .head_dim = kDim,
                   .page_stride = size_t{kKvHeads} * kDim * kPageTokens};
  const int32_t *slots = gpu.in(slot), *positions = gpu.in(position), *spans = gpu.in(span);
  const int32_t *table = gpu.in(pages), *zeros = gpu.in(zero);
  const std::pair<const char*, std::function<void(int32_t)>> all[] = {
      {"rmsnorm",
       [&](int32_t n) {
         ops.rmsnorm(gpu.stream(), {.x = x,
                                    .delta = delta,
                                    .weight = weight,
                                    .out = out,
                                    .n_rows = n,
                                    .n = kHidden,
                                    .eps = 1e-5f});
       }},
      {"rope_append",
       [&](int32_t n) {
         ops.rope_append(gpu.stream(), {.qkv = qkv,
                                        .cos_sin = cos_sin,
                                        .slot = slots,
                                        .kv = kv,
                                        .n_rows = n,
                                        .n_heads = kHeads});
       }},
      {"attention",
       [&](int32_t n) {
         ops.attention(gpu.stream(), {.qkv = qkv,
                                      .out = out,
                                      .kv = kv,
                                      .position = positions,
                                      .span = spans,
                                      .table = zeros,
                                      .pages = table,
                                      .tail_begin = zeros,
                                      .tail = zeros,
                                      .n_rows = n,
                                      .n_heads = kHeads,
                                      .scale = 0.088f});
       }},
      {"silu(gate) * up", [&](int32_t n) {
         ops.map(gpu.stream(), {.op = MapOp::kSiluMul,
                                .x = gate,
                                .y = gate + kFfn,
                                .out = out,
                                .n_rows = n,
                                .n = kFfn,
                                .x_stride = 2 * kFfn,
                                .y_stride = 2 * kFfn,
                                .out_stride = kFfn});
       }}};
  for (const auto& each : all) {
    const auto& submit = each.second;
    std::vector<double> us;
    for (const int32_t n : counts) {
      us.push_back(median_ns(gpu, kRepeat,
                             [&] {
                               for (int i = 0; i < kCalls; ++i) submit(n);
                             }) /
                   kCalls / 1e3);
    }
    print_us(each.first, us);
  }
}

// Microseconds of the matmuls of codes.
void rates_of_codes(Gpu& gpu, const std::vector<int32_t>& counts, const float* x, float* out) {
  constexpr CodeCase kKinds[] = {{.name = "w8a8"},
                                 {.name = "w4a16", .bits = 4, .x_bits = 16, .group = 128},
                                 {.name = "fp8", .x_bits = 32}};
  for (const CodeCase& kind : kKinds) {
    std::vector<uint8_t> codes(size_t{2 * kFfn} * kHidden);
    for (uint8_t& each : codes) each = random_code(kind, g_random);
    for (const Shape& shape : kShapes) {
      const OrderOfCase on_host(kind, shape.n_in, g_random);
      CodeOrder order = on_host.order;
      order.runs = gpu.in(on_host.runs);
      order.source = gpu.in(on_host.source);
      const std::vector<float> scale =
          floats(static_cast<size_t>(shape.n_out) * static_cast<size_t>(order.n_groups), 0.01f);
      std::vector<PackedMatrix> layers(kLayers,
                                       {.n_out = shape.n_out, .n_in = shape.n_in, .order = &order});
      for (PackedMatrix& each : layers) {
        each.data = gpu.bytes(gpu.ops().packed_code_bytes(order, shape.n_out));
        gpu.ops().pack(gpu.stream(), {.packed = each,
                                      .source = codes.data(),
                                      .n_rows = shape.n_out,
                                      .column_begin = 0,
                                      .scale = scale.data()});
      }
      std::vector<double> us;
      for (const int32_t n : counts) {
        const auto submit = [&] {
          for (const PackedMatrix& each : layers)
            gpu.ops().matmul(gpu.stream(), {.x = x, .weights = each, .out = out, .n_rows = n});
        };
        us.push_back(median_ns(gpu, kRepeat, submit) / kLayers / 1e3);
      }
      print_us((std::string(kind.name) + " " + shape.name).c_str(), us);
    }
  }
}

}  // namespace

std::string rates(Rig& rig) {
  Gpu& gpu = rig.gpu;
  const Typed random = typed(size_t{2 * kFfn} * kHidden, DType::kBF16, 0.02f);
  std::vector<PackedMatrix> all;
  uint64_t bytes = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Shape& shape : kShapes) {
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
  const float* x = gpu.in(floats(static_cast<size_t>(kRowsMax) * kFfn));
  float* out = gpu.poisoned(static_cast<size_t>(kRowsMax) * 2 * kFfn);
  const auto ns_of = [&](int32_t rows, size_t first, size_t step) {
    return median_ns(gpu, kRepeat, [&] {
      for (size_t i = first; i < all.size(); i += step) {
        gpu.ops().matmul(gpu.stream(), {.x = x,
                                        .weights = all[i],
                                        .out = out,
                                        .n_rows = rows,
                                        .k_segments = kShapes[i % kShapesOfLayer].segments});
      }
    });
  };
  std::string json = "{\"weight_bytes\": " + std::to_string(bytes) + ", \"rows\": {";
  double one = 0;
  std::printf("\n%8s %12s %10s %10s %12s\n", "rows", "ms", "V(n)", "GB/s", "TFLOP/s");
  for (const int32_t rows : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}) {
    const double ns = ns_of(rows, 0, 1);
    if (rows == 1) one = ns;
    const double flops = static_cast<double>(bytes) * rows;  // two per parameter of two bytes
    std::printf("%8d %12.3f %10.3f %10.0f %12.1f\n", rows, ns / 1e6, ns / one,
                static_cast<double>(bytes) / ns, flops / ns / 1e3);
    json += (rows == 1 ? "\"" : ", \"") + std::to_string(rows) + "\": " + std::to_string(ns / 1e6);
  }
  const std::vector<int32_t> counts = {1, 8, 64, 512};
  std::printf("\nmicroseconds a call, context %d\n%18s", kContext, "rows");
  for (const int32_t n : counts) std::printf(" %9d", n);
  std::printf("\n");
  for (size_t shape = 0; shape < kShapesOfLayer; ++shape) {
    std::vector<double> us;
    for (const int32_t n : counts) us.push_back(ns_of(n, shape, kShapesOfLayer) / kLayers / 1e3);
    print_us(kShapes[shape].name, us);
  }
  rates_between(gpu, counts);
  rates_of_codes(gpu, counts, x, out);
  gpu.free_all();
  return json + "}}";
}

}  // namespace specd::kernels
