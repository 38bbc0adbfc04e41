// Matrices of codes: packing them, and x in the packed order, rounded. codes_multiply.cu multiplies, with the CPU's
// bits; codes_fast.cu multiplies E4M3FN under `numerics: fast`.
#include <algorithm>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/ptx.cuh"

namespace specd::kernels::cuda {
namespace {

int32_t chunks_of(const CodeOrder& order) {
  const int chunk = chunk_of(order.bits);
  return (order.depth + chunk - 1) / chunk;
}

// ---- the packed matrix ---------------------------------------------------------------------------

int64_t padded_columns(int32_t n_out) { return (int64_t{n_out} + kWarp - 1) / kWarp * kWarp; }
CodePanels panels_in(const PackedMatrix& m) {
  const CodeOrder& order = *m.order;
  CodePanels p{.codes = static_cast<uint4*>(m.data),
               .scale = nullptr,
               .zero = nullptr,
               .chunks = chunks_of(order),
               .groups = order.n_groups};
  p.scale = reinterpret_cast<float*>(p.codes + padded_columns(m.n_out) * p.chunks);
  if (order.has_zeros) {
    p.zero = reinterpret_cast<uint8_t*>(p.scale + padded_columns(m.n_out) * p.groups);
  }
  return p;
}

// source: [n_rows][n_in], a byte for each code. A thread makes 4 bytes.
__global__ void pack_words(CodePanels to, const uint8_t* source, const int32_t* source_k,
                           int32_t depth, int32_t bits, int32_t n_rows, int32_t n_in,
                           int32_t column_begin) {
  const int64_t words = int64_t{to.chunks} * 4;
  const int64_t unit = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (unit >= n_rows * words) return;
  const int64_t row = unit / words, word = unit % words, column = column_begin + row;
  const auto code = [&](int64_t k) {
    const int32_t at = k < depth ? source_k[k] : -1;
    return at < 0 ? 0u : uint32_t{source[row * n_in + at]};
  };
  uint32_t made = 0;
  for (int i = 0; i < 4; ++i) {
    made |= (bits == 8 ? code(word * 4 + i) : code(word * 8 + i) | code(word * 8 + 4 + i) << 4)
            << 8 * i;
  }
  const int64_t lane = (column / kWarp * to.chunks + word / 4) * kWarp + column % kWarp;
  reinterpret_cast<uint32_t*>(to.codes)[lane * 4 + word % 4] = made;
}

// scale, zero: [n_rows][groups]
__global__ void pack_scales(CodePanels to, const float* scale, const uint8_t* zero, float factor,
                            int32_t n_rows, int32_t column_begin) {
  const int64_t unit = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (unit >= int64_t{n_rows} * to.groups) return;
  const int64_t column = column_begin + unit / to.groups;
  const int64_t at = (column / kWarp * to.groups + unit % to.groups) * kWarp + column % kWarp;
  to.scale[at] = __fmul_rn(scale[unit], factor);
  if (to.zero != nullptr) to.zero[at] = zero[unit];
}

// ---- x -------------------------------------------------------------------------------------------

// x as the matmul reads it, in the scratch memory. Rows of [chunk]: bytes, or the upper and then the lower bytes
// of 16 bits, or float32, or bfloat16.
struct Rows {
  char* data;
  OfRun* of_run;  // [n_rows][n_runs]; of integers
  int32_t n_rows;
  int64_t row_bytes;  // of data
};
struct RoundArgs {
  const float* x;
  Rows to;
  const Run* runs;
  const int32_t* source;
  float x_scale;
  int32_t n_in, n_runs, depth, chunk;
};

// Threads of a block, and of those the ones that round a run together. With 8 bits a row is one run.
template <int kXBits>
constexpr int kRoundThreads = kXBits == 8 ? 1024 : 256;
template <int kXBits>
constexpr int kRoundTeam = kXBits == 8 ? 1024 : kWarp;

// join() of the values of all threads of a team, for each of them.
template <int kTeam, typename Join>
__device__ inline int32_t of_team(int32_t value, const Join& join) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    value = join(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  }
  if constexpr (kTeam > kWarp) {
    __shared__ int32_t of_warp[kTeam / kWarp];
    __syncthreads();  // all have read the one before
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = of_warp[0];
    for (int w = 1; w < kTeam / kWarp; ++w) value = join(value, of_warp[w]);
  }
  return value;
}

// A team rounds a run of a row, a thread 4 k at a time.
template <int kXBits>
__global__ void __launch_bounds__(kRoundThreads<kXBits>) round_runs(RoundArgs a) {
  constexpr int kTeam = kRoundTeam<kXBits>;
  let_next_start();
  wait_for_previous();
  constexpr float kLimit = kXBits == 8 ? 127.0f : 127.0f * 256.0f;
  const int64_t unit = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kTeam;
  if (unit >= int64_t{a.to.n_rows} * a.n_runs) return;
  const int64_t row = unit / a.n_runs;
  const Run run = a.runs[unit % a.n_runs];
  const float* const x = a.x + row * a.n_in;
  const int32_t begin = threadIdx.x % kTeam * 4;
  const auto value_at = [&](int32_t k) {
    const int32_t at = a.source[run.begin + k];
    return at < 0 ? 0.0f : x[at];
  };
  int32_t largest = 0;  // as bits, which order magnitudes and put infinities and NaNs last
  for (int32_t k = begin; k < run.n; k += 4 * kTeam) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      largest = max(largest, __float_as_int(value_at(k + i)) & 0x7fffffff);
  }
  largest = of_team<kTeam>(largest, [](int32_t left, int32_t right) { return max(left, right); });
  const float m = __int_as_float(largest);
  const bool is_finite = largest < 0x7f800000, is_fixed = kXBits == 8 && a.x_scale > 0,
             is_zero = !is_fixed && m < 0x1p-100f;
  const float inverse = is_finite && !is_zero ? __fdiv_rn(kLimit, m) : 0.0f;
  int32_t sum = 0;
  for (int32_t k = begin; k < run.n; k += 4 * kTeam) {
    uint32_t upper = 0, lower = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = is_finite ? value_at(k + i) : 0.0f;
      float scaled = __fmul_rn(value, inverse);
      if (is_fixed) {
        scaled = __fdiv_rn(value, a.x_scale);
        scaled = scaled < -128.0f ? -128.0f : scaled > 127.0f ? 127.0f : scaled;
      }
      // Adding 1.5 * 2^23 rounds to nearest even; the lower bits are the integer.
      const int32_t q = __float_as_int(__fadd_rn(scaled, 0x1.8p23f)) - __float_as_int(0x1.8p23f);
      sum += q;
      const int32_t rest = static_cast<int8_t>(static_cast<uint8_t>(q));
      lower |= (static_cast<uint32_t>(rest) & 255u) << 8 * i;
      upper |= (static_cast<uint32_t>((q - rest) / 256) & 255u) << 8 * i;
    }
    const int32_t at = run.begin + k;
    char* const to = a.to.data + row * a.to.row_bytes +
                     int64_t{at / a.chunk} * (a.chunk * kXBits / 8) + at % a.chunk;
    if constexpr (kXBits == 16) {
      *reinterpret_cast<uint32_t*>(to) = upper;
      *reinterpret_cast<uint32_t*>(to + a.chunk) = lower;
    } else {
      *reinterpret_cast<uint32_t*>(to) = lower;
    }
  }
  sum = of_team<kTeam>(sum, [](int32_t left, int32_t right) { return left + right; });
  if (begin != 0) return;
  const float own = is_zero ? 0.0f : is_fixed ? a.x_scale : __fdiv_rn(m, kLimit);
  a.to.of_run[unit] = {is_finite ? own : __uint_as_float(0x7fc00000u), sum};
}

// How many k of a row gather_rows() writes: multiply_codes_fast() reads whole chunks.
__host__ __device__ inline int32_t gathered(const RoundArgs& a, bool fast) {
  return fast ? (a.depth + a.chunk - 1) / a.chunk * a.chunk : a.depth;
}
// Puts x in the packed order for codes that are floats, as it is, or as the bfloat16 that multiply_codes_fast() reads.
// A thread has 4 k.
template <bool kFast>
__global__ void gather_rows(RoundArgs a) {
  let_next_start();
  wait_for_previous();
  const int64_t units = gathered(a, kFast) / 4;
  const int64_t unit = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (unit >= a.to.n_rows * units) return;
  const int64_t row = unit / units, k = unit % units * 4;
  const auto value = [&](int i) {
    const int32_t at = k < a.depth ? a.source[k + i] : -1;
    return at < 0 ? 0.0f : a.x[row * a.n_in + at];
  };
  char* const to = a.to.data + row * a.to.row_bytes;
  if constexpr (kFast) {
    *reinterpret_cast<uint2*>(to + k * 2) =
        make_uint2(bfloat16_pair(value(0), value(2)), bfloat16_pair(value(1), value(3)));
  } else {
    *reinterpret_cast<float4*>(to + k * 4) = make_float4(value(0), value(1), value(2), value(3));
  }
}

void round_x(CudaStream& stream, const RoundArgs& a, int32_t x_bits, bool fast) {
  if (x_bits == 32) {
    return launch_early(stream, blocks_for(int64_t{a.to.n_rows} * (gathered(a, fast) / 4), 256),
                        256, 0, fast ? gather_rows<true> : gather_rows<false>, a);
  }
  const int64_t runs = int64_t{a.to.n_rows} * a.n_runs;
  const auto launch = [&]<int kXBits>() {
    launch_early(stream, blocks_for(runs, kRoundThreads<kXBits> / kRoundTeam<kXBits>),
                 kRoundThreads<kXBits>, 0, round_runs<kXBits>, a);
  };
  x_bits == 8 ? launch.template operator()<8>() : launch.template operator()<16>();
}

}  // namespace

size_t packed_code_bytes(const CodeOrder& order, int32_t n_out) {
  const size_t of_column = static_cast<size_t>(chunks_of(order)) * sizeof(uint4) +
                           static_cast<size_t>(order.n_groups) * (order.has_zeros ? 5 : 4);
  return static_cast<size_t>(padded_columns(n_out)) * of_column;
}

void pack_codes(CudaStream& stream, const PackArgs& a) {
  const CodeOrder& order = *a.packed.order;
  const CodePanels to = panels_in(a.packed);
  const auto groups = static_cast<uint64_t>(order.n_groups),
             n_in = static_cast<uint64_t>(a.packed.n_in);
  const uint64_t stride = a.source_stride == 0 ? n_in : static_cast<uint64_t>(a.source_stride);
  if (a.n_rows == 0) return;
  // The scales, then the codes, then the zeros of some rows at a time.
  const auto rows_at_once = static_cast<int32_t>(std::min<uint64_t>(
      stream.scratch_bytes / (groups * 5 + n_in), static_cast<uint64_t>(a.n_rows)));
  if (rows_at_once == 0) return stream.note(cudaErrorMemoryAllocation);
  for (int32_t done = 0; done < a.n_rows; done += rows_at_once) {
    const int32_t n = std::min(rows_at_once, a.n_rows - done);
    const uint64_t rows = static_cast<uint64_t>(n), first = static_cast<uint64_t>(done);
    auto* const scale = reinterpret_cast<float*>(stream.scratch);
    auto* const codes = reinterpret_cast<uint8_t*>(scale + rows * groups);
    uint8_t* const zero = codes + rows * n_in;
    copy_in(stream, scale, a.scale + first * groups, rows * groups * sizeof(float));
    copy_rows_in(stream, codes, static_cast<const uint8_t*>(a.source) + first * stride, n_in,
                 stride, n);
    if (order.has_zeros) copy_in(stream, zero, a.zero + first * groups, rows * groups);
    const int32_t column = a.column_begin + done;
    pack_words<<<blocks_for(int64_t{n} * to.chunks * 4, 256), 256, 0, stream.handle>>>(
        to, codes, order.source, order.depth, order.bits, n, a.packed.n_in, column);
    stream.note(cudaGetLastError());
    pack_scales<<<blocks_for(int64_t{n} * to.groups, 256), 256, 0, stream.handle>>>(
        to, scale, zero, order.x_bits == 32 ? 256.0f : 1.0f, n, column);
    stream.note(cudaGetLastError());
  }
  stream.note(cudaStreamSynchronize(stream.handle));  // matmuls read weights before they wait
}

void matmul_codes(CudaStream& stream, const MatmulArgs& a) {
  const CodeOrder& order = *a.weights.order;
  const int32_t n_in = a.weights.n_in, n_out = a.weights.n_out, chunks = chunks_of(order);
  const int32_t chunk = chunk_of(order.bits);
  const bool fast = stream.fast != nullptr && order.x_bits == 32;
  const int64_t row_bytes = int64_t{chunks} * chunk * (fast ? 16 : order.x_bits) / 8;
  const uint64_t row_scratch =
      static_cast<uint64_t>(row_bytes) +
      (order.x_bits == 32 ? 0 : static_cast<uint64_t>(order.n_runs) * sizeof(OfRun));
  const auto rows_at_once = static_cast<int32_t>(
      std::min<uint64_t>(stream.scratch_bytes / row_scratch, static_cast<uint64_t>(a.n_rows)));
  if (rows_at_once == 0) return stream.note(cudaErrorMemoryAllocation);
  for (int32_t done = 0; done < a.n_rows; done += rows_at_once) {
    const int32_t n = std::min(rows_at_once, a.n_rows - done);
    const Rows rows{.data = stream.scratch,
                    .of_run = reinterpret_cast<OfRun*>(stream.scratch + n * row_bytes),
                    .n_rows = n,
                    .row_bytes = row_bytes};
    round_x(stream,
            {.x = a.x + int64_t{done} * n_in,
             .to = rows,
             .runs = order.runs,
             .source = order.source,
             .x_scale = order.x_scale,
             .n_in = n_in,
             .n_runs = order.n_runs,
             .depth = order.depth,
             .chunk = chunk},
            order.x_bits, fast);
    const MultiplyArgs m{.weights = panels_in(a.weights),
                         .x = reinterpret_cast<const uint4*>(rows.data),
                         .of_run = rows.of_run,
                         .runs = order.runs,
                         .out = a.out + int64_t{done} * n_out,
                         .n_out = n_out,
                         .n_rows = n,
                         .n_runs = order.n_runs};
    if (fast) {
      multiply_codes_fast(stream, m);
    } else {
      multiply_codes(stream, order.bits, order.x_bits, m);
    }
  }
}

}  // namespace specd::kernels::cuda
