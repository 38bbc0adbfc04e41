// Embedding, gather, bias, SiLU.
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

}  // namespace specd::kernels
