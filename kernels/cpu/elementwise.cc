// Embedding, maps, and the lane functions for tests.
#include "specd/kernels/elementwise.h"

#include "kernels/cpu/isa.h"
#include "kernels/cpu/math.h"

namespace specd::kernels::SPECD_ISA {
namespace {

template <DType kType>
void widen(const char* from, float* to, int32_t n) {
  constexpr int kBytes = kType == DType::kF32 ? 4 : 2;
  int32_t i = 0;
  for (; i + 16 <= n; i += 16)
    store(to + i, widen16<kType>(from + static_cast<size_t>(i) * kBytes));
  if (i < n) {
    alignas(64) char last[16 * kBytes] = {};
    __builtin_memcpy(last, from + static_cast<size_t>(i) * kBytes,
                     static_cast<size_t>(n - i) * kBytes);
    store_first(to + i, widen16<kType>(last), n - i);
  }
}

void widen(DType type, const char* from, float* to, int32_t n) {
  switch (type) {
    case DType::kF32:
      return widen<DType::kF32>(from, to, n);
    case DType::kF16:
      return widen<DType::kF16>(from, to, n);
    case DType::kBF16:
      return widen<DType::kBF16>(from, to, n);
  }
}

template <MapOp kOp>
SPECD_INLINE F32x16 map16(const F32x16& x, const F32x16& y) {
  if constexpr (kOp == MapOp::kAdd) return add(x, y);
  if constexpr (kOp == MapOp::kMul) return mul(x, y);
  const F32x16 silu = div(x, add(set1(1.0f), exp(sub(set1(0.0f), x))));
  if constexpr (kOp == MapOp::kSiluAdd) return add(silu, y);
  if constexpr (kOp == MapOp::kSiluMul) return mul(silu, y);
  return silu;
}

template <MapOp kOp>
void map_rows(const MapArgs& a, int part, int parts) {
  const int64_t groups = (a.n + 15) / 16;  // per row
  const Share share = share_of(a.n_rows * groups, part, parts);
  int64_t unit = share.begin;
  while (unit < share.end) {
    const int64_t r = unit / groups, first = unit % groups, left = share.end - unit,
                  n = groups - first < left ? groups - first : left;
    const float* const x = a.x + r * a.x_stride;
    const float* const y = kOp == MapOp::kSilu ? x : a.y + r * a.y_stride;
    float* const out = a.out + r * a.out_stride;
    for (int64_t g = first; g < first + n; ++g) {
      const int32_t i = static_cast<int32_t>(g) * 16;
      const int left_of_row = a.n - i;
      store_first(out + i,
                  map16<kOp>(load_first(x + i, left_of_row), load_first(y + i, left_of_row)),
                  left_of_row);
    }
    unit += n;
  }
}

}  // namespace

void embed(const EmbedArgs& a, int part, int parts) {
  const Share share = share_of(a.n_rows, part, parts);
  const size_t row_bytes = static_cast<size_t>(a.n) * bytes_of(a.dtype);
  for (int64_t r = share.begin; r < share.end; ++r) {
    const int32_t token = a.token[r];
    if (token < 0 || token >= a.vocab) {
      for (int32_t i = 0; i < a.n; ++i) a.out[r * a.n + i] = 0;
      continue;
    }
    const char* from = static_cast<const char*>(a.table) + static_cast<size_t>(token) * row_bytes;
    widen(a.dtype, from, a.out + r * a.n, a.n);
  }
}

void map(const MapArgs& a, int part, int parts) {
  switch (a.op) {
    case MapOp::kAdd:
      return map_rows<MapOp::kAdd>(a, part, parts);
    case MapOp::kMul:
      return map_rows<MapOp::kMul>(a, part, parts);
    case MapOp::kSilu:
      return map_rows<MapOp::kSilu>(a, part, parts);
    case MapOp::kSiluAdd:
      return map_rows<MapOp::kSiluAdd>(a, part, parts);
    case MapOp::kSiluMul:
      return map_rows<MapOp::kSiluMul>(a, part, parts);
  }
}

void lanes(const LaneArgs& a, int part, int parts) {
  const Share share = share_of(a.n / 16, part, parts);
  for (int64_t i = share.begin * 16; i < share.end * 16; i += 16) {
    switch (a.function) {
      case LaneArgs::Function::kExp:
        store(static_cast<float*>(a.out) + i, exp(load(static_cast<const float*>(a.in) + i)));
        break;
      case LaneArgs::Function::kLog:
        store(static_cast<float*>(a.out) + i, log(load(static_cast<const float*>(a.in) + i)));
        break;
      case LaneArgs::Function::kWiden:
        widen(a.dtype, static_cast<const char*>(a.in) + i * bytes_of(a.dtype),
              static_cast<float*>(a.out) + i, 16);
        break;
      case LaneArgs::Function::kNarrow:
        if (a.dtype == DType::kF16) {
          narrow16_f16(static_cast<uint16_t*>(a.out) + i,
                       load(static_cast<const float*>(a.in) + i));
        } else {
          narrow16_bf16(static_cast<uint16_t*>(a.out) + i,
                        load(static_cast<const float*>(a.in) + i));
        }
        break;
    }
  }
}

}  // namespace specd::kernels::SPECD_ISA
