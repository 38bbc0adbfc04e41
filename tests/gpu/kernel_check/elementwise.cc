// Embedding, maps, copied rows.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/gpu/kernel_check/rig.h"

namespace specd::kernels {

void check_elementwise(Rig& rig) {
  Gpu& gpu = rig.gpu;
  for (const DType type : kTypes) {
    const int32_t vocab = 777, n = 1000 + below(100), rows = 9;
    const Typed table = typed(static_cast<size_t>(vocab) * n, type, 1);
    std::vector<int32_t> token(rows);
    for (int32_t& t : token) t = below(vocab);
    token[3] = -1;
    token[5] = vocab;  // neither is in the table
    std::vector<float> expected(static_cast<size_t>(rows) * n);
    EmbedArgs a{.table = table.bytes.data(),
                .dtype = type,
                .token = token.data(),
                .out = expected.data(),
                .n_rows = rows,
                .n = n,
                .vocab = vocab};
    rig.cpu.embed(rig.cpu_stream, a);
    a.table = gpu.in(table.bytes), a.token = gpu.in(token), a.out = gpu.poisoned(expected.size());
    gpu.ops().embed(gpu.stream(), a);
    const std::string problem = difference(gpu.out(a.out, expected.size()), expected);
    rig.report.check(std::string("embed has the CPU's bits, ") + name_of(type), problem.empty(),
                     problem);
  }
  for (const MapOp op :
       {MapOp::kAdd, MapOp::kMul, MapOp::kSilu, MapOp::kSiluAdd, MapOp::kSiluMul}) {
    // Rows of x and y are apart, side by side in one matrix, as those of gate and up.
    const int32_t n = 3000 + below(50), rows = 7;
    std::vector<float> both = floats(static_cast<size_t>(rows) * 2 * n, 8);
    const float odd[] = {0, -0.0f, 200, -200, HUGE_VALF, -HUGE_VALF, 88.5f, -103.9f};
    std::copy(std::begin(odd), std::end(odd), both.begin());
    std::vector<float> expected(static_cast<size_t>(rows) * (n + 3), kNan);
    MapArgs a{.op = op,
              .x = both.data(),
              .y = op == MapOp::kSilu ? nullptr : both.data() + n,
              .out = expected.data(),
              .n_rows = rows,
              .n = n,
              .x_stride = 2 * n,
              .y_stride = op == MapOp::kAdd ? 0 : 2 * n,  // one row for all: a bias
              .out_stride = n + 3};
    rig.cpu.map(rig.cpu_stream, a);
    float* on_device = gpu.in(both);
    a.x = on_device, a.out = gpu.poisoned(expected.size());
    if (a.y != nullptr) a.y = on_device + n;
    gpu.ops().map(gpu.stream(), a);
    std::vector<float> got = gpu.out(a.out, expected.size());
    for (size_t i = 0; i < got.size(); ++i) {  // the payload of a NaN is unspecified
      if (std::isnan(got[i]) && std::isnan(expected[i])) got[i] = expected[i];
    }
    const std::string problem = difference(got, expected);
    rig.report.check("map " + std::to_string(static_cast<int>(op)) + " has the CPU's bits",
                     problem.empty(), problem);
  }
  for (const bool is_gathered : {true, false}) {
    const int32_t n = 513, rows = 21, from_rows = 40, to_rows = 30;
    const std::vector<float> from = floats(static_cast<size_t>(from_rows) * (n + 5));
    std::vector<int32_t> from_row(rows), to_row(rows);
    for (int32_t i = 0; i < rows; ++i) {
      from_row[static_cast<size_t>(i)] = below(from_rows);
      to_row[static_cast<size_t>(i)] = to_rows - 1 - i;
    }
    from_row[2] = -1, from_row[4] = from_rows, to_row[6] = -1, to_row[8] = to_rows;  // skipped
    std::vector<float> expected(static_cast<size_t>(to_rows) * (n + 1), kNan);
    CopyRowsArgs a{.from = from.data(),
                   .to = expected.data(),
                   .from_row = is_gathered ? from_row.data() : nullptr,
                   .to_row = is_gathered ? nullptr : to_row.data(),
                   .n_rows = rows,
                   .n = n,
                   .from_rows = from_rows,
                   .to_rows = to_rows,
                   .from_stride = n + 5,
                   .to_stride = n + 1};
    rig.cpu.copy_rows(rig.cpu_stream, a);
    float* to = gpu.poisoned(expected.size());
    a.from = gpu.in(from), a.to = to;
    if (is_gathered) a.from_row = gpu.in(from_row);
    if (!is_gathered) a.to_row = gpu.in(to_row);
    gpu.ops().copy_rows(gpu.stream(), a);
    const std::string problem = difference(gpu.out(to, expected.size()), expected);
    rig.report.check(std::string("copy_rows ") + (is_gathered ? "gathers" : "scatters"),
                     problem.empty(), problem);
  }
}

}  // namespace specd::kernels
