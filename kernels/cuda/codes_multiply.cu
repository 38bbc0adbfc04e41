// The matmul of codes, with the CPU's bits: sums of integers are exact in any order, and chains of floats keep the
// order of codes.h.
//
// A lane has one column of a panel of 32 and takes 16 bytes of it at a time, a chunk, which all rows of its block
// use: up to 8, and with more the next blocks read the same weights. The warps of a block take turns with the runs.
// What they get meets in shared memory, where a warp adds the runs of a row in order.
#include <algorithm>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ptx.cuh"

namespace specd::kernels::cuda {
namespace {

constexpr int kWarpsMax = 8;  // of a block
constexpr int kRowsMax = 8;   // likewise

// ---- the arithmetic of a chunk -------------------------------------------------------------------

// A chunk begins and ends at multiples of kRunGrain k: units. Those that a run has of it:
struct Units {
  int begin, end;
  __device__ bool has(int unit) const { return unit >= begin && unit < end; }
};

// Codes of kBits by x rounded to kXBits.
template <int kBits, int kXBits>
struct Integers {
  static constexpr bool kRounds = true;
  static constexpr bool kIsCut = kXBits == 8;  // the one run is shared by the warps
  static constexpr int kChunk = chunk_of(kBits);
  static constexpr int kParts = kXBits / 8;
  static constexpr int kXPieces = kParts * kChunk / 16;  // of 16 bytes, of x of a row for a chunk
  static constexpr int kZero = 1 << (kBits - 1);
  static constexpr int stages(int) { return 8; }
  struct Codes {
    uint32_t four[kChunk / 4];  // along k
  };
  struct Sum {
    int32_t part[kParts];
  };

  static __device__ Codes widen(const uint4& packed) {
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
    Codes codes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kBits == 8) {
        codes.four[i] = words[i];
      } else {
        codes.four[2 * i] = words[i] & 0x0f0f0f0fu;
        codes.four[2 * i + 1] = words[i] >> 4 & 0x0f0f0f0fu;
      }
    }
    return codes;
  }
  // x: [kRows][kXPieces]
  template <int kRows>
  static __device__ void add(Sum (&sums)[kRows], Codes codes, const uint4* x, const Units& units) {
    if (units.begin > 0 || units.end < kChunk / kRunGrain) {
#pragma unroll
      for (int i = 0; i < kChunk / 4; ++i) codes.four[i] = units.has(i / 2) ? codes.four[i] : 0;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int p = 0; p < kXPieces; ++p) {
        const uint4 piece = x[r * kXPieces + p];
        const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int part = p * 4 / (kChunk / 4), four = (p * 4 + i) % (kChunk / 4);
          sums[r].part[part] = add_products(sums[r].part[part], codes.four[four], words[i]);
        }
      }
    }
  }
  static __device__ int32_t total(const Sum& sum) {
    if constexpr (kParts == 1) return sum.part[0];
    // Without signs: the parts may leave 32 bits, what they come to does not.
    return static_cast<int32_t>((static_cast<uint32_t>(sum.part[0]) << 8) +
                                static_cast<uint32_t>(sum.part[kParts - 1]));
  }
  static __device__ float exact(int32_t total, int32_t zero, int32_t x_sum) {
    return __int2float_rn(static_cast<int32_t>(
        static_cast<uint32_t>(total) - static_cast<uint32_t>(zero) * static_cast<uint32_t>(x_sum)));
  }
};

// Codes that are E4M3FN by x in float32.
struct Float8 {
  static constexpr bool kRounds = false, kIsCut = false;
  static constexpr int kChunk = chunk_of(8);
  static constexpr int kXPieces = kChunk / 4;
  // A chain waits for itself, so one warp may be all that reads a panel.
  static constexpr int stages(int rows) { return rows <= 2 ? 16 : 8; }
  struct Codes {
    float value[kChunk];  // / 256
  };
  struct Sum {
    float chain;
  };

  // The seven bits of exponent and mantissa, moved to those of a float16, are the value / 256.
  static __device__ Codes widen(const uint4& packed) {
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
    Codes codes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t even = (words[i] << 8 & 0x80008000u) | (words[i] << 7 & 0x3f803f80u),
                     odd = (words[i] & 0x80008000u) | (words[i] >> 1 & 0x3f803f80u);
      const auto half = [](uint32_t bits) {
        return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
      };
      codes.value[4 * i] = half(even & 0xffffu);
      codes.value[4 * i + 1] = half(odd & 0xffffu);
      codes.value[4 * i + 2] = half(even >> 16);
      codes.value[4 * i + 3] = half(odd >> 16);
    }
    return codes;
  }
  template <int kRows>
  static __device__ void add(Sum (&sums)[kRows], const Codes& codes, const uint4* x,
                             const Units& units) {
    constexpr int kPieces = kRunGrain / 4;
#pragma unroll
    for (int u = 0; u < kChunk / kRunGrain; ++u) {
      if (!units.has(u)) continue;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int p = u * kPieces; p < (u + 1) * kPieces; ++p) {
          const uint4 piece = x[r * kXPieces + p];
          const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sums[r].chain =
                __fmaf_rn(__uint_as_float(words[i]), codes.value[4 * p + i], sums[r].chain);
          }
        }
      }
    }
  }
};

// ---- the matmul ----------------------------------------------------------------------------------

// What a warp computes before it takes the next: a run, or of the only run its share.
struct Piece {
  int32_t begin, end;  // k
  int32_t group;
};

// The pieces of a warp, every step-th run from its own on. Each lane holds one of the next 32, so that one read
// serves all of them. Used by whole warps.
class Pieces {
 public:
  __device__ Pieces(const MultiplyArgs& a, int first, int step, int lane)
      : runs_(a.runs), n_(a.n_runs), next_(first + lane * step), step_(step) {
    read();
  }
  __device__ Piece take() {
    if (taken_ == kWarp) read();
    const auto of_lane = [&](int32_t value) { return __shfl_sync(0xffffffffu, value, taken_); };
    const Piece piece = {of_lane(held_.begin), of_lane(held_.end), of_lane(held_.group)};
    ++taken_;
    return piece;
  }

 private:
  __device__ void read() {
    const int32_t at = min(next_, n_ - 1);
    const Run run = runs_[at];
    held_ = {run.begin, run.begin + run.n, run.group};
    next_ = at + kWarp * step_;
    taken_ = 0;
  }
  const Run* runs_;
  int32_t n_, next_, step_;
  int taken_ = 0;
  Piece held_;
};

// In shared memory: for each warp a ring of stages, each with a chunk of the weights, of 32 lanes, and of x; then
// what pieces got, [piece][row][lane]; and the totals so far, [row][lane].
template <typename Form, int kRows>
struct Shared {
  static constexpr int kStages = Form::stages(kRows);
  static constexpr int kX = kRows * Form::kXPieces;
  static constexpr int kStage = kWarp + kX;        // of 16 bytes
  static constexpr int kTurns = kRowsMax / kRows;  // pieces of a warp, before all meet
  static_assert(kX <= kWarp, "a lane copies at most once of x");
  static constexpr size_t bytes(int warps) {
    const auto pieces = static_cast<size_t>(warps * kTurns);
    return static_cast<size_t>(warps * kStages * kStage) * sizeof(uint4) +
           kRows * kWarp * (pieces * sizeof(uint2) + sizeof(float));
  }
};

// grid: (groups of kRows rows, panels), so that neighbors read the same weights. A block has as many warps as
// there are pieces, up to kWarpsMax.
template <typename Form, int kRows>
__global__ void __launch_bounds__(kWarpsMax* kWarp, 2) multiply(MultiplyArgs a) {
  using Room = Shared<Form, kRows>;
  constexpr int kStages = Room::kStages, kStage = Room::kStage, kChunk = Form::kChunk;
  extern __shared__ uint4 ring[];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp, together = warps * Room::kTurns;
  auto* const got = reinterpret_cast<uint2*>(ring + warps * kStages * kStage);
  auto* const totals = reinterpret_cast<float*>(got + together * kRows * kWarp);
  const int64_t panel = blockIdx.y;
  const int32_t first_row = static_cast<int32_t>(blockIdx.x) * kRows, chunks = a.weights.chunks;
  const int32_t n_pieces = Form::kIsCut ? warps : a.n_runs;
  // Rows beyond the last are the last again, and are not stored.
  const auto row_at = [&](int r) { return int64_t{min(first_row + r, a.n_rows - 1)}; };

  Pieces to_copy(a, Form::kIsCut ? 0 : warp, Form::kIsCut ? 0 : warps, lane), mine = to_copy;
  const auto take = [&](Pieces& from) {
    Piece piece = from.take();
    if constexpr (Form::kIsCut) {
      // The codes behind the end are 0.
      piece.begin = static_cast<int32_t>(int64_t{chunks} * warp / warps) * kChunk;
      piece.end = static_cast<int32_t>(int64_t{chunks} * (warp + 1) / warps) * kChunk;
    }
    return piece;
  };

  // The next chunk to copy.
  struct Ahead {
    Piece piece;
    int32_t chunk, left;  // left: pieces with this one; 0: nothing
  };
  const auto begin_at = [&](Piece piece, int32_t left) {
    return Ahead{piece, piece.begin / kChunk, left};
  };
  const auto advance = [&](Ahead& at, Pieces& from) {
    if (at.left == 0 || ++at.chunk * kChunk < at.piece.end) return;
    if (--at.left > 0) at = begin_at(take(from), at.left);
  };
  const uint4* const weights = a.weights.codes + panel * chunks * kWarp + lane;
  const uint4* const x =
      a.x + row_at(lane / Form::kXPieces) * chunks * Form::kXPieces + lane % Form::kXPieces;
  const uint4* const own_ring = ring + warp * kStages * kStage;
  const SharedAt to = shared_at(ring + warp * kStages * kStage + lane);
  const auto copy_weights = [&](int stage, const Ahead& at) {
    copy_async(to + stage * kStage * kCopyBytes, weights + int64_t{at.chunk} * kWarp, at.left > 0);
  };
  const auto copy_x = [&](int stage, const Ahead& at) {
    copy_async(to + (stage * kStage + kWarp) * kCopyBytes, x + int64_t{at.chunk} * Form::kXPieces,
               at.left > 0 && lane < Room::kX);
  };
  const Ahead first = begin_at(take(to_copy), (n_pieces - warp + warps - 1) / warps);
  let_next_start();
  {
    Ahead at = first;
    Pieces from = to_copy;
#pragma unroll 1
    for (int i = 0; i + 1 < kStages; ++i, advance(at, from)) copy_weights(i, at);
  }
  wait_for_previous();  // which wrote x
  Ahead ahead = first;
#pragma unroll 1
  for (int i = 0; i + 1 < kStages; ++i, advance(ahead, to_copy)) {
    copy_x(i, ahead);
    commit_copies();
  }

  int stage = 0;
#pragma unroll 1
  for (int32_t done = 0; done < n_pieces; done += together) {
    const int n = min(n_pieces - done, together);
#pragma unroll 1
    for (int p = warp; p < n; p += warps) {
      const Piece piece = take(mine);
      // Read now, used at the end.
      const int64_t of_group = (panel * a.weights.groups + piece.group) * kWarp + lane;
      const float scale = a.weights.scale[of_group];
      int32_t zero = 0;
      OfRun of_run = {};  // of row `lane`
      if constexpr (Form::kRounds && !Form::kIsCut) {
        zero = a.weights.zero == nullptr ? Form::kZero : int32_t{a.weights.zero[of_group]};
        of_run = a.of_run[row_at(lane % kRows) * a.n_runs + done + p];
      }
      typename Form::Sum sums[kRows] = {};
#pragma unroll 1
      for (int32_t k = piece.begin / kChunk * kChunk; k < piece.end; k += kChunk) {
        wait_for_groups<kStages - 2>();
        __syncwarp();  // all have what was copied, and have read the stage before
        const int free = stage == 0 ? kStages - 1 : stage - 1;
        copy_weights(free, ahead);
        copy_x(free, ahead);
        commit_copies();
        advance(ahead, to_copy);
        const uint4* const at = own_ring + stage * kStage;
        stage = stage + 1 == kStages ? 0 : stage + 1;
        Form::template add<kRows>(
            sums, Form::widen(at[lane]), at + kWarp,
            Units{(piece.begin - k) / kRunGrain, (piece.end - k) / kRunGrain});
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        uint2& at = got[(p * kRows + r) * kWarp + lane];
        if constexpr (Form::kIsCut) {
          at.x = static_cast<uint32_t>(Form::total(sums[r]));
        } else if constexpr (Form::kRounds) {
          const auto of_row = [&](auto value) { return __shfl_sync(0xffffffffu, value, r); };
          at.x = __float_as_uint(Form::exact(Form::total(sums[r]), zero, of_row(of_run.sum)));
          at.y = __float_as_uint(__fmul_rn(of_row(of_run.scale), scale));
        } else {
          at.x = __float_as_uint(sums[r].chain);
          at.y = __float_as_uint(scale);
        }
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int r = warp; r < kRows; r += warps) {
      const uint2* const each = got + r * kWarp + lane;
      float total = 0;
      if constexpr (Form::kIsCut) {
        uint32_t sum = 0;
        for (int p = 0; p < n; ++p) sum += each[p * kRows * kWarp].x;
        const int64_t of_group = panel * kWarp + lane;
        const int32_t zero =
            a.weights.zero == nullptr ? Form::kZero : int32_t{a.weights.zero[of_group]};
        const OfRun of_run = a.of_run[row_at(r)];
        total = __fmaf_rn(Form::exact(static_cast<int32_t>(sum), zero, of_run.sum),
                          __fmul_rn(of_run.scale, a.weights.scale[of_group]), 0.0f);
      } else {
        float& before = totals[r * kWarp + lane];
        if (done > 0) total = before;
        for (int p = 0; p < n; ++p) {
          const uint2 of_piece = each[p * kRows * kWarp];
          total = __fmaf_rn(__uint_as_float(of_piece.x), __uint_as_float(of_piece.y), total);
        }
        before = total;
      }
      const int64_t column = panel * kWarp + lane, row = first_row + r;
      if (done + n == n_pieces && row < a.n_rows && column < a.n_out)
        a.out[row * a.n_out + column] = total;
    }
    __syncthreads();  // before the next pieces take the place of these
  }
}

// ---- launches ------------------------------------------------------------------------------------

// fn.template operator()<Form>(), by the bits of codes and of x.
template <typename Fn>
void with_form(int32_t bits, int32_t x_bits, const Fn& fn) {
  if (x_bits == 32) return fn.template operator()<Float8>();
  if (x_bits == 16) {
    return bits == 8 ? fn.template operator()<Integers<8, 16>>()
                     : fn.template operator()<Integers<4, 16>>();
  }
  bits == 8 ? fn.template operator()<Integers<8, 8>>() : fn.template operator()<Integers<4, 8>>();
}

template <typename Form, int kRows>
void launch_multiply(CudaStream& stream, const MultiplyArgs& a) {
  const dim3 grid(blocks_for(a.n_rows, kRows), blocks_for(a.n_out, kWarp));
  const int warps = std::min(Form::kIsCut ? a.weights.chunks : a.n_runs, kWarpsMax);
  const size_t bytes =
      std::max(Shared<Form, kRows>::bytes(warps), even_share(stream, grid.x * grid.y));
  launch_early(stream, grid, warps * kWarp, bytes, multiply<Form, kRows>, a);
}

}  // namespace

cudaError_t open_codes(int32_t shared_bytes_max) {
  cudaError_t error = cudaSuccess;
  const auto allow = [&](auto* kernel) {
    if (error != cudaSuccess) return;
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes_max);
  };
  for (const int32_t bits : {4, 8}) {
    for (const int32_t x_bits : {8, 16, 32}) {
      with_form(bits, x_bits, [&]<typename Form>() {
        allow(multiply<Form, 1>);
        allow(multiply<Form, 2>);
        allow(multiply<Form, 4>);
        allow(multiply<Form, 8>);
      });
    }
  }
  return error;
}

void multiply_codes(CudaStream& stream, int32_t bits, int32_t x_bits, const MultiplyArgs& a) {
  with_form(bits, x_bits, [&]<typename Form>() {
    if (a.n_rows == 1) return launch_multiply<Form, 1>(stream, a);
    if (a.n_rows == 2) return launch_multiply<Form, 2>(stream, a);
    if (a.n_rows <= 4) return launch_multiply<Form, 4>(stream, a);
    launch_multiply<Form, 8>(stream, a);
  });
}

}  // namespace specd::kernels::cuda
