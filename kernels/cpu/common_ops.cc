// Ops that only copy, and the rotary table: the same code for every instruction set.
#include <cmath>
#include <cstring>

#include "kernels/cpu/isa.h"

namespace specd::kernels {

void rope_table_part(const RopeTableArgs& a, int part, int parts) {
  const int32_t half = a.head_dim / 2;
  const Share share = share_of(a.n_rows, part, parts);
  for (int64_t r = share.begin; r < share.end; ++r) {
    float* row = a.cos_sin + r * a.head_dim;
    for (int32_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(a.position[r]) * a.inv_freq[i];
      row[i] = std::cos(angle);
      row[half + i] = std::sin(angle);
    }
  }
}

void gather_rows_part(const GatherRowsArgs& a, int part, int parts) {
  const Share share = share_of(a.n_rows, part, parts);
  for (int64_t r = share.begin; r < share.end; ++r) {
    std::memcpy(a.out + r * a.n, a.x + static_cast<int64_t>(a.row[r]) * a.n,
                sizeof(float) * static_cast<size_t>(a.n));
  }
}

// Split by kv head: the moves of one head stay in order.
void kv_move_part(const KvMoveArgs& a, int part, int parts) {
  const size_t bytes = dtype_bytes(a.kv.dtype);
  const size_t d_head = static_cast<size_t>(a.kv.head_dim);
  const size_t slab = d_head * kPageTokens * bytes;
  const size_t stride = a.kv.page_stride * bytes;
  const Share share = share_of(a.kv.n_kv_heads, part, parts);
  for (int32_t i = 0; i < a.n; ++i) {
    if (a.from[i] == a.to[i]) continue;
    const size_t from_page = static_cast<size_t>(a.from[i] / kPageTokens) * stride;
    const size_t to_page = static_cast<size_t>(a.to[i] / kPageTokens) * stride;
    const size_t from_offset = static_cast<size_t>(a.from[i] % kPageTokens);
    const size_t to_offset = static_cast<size_t>(a.to[i] % kPageTokens);
    for (size_t g = static_cast<size_t>(share.begin); g < static_cast<size_t>(share.end); ++g) {
      const char* k_from = static_cast<const char*>(a.kv.k) + from_page + g * slab;
      char* k_to = static_cast<char*>(a.kv.k) + to_page + g * slab;
      for (size_t d = 0; d < d_head; ++d) {
        std::memcpy(k_to + (d * kPageTokens + to_offset) * bytes,
                    k_from + (d * kPageTokens + from_offset) * bytes, bytes);
      }
      std::memcpy(
          static_cast<char*>(a.kv.v) + to_page + g * slab + to_offset * d_head * bytes,
          static_cast<const char*>(a.kv.v) + from_page + g * slab + from_offset * d_head * bytes,
          d_head * bytes);
    }
  }
}

}  // namespace specd::kernels
