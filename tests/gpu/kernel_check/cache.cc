// Rotation, appending to pages, and moves between slots.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "tests/gpu/kernel_check/rig.h"

namespace specd::kernels {
namespace {

// A warp has a head: with heads of 64 a lane reads again only what it has written, with 80 also what others have.
void check_cache_of(Rig& rig, KvDType type, int32_t dim) {
  Gpu& gpu = rig.gpu;
  const int32_t heads = 6, groups = 2, rows = 23, n_pages = 8;
  const size_t stride = static_cast<size_t>(groups) * dim * kPageTokens + 48,
               cells = stride * n_pages;
  const size_t width = static_cast<size_t>(heads + 2 * groups) * dim;
  std::vector<float> qkv = floats(static_cast<size_t>(rows) * width, 2);
  // Rows of K and V that are zero, tiny, huge and, in the last one of V, not a number.
  for (size_t i = 0; i < width; ++i) {
    qkv[5 * width + i] = 0;
    qkv[6 * width + i] *= 0x1p-110f;
    qkv[7 * width + i] *= 0x1p100f;
  }
  qkv[9 * width - 3] = INFINITY;
  std::vector<int32_t> position(rows), slot(static_cast<size_t>(n_pages * kPageTokens));
  std::iota(slot.begin(), slot.end(), 0);
  std::shuffle(slot.begin(), slot.end(), g_random);
  slot.resize(rows);
  slot[4] = slot[20] = -1;  // not kept
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
  if (type == KvDType::kF32) {
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
  std::vector<char> k(cells * kv_dtype_bytes(type), 1), v = k;
  const size_t scale_stride = static_cast<size_t>(groups) * kPageTokens + 8;
  std::vector<float> k_scale(scale_stride * n_pages, 7), v_scale = k_scale;
  KvLayer on_cpu{.k = k.data(),
                 .v = v.data(),
                 .dtype = type,
                 .n_kv_heads = groups,
                 .head_dim = dim,
                 .page_stride = stride,
                 .k_row_scale = k_scale.data(),
                 .v_row_scale = v_scale.data(),
                 .scale_stride = scale_stride,
                 .k_scale = 0.0043f,
                 .v_scale = 0.03f};
  KvLayer on_gpu = on_cpu;
  on_gpu.k = gpu.in(k), on_gpu.v = gpu.in(v);
  on_gpu.k_row_scale = gpu.in(k_scale), on_gpu.v_row_scale = gpu.in(v_scale);
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
    if (problem.empty()) problem = difference(gpu.out(on_gpu.k_row_scale, k_scale.size()), k_scale);
    if (problem.empty()) problem = difference(gpu.out(on_gpu.v_row_scale, v_scale.size()), v_scale);
  };
  same_cache();
  const std::string what = std::string(name_of(type)) + ", heads of " + std::to_string(dim);
  rig.report.check("rope_append has the CPU's bits, " + what, problem.empty(), problem);
  // A chain that overwrites its sources, as commit produces.
  const std::vector<int32_t> from{20, 22, 25, 31, 40}, to{19, 20, 22, 25, 31};
  rig.cpu.kv_move(rig.cpu_stream, {.kv = on_cpu, .from = from.data(), .to = to.data(), .n = 5});
  gpu.ops().kv_move(gpu.stream(), {.kv = on_gpu, .from = gpu.in(from), .to = gpu.in(to), .n = 5});
  problem.clear();
  same_cache();
  rig.report.check("kv_move has the CPU's bits, " + what, problem.empty(), problem);
  gpu.free_all();
}

}  // namespace

void check_cache(Rig& rig) {
  for (const KvDType type : kKvTypes) {
    for (const int32_t dim : {64, 80}) check_cache_of(rig, type, dim);
  }
}

}  // namespace specd::kernels
