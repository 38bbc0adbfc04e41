// Packing and matmuls of every type, strict in rows.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/kernel_check/rig.h"

namespace specd::kernels {
namespace {

// The sums of each rank's part of k, added in the order of the ranks. `source`: [n_out, n_in].
std::vector<float> on_ranks(Rig& rig, int32_t ranks, DType type, const std::vector<char>& source,
                            const std::vector<float>& x, int32_t n_out, int32_t n_in) {
  Gpu& gpu = rig.gpu;
  const SplitRule rule = gpu.ops().split_rule(type);
  const int32_t rows = static_cast<int32_t>(x.size()) / n_in, part = n_in / ranks;
  const int32_t segments = rule.segments == 0 ? 1 : rule.segments / ranks;
  const size_t n = static_cast<size_t>(rows) * static_cast<size_t>(n_out);
  float* sums = gpu.poisoned(n * static_cast<size_t>(segments * ranks));
  for (int32_t rank = 0; rank < ranks; ++rank) {
    PackedMatrix packed{.dtype = type, .n_out = n_out, .n_in = part, .data = nullptr};
    packed.data = gpu.bytes(gpu.ops().packed_bytes(type, n_out, part));
    gpu.ops().pack(gpu.stream(),
                   {.packed = packed,
                    .source = source.data() + static_cast<size_t>(rank * part) * dtype_bytes(type),
                    .source_stride = n_in,
                    .n_rows = n_out,
                    .column_begin = 0});
    std::vector<float> mine;
    for (int32_t r = 0; r < rows; ++r) {
      const auto at = x.begin() + r * n_in + rank * part;
      mine.insert(mine.end(), at, at + part);
    }
    gpu.ops().matmul(gpu.stream(), {.x = gpu.in(mine),
                                    .weights = packed,
                                    .out = sums + n * static_cast<size_t>(rank * segments),
                                    .n_rows = rows,
                                    .k_segments = segments,
                                    .apart = true});
  }
  float* out = gpu.poisoned(n);
  gpu.ops().add_segments(
      gpu.stream(),
      {.parts = sums, .out = out, .n_parts = segments * ranks, .n_rows = rows, .n = n_out});
  return gpu.out(out, n);
}

}  // namespace

void check_matmul(Rig& rig, bool fast) {
  Gpu& gpu = rig.gpu;
  struct Shape {
    int32_t n_out, n_in, segments, rows;
  };
  const Shape full[] = {{96, 64, 1, 257},    {130, 72, 1, 257},    {384, 384, 8, 257},
                        {48, 96, 8, 257},    {1000, 1030, 1, 257}, {512, 2048, 8, 257},
                        {20000, 4096, 1, 3}, {128256, 32, 1, 3}};
  // Few and many outputs, segments of more tiles than are read ahead, x and packs in several pieces.
  const Shape reduced[] = {{96, 64, 1, 257}, {130, 72, 1, 129}, {80, 1040, 1, 70},
                           {48, 96, 8, 65},  {144, 640, 8, 70}, {200, 1030, 1, 134},
                           {32000, 16, 1, 3}};
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
      std::vector<double> sums(all.size()), allowed(all.size());  // of bfloat16
      if (type == DType::kBF16) {
        for (int32_t r = 0; r < rows; ++r) {
          for (int32_t j = 0; j < shape.n_out; ++j) {
            double sum = 0, size = 0;
            for (int32_t k = 0; k < shape.n_in; ++k) {
              const double each = double{x[static_cast<size_t>(r) * shape.n_in + k]} *
                                  w.values[static_cast<size_t>(j) * shape.n_in + k];
              sum += each;
              size += std::fabs(each);
            }
            sums[static_cast<size_t>(r) * shape.n_out + j] = sum;
            allowed[static_cast<size_t>(r) * shape.n_out + j] =
                size * (fast ? 0x1p-8 : 0x1p-16) + 1e-30;
          }
        }
        problem = beyond(all, sums, allowed);
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
      // On several ranks: the bits of one, or in fast mode nearly so.
      for (const int32_t ranks : {1, 2, 4, 8}) {
        if (shape.segments == 1 || (rig.small && (ranks == 1 || ranks == 4))) continue;
        if (shape.n_in % (ranks * gpu.ops().split_rule(type).grain) != 0) continue;
        for (const int32_t n :
             type == DType::kBF16 ? std::vector{1, 9, 17, 33, 65} : std::vector{9}) {
          if (!problem.empty()) break;
          const auto cells = static_cast<ptrdiff_t>(n) * shape.n_out;
          const std::vector<float> got =
              on_ranks(rig, ranks, type, w.bytes, {x.begin(), x.begin() + n * shape.n_in},
                       shape.n_out, shape.n_in);
          problem = fast ? beyond(got, {sums.begin(), sums.begin() + cells},
                                  {allowed.begin(), allowed.begin() + cells})
                         : difference(got, {all.begin(), all.begin() + cells});
          if (!problem.empty())
            problem = std::to_string(ranks) + " ranks, " + std::to_string(n) + " rows, " + problem;
        }
      }
      rig.report.check(std::string("matmul ") + name_of(type) + " " + std::to_string(shape.n_out) +
                           " x " + std::to_string(shape.n_in) +
                           (fast ? ", fast" : ", strict in rows"),
                       problem.empty(), problem);
      gpu.free_all();
    }
  }
}

}  // namespace specd::kernels
