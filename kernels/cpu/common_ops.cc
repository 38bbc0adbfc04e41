// Copy ops, the rotary table and ops that read logits in float64: one implementation for every
// instruction set.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/isa.h"

namespace specd::kernels {

void rope_table_part(const RopeTableArgs& a, int part, int parts) {
  const int32_t half = a.head_dim / 2;
  const Share share = share_of(a.n_rows, part, parts);
  for (int64_t r = share.begin; r < share.end; ++r) {
    float* row = a.cos_sin + r * a.head_dim;
    for (int32_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(a.position[r]) * a.inv_freq[i];
      row[i] = std::cos(angle) * a.scale;
      row[half + i] = std::sin(angle) * a.scale;
    }
  }
}

void add_segments_part(const AddSegmentsArgs& a, int part, int parts) {
  const int64_t n = int64_t{a.n_rows} * a.n;
  const Share share = share_of(n, part, parts);
  for (int64_t i = share.begin; i < share.end; ++i) {
    float sum = a.parts[i];
    for (int32_t p = 1; p < a.n_parts; ++p) sum = sum + a.parts[p * n + i];
    a.out[i] = sum;
  }
}

void copy_rows_part(const CopyRowsArgs& a, int part, int parts) {
  const Share share = share_of(a.n_rows, part, parts);
  for (int64_t i = share.begin; i < share.end; ++i) {
    const int64_t from = a.from_row == nullptr ? i : a.from_row[i];
    const int64_t to = a.to_row == nullptr ? i : a.to_row[i];
    if (from < 0 || from >= a.from_rows || to < 0 || to >= a.to_rows) continue;
    std::memcpy(static_cast<int32_t*>(a.to) + to * a.to_stride,
                static_cast<const int32_t*>(a.from) + from * a.from_stride,
                sizeof(int32_t) * static_cast<size_t>(a.n));
  }
}

// Split by kv head, so that the moves of one head stay in order.
void kv_move_part(const KvMoveArgs& a, int part, int parts) {
  const size_t bytes = kv_dtype_bytes(a.kv.dtype);
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
      if (a.kv.dtype == KvDType::kInt8) {
        const auto row = [&](int32_t slot) {
          return static_cast<size_t>(slot / kPageTokens) * a.kv.scale_stride + g * kPageTokens +
                 static_cast<size_t>(slot % kPageTokens);
        };
        a.kv.k_row_scale[row(a.to[i])] = a.kv.k_row_scale[row(a.from[i])];
        a.kv.v_row_scale[row(a.to[i])] = a.kv.v_row_scale[row(a.from[i])];
      }
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

// Each token is handled where the row's text first contains it.
void penalize_part(const PenalizeArgs& a, int part, int parts) {
  const Share share = share_of(a.n_rows, part, parts);
  for (int64_t r = share.begin; r < share.end; ++r) {
    const PenaltyRow& row = a.row[r];
    float* logits = a.logits + r * a.vocab;
    const auto on_path = [&](int32_t token, int32_t begin) {
      int32_t n = 0;
      for (int32_t i = begin; i < row.path_end; ++i) n += a.token[a.path[i]] == token ? 1 : 0;
      return n;
    };
    const auto apply = [&](int32_t token, int32_t count) {
      float l = logits[token];
      l = l > 0 ? l / row.repetition : l * row.repetition;
      l = l - row.frequency * static_cast<float>(count);
      logits[token] = l - (count > 0 ? row.presence : 0.0f);
    };
    // Most seen tokens are not on the path; a 64-bit filter finds most of them cheaply.
    const auto bit = [](int32_t token) { return uint64_t{1} << (token & 63); };
    uint64_t maybe = 0;
    for (int32_t i = row.path_begin; i < row.path_end; ++i) maybe |= bit(a.token[a.path[i]]);
    std::vector<int32_t> counted;  // tokens both seen and on the path
    for (int32_t s = row.seen_begin; s < row.seen_end; ++s) {
      const PenaltySeen& seen = a.seen[s];
      const int32_t n = (maybe & bit(seen.token)) != 0 ? on_path(seen.token, row.path_begin) : 0;
      if (n > 0) counted.push_back(seen.token);
      apply(seen.token, seen.count + n);
    }
    for (int32_t i = row.path_begin; i < row.path_end; ++i) {
      const int32_t token = a.token[a.path[i]];
      if (std::find(counted.begin(), counted.end(), token) != counted.end()) continue;
      counted.push_back(token);
      apply(token, on_path(token, i));
    }
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    for (int32_t i = row.bias_begin; i < row.bias_end; ++i) {
      float& l = logits[a.bias[i].token];
      l = a.bias[i].add == kNever ? kNever : l + a.bias[i].add;
    }
  }
}

void uniform_part(const UniformArgs& a, int part, int parts) {
  const Share share = share_of(a.n_rows, part, parts);
  const int64_t stride = a.out_stride == 0 ? a.lanes : a.out_stride;
  for (int64_t r = share.begin; r < share.end; ++r) {
    float* out = a.out + r * stride;
    const int32_t s = a.sequence[r];
    if (s < 0 || s >= a.n_sequences) {
      std::fill_n(out, a.lanes, std::numeric_limits<float>::quiet_NaN());
    } else {
      uniform_row(a.row[s].seed, a.position[r], a.purpose, out, a.lanes);
    }
  }
}

void top_k_part(const TopKArgs& a, int part, int parts) {
  const Share share = share_of(a.n_rows, part, parts);
  std::vector<float> values(static_cast<size_t>(a.k));
  for (int64_t r = share.begin; r < share.end; ++r) {
    const float* logits = a.logits + r * stride_of(a.logits_stride, a.vocab);
    int32_t* token = a.token + r * stride_of(a.token_stride, a.k);
    int32_t n = 0;
    for (int32_t id = 0; id < a.vocab; ++id) {
      const float value =
          std::isnan(logits[id]) ? -std::numeric_limits<float>::infinity() : logits[id];
      if (n == a.k && value <= values.back()) continue;
      int32_t at = n < a.k ? n++ : n - 1;
      for (; at > 0 && values[static_cast<size_t>(at) - 1] < value; --at) {
        values[static_cast<size_t>(at)] = values[static_cast<size_t>(at) - 1];
        token[at] = token[at - 1];
      }
      values[static_cast<size_t>(at)] = value;
      token[at] = id;
    }
  }
}

void log_prob_part(const LogProbArgs& a, int part, int parts) {
  const Share share = share_of(a.n_rows, part, parts);
  for (int64_t r = share.begin; r < share.end; ++r) {
    const float* logits = a.logits + r * stride_of(a.logits_stride, a.vocab);
    const double top = *std::max_element(logits, logits + a.vocab);
    double sum = 0;
    for (int32_t id = 0; id < a.vocab; ++id) sum += std::exp(static_cast<double>(logits[id]) - top);
    const double total = top + std::log(sum);
    const int32_t* token = a.token + r * stride_of(a.token_stride, a.k);
    float* out = a.out + r * stride_of(a.out_stride, a.k);
    for (int32_t i = 0; i < a.k; ++i) {
      if (token[i] < 0 || token[i] >= a.vocab) continue;
      out[i] = static_cast<float>(static_cast<double>(logits[token[i]]) - total);
    }
  }
}

void pick_tokens_part(const PickTokensArgs& a, int part, int parts) {
  const Share share = share_of(a.n, part, parts);
  for (int64_t i = share.begin; i < share.end; ++i) {
    const int32_t token = a.source[a.from[i]];
    a.target[a.to[i]] = token >= 0 && token < a.vocab ? token : a.otherwise;
  }
}

void clamp_nodes_part(const ClampNodesArgs& a, int part, int parts) {
  const Share share = share_of(a.n, part, parts);
  for (int64_t s = share.begin; s < share.end; ++s) {
    const int32_t* token = a.token + s * a.capacity;
    const int32_t most = std::min(a.n_nodes[s], a.capacity);
    int32_t n = 0;
    while (n < most && token[n] >= 0 && token[n] < a.vocab) ++n;
    a.n_nodes[s] = n;
  }
}

// One pass is enough, because children follow their parents.
void walk_tree_part(const WalkTreeArgs& a, int part, int parts) {
  const Share share = share_of(a.n, part, parts);
  for (int64_t s = share.begin; s < share.end; ++s) {
    const int64_t row = s * a.capacity;
    const int32_t* wanted = a.wanted + s * (a.capacity + 1);
    const int32_t n_nodes = std::min(a.n_nodes[s], a.capacity);
    int32_t n = 0, at = -1;
    for (int32_t node = 0; node < n_nodes && n < a.path_capacity; ++node) {
      const bool skipped = a.flags != nullptr && (a.flags[row + node] & a.skip_flags) != 0;
      if (skipped || a.parent[row + node] != at || a.token[row + node] != wanted[at + 1]) continue;
      a.path[s * a.path_capacity + n++] = node;
      at = node;
    }
    a.n_path[s] = n;
    a.last[s] = wanted[at + 1];
  }
}

}  // namespace specd::kernels
