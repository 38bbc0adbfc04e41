// Matrices of codes: packing and matmuls have the CPU's bits for any number of rows. Under `numerics: fast` those of
// E4M3FN are compared with float64, and with themselves for other numbers of rows.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/kernel_check/rig.h"
#include "tests/kernels/code_cases.h"

namespace specd::kernels {
namespace {

struct Shape {
  int32_t n_out, n_in, rows;
};

// A finite value rounded to nearest even; others stay.
float bfloat16(float x) {
  if (!std::isfinite(x)) return x;
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u);
}

// A matrix in the form of a file, and packed for both.
class Matrix : public OrderOfCase {
 public:
  Matrix(Rig& rig, const CodeCase& kind, const Shape& shape)
      : OrderOfCase(kind, shape.n_in, g_random), rig_(rig), shape_(shape), on_gpu_(order) {
    const auto n_out = static_cast<size_t>(shape.n_out), n_in = static_cast<size_t>(shape.n_in);
    // Wider than the matrix, as a part of a file is.
    codes_.resize(n_out * (n_in + kBeside));
    for (uint8_t& each : codes_) each = random_code(kind, g_random);
    scale_ = floats(n_out * static_cast<size_t>(order.n_groups), 0.01f);
    zero_.resize(scale_.size());
    for (uint8_t& each : zero_) each = static_cast<uint8_t>(below(1 << kind.bits));
    on_gpu_.runs = rig.gpu.in(runs);
    on_gpu_.source = rig.gpu.in(source);
    gpu_ = {.n_out = shape.n_out, .n_in = shape.n_in, .order = &on_gpu_};
    gpu_.data =
        rig.gpu.in(std::vector<uint8_t>(rig.gpu.ops().packed_code_bytes(order, shape.n_out), 0xff));
    cpu_ = {.n_out = shape.n_out, .n_in = shape.n_in, .order = &order};
    cpu_.data = aligned(rig.cpu.packed_code_bytes(order, shape.n_out));
    pack(rig.cpu, rig.cpu_stream, cpu_);
  }

  // Packs first: nothing but pack() has waited for its kernels.
  std::vector<float> on_gpu(const float* x, int32_t n_rows) {
    const size_t n = size_of(n_rows);
    float* out = rig_.gpu.poisoned(n);
    pack(rig_.gpu.ops(), rig_.gpu.stream(), gpu_);
    rig_.gpu.ops().matmul(rig_.gpu.stream(),
                          {.x = x, .weights = gpu_, .out = out, .n_rows = n_rows});
    return rig_.gpu.out(out, n);
  }
  // Of E4M3FN: compares with float64 of x rounded to bfloat16. The order of additions changes a sum by at most
  // 2^-14 of its terms.
  std::string beyond_fast(std::span<const float> x, std::vector<float> got,
                          const std::vector<float>& strict) const {
    const auto n_in = static_cast<size_t>(shape_.n_in),
               groups = static_cast<size_t>(order.n_groups),
               n_out = static_cast<size_t>(shape_.n_out);
    std::vector<double> sums(got.size()), allowed(got.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t row = i / n_out, j = i % n_out;
      double size = 0;
      for (size_t k = 0; k < n_in; ++k) {
        const double each = double{bfloat16(x[row * n_in + k])} *
                            widen_f8(codes_[j * (n_in + kBeside) + k]) *
                            scale_[j * groups + static_cast<size_t>(group_of[k])];
        sums[i] += each;
        size += std::fabs(each);
      }
      allowed[i] = size * 0x1p-14 + 1e-36;
      // Where strict has an infinity or a NaN, any infinity or NaN will do.
      if (!std::isfinite(got[i]) && !std::isfinite(strict[i]))
        got[i] = 0, sums[i] = 0, allowed[i] = 1;
    }
    return beyond(got, sums, allowed);
  }
  std::vector<float> on_cpu(const std::vector<float>& x, int32_t n_rows) {
    std::vector<float> out(size_of(n_rows), kNan);
    rig_.cpu.matmul(rig_.cpu_stream, {.x = x.data(),
                                      .weights = cpu_,
                                      .out = out.data(),
                                      .n_rows = n_rows,
                                      .scratch = aligned(matmul_scratch_bytes(cpu_, n_rows))});
    return out;
  }

 private:
  static constexpr int32_t kBeside = 5;

  void* aligned(size_t bytes) {
    held_.emplace_back(bytes + 64);
    const auto at = reinterpret_cast<uintptr_t>(held_.back().data());
    return reinterpret_cast<void*>((at + 63) / 64 * 64);
  }
  // In three pieces, which meet within a panel.
  void pack(const Ops& ops, Stream& stream, const PackedMatrix& packed) {
    const int32_t sixth = shape_.n_out / 6, stride = shape_.n_in + kBeside;
    for (const auto& [begin, end] :
         {std::pair{0, sixth}, {sixth, 2 * sixth}, {2 * sixth, shape_.n_out}}) {
      const size_t groups = static_cast<size_t>(begin) * static_cast<size_t>(order.n_groups);
      ops.pack(stream, {.packed = packed,
                        .source = codes_.data() + int64_t{begin} * stride,
                        .source_stride = stride,
                        .n_rows = end - begin,
                        .column_begin = begin,
                        .scale = scale_.data() + groups,
                        .zero = order.has_zeros ? zero_.data() + groups : nullptr});
    }
  }
  size_t size_of(int32_t n_rows) const {
    return static_cast<size_t>(n_rows) * static_cast<size_t>(shape_.n_out);
  }

  Rig& rig_;
  const Shape shape_;
  CodeOrder on_gpu_;
  std::vector<uint8_t> codes_, zero_;
  std::vector<float> scale_;
  std::vector<std::vector<char>> held_;
  PackedMatrix gpu_, cpu_;
};

// By bits, but any NaN is as good as another.
std::string other_than(std::vector<float> got, std::vector<float> expected) {
  for (std::vector<float>* each : {&got, &expected}) {
    for (float& value : *each) value = std::isnan(value) ? kNan : value;
  }
  return difference(got, expected);
}

// Where there are so many: a row of zeros, one of values that are nearly zero, one with a huge value and, with
// `hostile`, two with a value that is no number, and from the ninth on nothing but NaN.
std::vector<float> rows_of(const Shape& shape, bool hostile) {
  const auto n_in = static_cast<size_t>(shape.n_in);
  std::vector<float> x = floats(std::max<size_t>(8, static_cast<size_t>(shape.rows)) * n_in);
  const auto row = [&](size_t r) { return std::span(x).subspan(r * n_in, n_in); };
  for (float& each : row(1)) each = 0;
  for (float& each : row(2)) each = 1e-38f;
  row(4)[n_in / 2] = -1e30f;
  if (hostile) {
    row(5)[n_in / 3] = kNan;
    row(6)[n_in - 1] = std::numeric_limits<float>::infinity();
    std::fill(x.begin() + static_cast<ptrdiff_t>(std::min(x.size(), 8 * n_in)), x.end(), kNan);
  }
  x.resize(static_cast<size_t>(shape.rows) * n_in);
  return x;
}

}  // namespace

void check_codes(Rig& rig, bool fast) {
  // Runs that end within a chunk, and panels that are not full; a run of more k than a block rounds at once; packs in
  // several pieces; more runs than a warp reads at once; rows in several pieces.
  const Shape full[] = {{1, 1, 8}, {33, 100, 33}, {130, 1030, 33}, {160, 4096, 17}, {40, 14336, 9}};
  const Shape reduced[] = {{1, 1, 8},    {33, 100, 33}, {3, 4500, 2},  {800, 520, 1},
                           {9, 1430, 5}, {9, 1040, 66}, {3, 1040, 130}};
  for (const Shape& shape : rig.small ? std::span<const Shape>(reduced) : full) {
    for (const CodeCase& kind : kCodeCases) {
      if (fast && kind.x_bits != 32) continue;
      Matrix w(rig, kind, shape);
      std::string problem;
      for (const bool hostile : {false, true}) {
        const std::vector<float> x = rows_of(shape, hostile);
        const float* x_gpu = rig.gpu.in(x);
        std::vector<float> all = w.on_cpu(x, shape.rows);
        if (fast) {
          std::vector<float> got = w.on_gpu(x_gpu, shape.rows);
          if (problem.empty()) problem = w.beyond_fast(x, got, all);
          all = std::move(got);
        }
        std::vector<int32_t> counts = {shape.rows};
        if (shape.rows <= 33) counts = {1, 2, 3, 5, 8, 12, 16, 33};
        if (hostile) counts = {8};
        for (const int32_t n : counts) {
          if (!problem.empty() || n > shape.rows) continue;
          const int32_t first = hostile ? 0 : below(shape.rows - n + 1);
          const auto begin = all.begin() + static_cast<ptrdiff_t>(first) * shape.n_out;
          problem = other_than(w.on_gpu(x_gpu + int64_t{first} * shape.n_in, n),
                               {begin, begin + static_cast<ptrdiff_t>(n) * shape.n_out});
          if (!problem.empty())
            problem = std::to_string(n) + " rows from " + std::to_string(first) + ", " + problem;
        }
      }
      rig.report.check(std::string("codes ") + kind.name + " " + std::to_string(shape.n_out) +
                           " x " + std::to_string(shape.n_in) + (fast ? ", fast" : ""),
                       problem.empty(), problem);
      rig.gpu.free_all();
    }
  }
}

}  // namespace specd::kernels
