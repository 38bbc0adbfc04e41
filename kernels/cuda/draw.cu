// From logits to tokens, one block per row. Tokens and noise have the bits of the CPU; the method
// is explained in kernels/cpu/draw.cc. Counts and masses are integers, so the order in which
// threads add them does not matter.
#include <climits>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/math.cuh"

namespace specd::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr int kDigits = 3;
constexpr int kBins = 2048;

__device__ constexpr int kDigitShift[kDigits] = {21, 10, 0};
__device__ constexpr uint32_t kDigitSize[kDigits] = {2048, 2048, 1024};

__device__ inline int64_t stride_of(int32_t stride, int32_t dense) {
  return stride == 0 ? dense : stride;
}
__device__ inline uint32_t key_of(float l) {
  const uint32_t b = __float_as_uint(__fadd_rn(l, 0.0f));
  return b ^ ((b >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}
__device__ inline float value_of(uint32_t key) {
  return __uint_as_float(key ^ ((key >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}
__device__ inline float processed(float logit, const DrawRow& row) {
  return __fdiv_rn(logit, row.temperature);
}
__device__ inline float noise_at(const DrawRow& row, int32_t position, int32_t token) {
  uint32_t x[4];
  philox(row.seed, static_cast<uint32_t>(token) / 4, static_cast<uint32_t>(position), row.purpose,
         row.round, x);
  return noise_of(x[static_cast<uint32_t>(token) % 4]);
}
// 2^40 exp(l - max).
__device__ inline uint64_t mass_of(float l, float max) {
  const float mass = __fmul_rn(exp_strict(__fsub_rn(l, max)), 0x1p40f);
  return static_cast<uint64_t>(static_cast<int64_t>(mass));
}

// A candidate token: larger value first, then lower id.
struct Best {
  float value;
  int32_t token;
};
__device__ inline Best better(const Best& a, const Best& b) {
  if (b.token < 0) return a;
  if (a.token < 0) return b;
  if (a.value != b.value) return a.value > b.value ? a : b;
  return a.token < b.token ? a : b;
}

// The selected rank; `before` is the weight of the tokens with larger ones, which is below `limit`.
struct Selected {
  uint32_t rank;
  unsigned long long before;
  double limit;
};

struct Shared {
  unsigned long long sums[kBins];
  Best best[kWarps];
  int32_t counts[kWarps];
  int32_t end;
  Selected selected;
};

template <typename T, typename Fn>
__device__ T reduce_warp(T value, Fn&& fn) {
  for (int offset = 16; offset > 0; offset /= 2) {
    T other;
    other.value = __shfl_down_sync(kAllLanes, value.value, offset);
    other.token = __shfl_down_sync(kAllLanes, value.token, offset);
    value = fn(value, other);
  }
  return value;
}

// Returns the best over all threads to every thread.
__device__ Best reduce_block(Best value, Shared& shared) {
  const auto pick = [](const Best& a, const Best& b) { return better(a, b); };
  value = reduce_warp(value, pick);
  if (threadIdx.x % 32 == 0) shared.best[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < 32) {
    value = reduce_warp(shared.best[threadIdx.x], pick);
    if (threadIdx.x == 0) shared.best[0] = value;
  }
  __syncthreads();
  value = shared.best[0];
  __syncthreads();  // before the next one writes there
  return value;
}

// REQUIRES that every thread has finished reading the bins.
__device__ void clear(Shared& shared) {
  for (int i = threadIdx.x; i < kBins; i += kThreads) shared.sums[i] = 0;
  __syncthreads();
}

// Of the bins from the last one down, the first whose sum, with those above it and `before`, reaches
// the limit; bin 0 if none does. Adds the sums above it to `before`. Called by one whole warp; every lane
// gets the result.
__device__ uint32_t find_bin(const unsigned long long* sums, uint32_t size, double limit,
                             unsigned long long& before) {
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t top = size - 1;; top -= 32) {
    const uint32_t bin = top - lane;
    const unsigned long long own = sums[bin];
    unsigned long long sum = own;  // then of this bin and those above it
    for (uint32_t offset = 1; offset < 32; offset *= 2) {
      const unsigned long long above = __shfl_up_sync(kAllLanes, sum, offset);
      if (lane >= offset) sum += above;
    }
    const bool found = static_cast<double>(before + sum) >= limit || bin == 0;
    const uint32_t votes = __ballot_sync(kAllLanes, found);
    const int last = votes == 0 ? 31 : __ffs(static_cast<int>(votes)) - 1;
    before += __shfl_sync(kAllLanes, votes == 0 ? sum : sum - own, last);
    if (votes != 0) return top - static_cast<uint32_t>(last);
  }
}

struct Ranked {
  uint32_t rank;
  unsigned long long weight;
};

// The largest rank at which the weights of the tokens with it or a larger one reach a limit. of: rank
// and weight of token t with the value l; limit_of: the limit, by the sum of all weights.
template <typename Of, typename Limit>
__device__ Selected select(const float* logits, int32_t vocab, const DrawRow& row, Shared& shared,
                           Of&& of, Limit&& limit_of) {
  unsigned long long before = 0;  // this and the limit: in the first warp only
  double limit = 0;
  uint32_t prefix = 0;
  for (int digit = 0; digit < kDigits; ++digit) {
    clear(shared);
    const int shift = kDigitShift[digit];
    const uint32_t size = kDigitSize[digit];
    for (int32_t t = threadIdx.x; t < vocab; t += kThreads) {
      const Ranked ranked = of(t, processed(logits[t], row));
      const uint32_t digits = ranked.rank >> shift;
      if (digits / size != prefix || ranked.weight == 0) continue;
      atomicAdd(&shared.sums[digits & (size - 1)], ranked.weight);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      if (digit == 0) {
        unsigned long long total = 0;
        for (uint32_t d = threadIdx.x; d < size; d += 32) total += shared.sums[d];
        for (int lanes = 16; lanes > 0; lanes /= 2) {
          total += __shfl_xor_sync(kAllLanes, total, lanes);
        }
        limit = limit_of(total);
      }
      const uint32_t bin = find_bin(shared.sums, size, limit, before);
      if (threadIdx.x == 0) shared.selected = {prefix * size + bin, before, limit};
    }
    __syncthreads();
    prefix = shared.selected.rank;
  }
  return shared.selected;
}

// The part p of a mass; the first token is always kept.
__device__ inline double limit_of(float p, unsigned long long total) {
  const double limit = static_cast<double>(p) * static_cast<double>(total);
  return limit > 0.5 ? limit : 0.5;
}

// What is kept: keys above `key`, and the tokens below `end` with that key.
struct Cut {
  uint32_t key;
  int32_t end;
};
__device__ inline bool is_kept(const Cut& cut, uint32_t key, int32_t t) {
  return key > cut.key || (key == cut.key && t < cut.end);
}

// The k-th largest key.
__device__ uint32_t kth_largest(const float* logits, int32_t vocab, const DrawRow& row,
                                Shared& shared) {
  return select(
             logits, vocab, row, shared,
             [](int32_t, float l) {
               return Ranked{key_of(l), 1};
             },
             [&](unsigned long long) { return static_cast<double>(row.top_k); })
      .rank;
}

// The id behind the n-th token with this key.
__device__ int32_t end_of_ties(const float* logits, int32_t vocab, const DrawRow& row, uint32_t key,
                               int32_t n, Shared& shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int32_t before = 0;
  for (int32_t first = 0; first < vocab; first += kThreads) {
    const int32_t t = first + static_cast<int32_t>(threadIdx.x);
    const bool tie = t < vocab && key_of(processed(logits[t], row)) == key;
    const uint32_t vote = __ballot_sync(kAllLanes, tie);
    if (lane == 0) shared.counts[warp] = __popc(vote);
    __syncthreads();
    int32_t rank = before + __popc(vote & ((1u << lane) - 1));
    for (int w = 0; w < kWarps; ++w) {
      rank += w < warp ? shared.counts[w] : 0;
      before += shared.counts[w];
    }
    if (tie && rank == n - 1) shared.end = t + 1;
    __syncthreads();
    if (before >= n) return shared.end;
  }
  return vocab;
}

__device__ Cut top_p_cut(const float* logits, int32_t vocab, const DrawRow& row, float max,
                         uint32_t lowest, Shared& shared) {
  const Selected selected = select(
      logits, vocab, row, shared,
      [&](int32_t, float l) {
        const uint32_t key = key_of(l);
        return Ranked{key, key < lowest ? 0 : mass_of(l, max)};
      },
      [&](unsigned long long total) { return limit_of(row.top_p, total); });
  // The mass of every token with this key. It is not 0: the bins that were passed stayed below the limit.
  const uint64_t each = mass_of(value_of(selected.rank), max);
  int32_t too_few = 0, ties = vocab;  // the fewest that reach the limit, at most all
  while (ties - too_few > 1) {
    const int32_t middle = too_few + (ties - too_few) / 2;
    const uint64_t mass = selected.before + each * static_cast<uint64_t>(middle);
    if (static_cast<double>(mass) < selected.limit) {
      too_few = middle;
    } else {
      ties = middle;
    }
  }
  return {selected.rank, end_of_ties(logits, vocab, row, selected.rank, ties, shared)};
}

// Of the tokens that the cut keeps, typical_p keeps those with rank_of() >= rank.
struct Typical {
  float mean;  // of d
  uint32_t rank;
};
// Larger = nearer to the mean. d = max - l.
__device__ inline uint32_t rank_of(float d, float mean) {
  return ~(__float_as_uint(__fsub_rn(d, mean)) & 0x7fffffffu);
}

__device__ Typical typical_cut(const float* logits, int32_t vocab, const DrawRow& row, float max,
                               const Cut& cut, Shared& shared) {
  clear(shared);
  unsigned long long total = 0, weighted = 0;  // sums of mass and of mass * d, as fixed point
  for (int32_t t = threadIdx.x; t < vocab; t += kThreads) {
    const float l = processed(logits[t], row);
    const uint64_t mass = mass_of(l, max);
    if (mass == 0 || !is_kept(cut, key_of(l), t)) continue;
    total += mass;
    const float product = __fmul_rn(static_cast<float>(mass), __fsub_rn(max, l));
    weighted += static_cast<uint64_t>(static_cast<int64_t>(product));
  }
  atomicAdd(&shared.sums[0], total);
  atomicAdd(&shared.sums[1], weighted);
  __syncthreads();
  const auto mean =
      static_cast<float>(static_cast<double>(shared.sums[1]) / static_cast<double>(shared.sums[0]));
  __syncthreads();  // before the bins are cleared
  const Selected selected = select(
      logits, vocab, row, shared,
      [&](int32_t t, float l) {
        const bool kept = is_kept(cut, key_of(l), t);
        return Ranked{rank_of(__fsub_rn(max, l), mean), kept ? mass_of(l, max) : 0};
      },
      [&](unsigned long long all) { return limit_of(row.typical_p, all); });
  return {mean, selected.rank};
}

// Which tokens can be drawn.
struct Support {
  Cut cut;
  Typical typical;  // rank 0 = off
};
__device__ inline bool is_kept(const Support& support, float l, float max, int32_t t) {
  return is_kept(support.cut, key_of(l), t) &&
         (support.typical.rank == 0 ||
          rank_of(__fsub_rn(max, l), support.typical.mean) >= support.typical.rank);
}

__device__ Support support_of(const float* logits, int32_t vocab, const DrawRow& row, float max,
                              Shared& shared) {
  Support support{{0, vocab}, {0, 0}};
  Cut& cut = support.cut;
  if (row.top_k > 0 && row.top_k < vocab) cut.key = kth_largest(logits, vocab, row, shared);
  if (row.top_p < 1.0f) cut = top_p_cut(logits, vocab, row, max, cut.key, shared);
  if (row.min_p > 0.0f) {
    const uint32_t key = key_of(__fadd_rn(max, log_strict(row.min_p)));
    if (key > cut.key) cut = {key, vocab};
  }
  if (row.typical_p < 1.0f) support.typical = typical_cut(logits, vocab, row, max, cut, shared);
  return support;
}

// The log of the kept mass.
__device__ float lse_of(const float* logits, int32_t vocab, const DrawRow& row,
                        const Support& support, float max, Shared& shared) {
  if (threadIdx.x == 0) shared.sums[0] = 0;
  __syncthreads();
  unsigned long long total = 0;
  for (int32_t t = threadIdx.x; t < vocab; t += kThreads) {
    const float l = processed(logits[t], row);
    if (is_kept(support, l, max, t)) total += mass_of(l, max);
  }
  atomicAdd(&shared.sums[0], total);
  __syncthreads();
  const double mass = static_cast<double>(shared.sums[0]) * 0x1p-40;
  return log_strict(static_cast<float>(mass));
}

// One block on a multiprocessor at a time: to fit two, registers would spill.
__global__ void __launch_bounds__(kThreads, 1) draw_kernel(DrawArgs a) {
  __shared__ Shared shared;
  const int64_t r = blockIdx.x;
  const int64_t s = a.sequence == nullptr ? r : a.sequence[r];
  const bool is_there = a.sequence == nullptr || (s >= 0 && s < a.n_sequences);
  const DrawRow& row = a.row[is_there ? s : 0];
  const float* logits = a.logits + r * stride_of(a.logits_stride, a.vocab);
  const int32_t vocab = a.vocab;
  // Where these begin is computed again at each use: registers are short.
  const auto tell_token = [&](int32_t token) {
    if (threadIdx.x == 0 && a.token != nullptr) a.token[r * stride_of(a.token_stride, 1)] = token;
  };
  const auto tell_score = [&](int32_t t, float value) {
    if (a.score != nullptr) a.score[r * stride_of(a.score_stride, vocab) + t] = value;
  };
  const bool has_law = is_there && row.law && (a.law != nullptr || a.lse != nullptr);
  const auto tell_law = [&](int32_t t, float value) {
    if (a.law != nullptr) a.law[r * stride_of(a.law_stride, vocab) + t] = value;
  };
  const auto tell_lse = [&](float lse) {
    if (threadIdx.x == 0 && has_law && a.lse != nullptr) a.lse[r] = lse;
  };

  bool nan = false;
  Best look{-INFINITY, -1};
  for (int32_t t = threadIdx.x; t < vocab; t += kThreads) {
    const float l = logits[t];
    nan = nan || isnan(l);
    look = better(look, {l, t});
  }
  nan = __syncthreads_or(nan) != 0;
  look = reduce_block(look, shared);
  // Of zeros of both signs any may have been found.
  const float max =
      __fadd_rn(row.greedy ? look.value : __fdiv_rn(look.value, row.temperature), 0.0f);
  const bool damaged = nan || isinf(max) || !is_there;
  if (damaged || row.greedy) {
    const int32_t token = damaged ? -1 : look.token;
    tell_token(token);
    tell_lse(damaged ? -INFINITY : 0.0f);
    for (int32_t t = threadIdx.x; (a.score != nullptr || has_law) && t < vocab; t += kThreads) {
      const float l = logits[t];
      tell_score(t, damaged ? -INFINITY : l);
      if (has_law) tell_law(t, t == token ? 0.0f : -INFINITY);
    }
    return;
  }
  const Support support = support_of(logits, vocab, row, max, shared);
  if (has_law) tell_lse(lse_of(logits, vocab, row, support, max, shared));

  Best best{-INFINITY, -1};
  for (int32_t t = threadIdx.x; t < vocab; t += kThreads) {
    const float l = processed(logits[t], row);
    const bool kept = is_kept(support, l, max, t);
    float value = -INFINITY;
    if (kept) {
      const int32_t position =
          a.position == nullptr ? row.position : a.position[s] + a.position_offset;
      value = __fadd_rn(l, noise_at(row, position, a.id == nullptr ? t : a.id[t]));
      best = better(best, {value, t});
    }
    tell_score(t, value);
    if (has_law) tell_law(t, kept ? __fsub_rn(l, max) : -INFINITY);
  }
  best = reduce_block(best, shared);
  tell_token(best.token);
}

// One block per row. Each token is handled by the thread at its first occurrence in the row's text.
__global__ void penalize_kernel(PenalizeArgs a) {
  const int64_t r = blockIdx.x;
  const PenaltyRow row = a.row[r];
  float* logits = a.logits + r * a.vocab;
  const auto on_path = [&](int32_t token, int32_t begin) {
    int32_t n = 0;
    for (int32_t i = begin; i < row.path_end; ++i) n += a.token[a.path[i]] == token ? 1 : 0;
    return n;
  };
  const auto apply = [&](int32_t token, int32_t count) {
    float l = logits[token];
    l = l > 0 ? __fdiv_rn(l, row.repetition) : __fmul_rn(l, row.repetition);
    l = __fsub_rn(l, __fmul_rn(row.frequency, static_cast<float>(count)));
    logits[token] = __fsub_rn(l, count > 0 ? row.presence : 0.0f);
  };
  const auto threads = static_cast<int32_t>(blockDim.x), t = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = row.seen_begin + t; i < row.seen_end; i += threads) {
    const PenaltySeen seen = a.seen[i];
    apply(seen.token, seen.count + on_path(seen.token, row.path_begin));
  }
  for (int32_t i = row.path_begin + t; i < row.path_end; i += threads) {
    const int32_t token = a.token[a.path[i]];
    bool elsewhere = on_path(token, row.path_begin) > on_path(token, i);
    for (int32_t s = row.seen_begin; s < row.seen_end && !elsewhere; ++s) {
      elsewhere = a.seen[s].token == token;
    }
    if (!elsewhere) apply(token, on_path(token, i));
  }
  __syncthreads();  // a token of these may have a bias too
  for (int32_t i = row.bias_begin + t; i < row.bias_end; i += threads) {
    const TokenBias bias = a.bias[i];
    float& l = logits[bias.token];
    l = bias.add == -INFINITY ? -INFINITY : __fadd_rn(l, bias.add);
  }
}

__global__ void draw_noise_kernel(DrawNoiseArgs a) {
  const int32_t t = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  const int64_t r = blockIdx.y;
  if (t >= a.vocab) return;
  uint32_t x[4];
  philox(a.seed[r], static_cast<uint32_t>(t) / 4, static_cast<uint32_t>(a.position[r]), 0, 0, x);
  for (int i = 0; i < 4 && t + i < a.vocab; ++i) a.out[r * a.vocab + t + i] = noise_of(x[i]);
}

// Four lanes a thread, as Philox gives them.
__global__ void uniform_kernel(UniformArgs a) {
  const int32_t lane = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  const int64_t r = blockIdx.y;
  if (lane >= a.lanes) return;
  float* out = a.out + r * (a.out_stride == 0 ? a.lanes : a.out_stride);
  const int32_t s = a.sequence[r];
  const bool is_known = s >= 0 && s < a.n_sequences;
  uint32_t x[4] = {};
  if (is_known) {
    philox(a.row[s].seed, static_cast<uint32_t>(lane) / 4, static_cast<uint32_t>(a.position[r]),
           a.purpose, 0, x);
  }
  for (int i = 0; i < 4 && lane + i < a.lanes; ++i) {
    out[lane + i] =
        is_known ? static_cast<float>(x[i] >> 8) * 0x1p-24f : __uint_as_float(0x7fc00000u);
  }
}

// k rounds: the best of the tokens ranked below the last one found.
__global__ void __launch_bounds__(kThreads) top_k_kernel(TopKArgs a) {
  __shared__ Shared shared;
  const int64_t r = blockIdx.x;
  const float* logits = a.logits + r * stride_of(a.logits_stride, a.vocab);
  int32_t* token = a.token + r * stride_of(a.token_stride, a.k);
  Best last{INFINITY, -1};
  for (int32_t i = 0; i < a.k; ++i) {
    Best best{-INFINITY, -1};
    for (int32_t t = threadIdx.x; t < a.vocab; t += kThreads) {
      const float value = isnan(logits[t]) ? -INFINITY : logits[t];
      if (value < last.value || (value == last.value && t > last.token)) {
        best = better(best, {value, t});
      }
    }
    last = reduce_block(best, shared);
    if (threadIdx.x == 0) token[i] = last.token;
  }
}

// The sum has a fixed order: each thread adds its ids in increasing order, then a tree over
// the threads.
__global__ void __launch_bounds__(kThreads, 1) log_prob_kernel(LogProbArgs a) {
  __shared__ Shared shared;
  __shared__ double sums[kThreads];
  const int64_t r = blockIdx.x;
  const float* logits = a.logits + r * stride_of(a.logits_stride, a.vocab);
  Best best{-INFINITY, -1};
  for (int32_t t = threadIdx.x; t < a.vocab; t += kThreads) best = better(best, {logits[t], t});
  const double top = reduce_block(best, shared).value;
  double sum = 0;
  for (int32_t t = threadIdx.x; t < a.vocab; t += kThreads) {
    sum += exp(static_cast<double>(logits[t]) - top);
  }
  sums[threadIdx.x] = sum;
  for (int width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < width) sums[threadIdx.x] += sums[threadIdx.x + width];
  }
  __syncthreads();
  const double total = top + log(sums[0]);
  const int32_t* token = a.token + r * stride_of(a.token_stride, a.k);
  float* out = a.out + r * stride_of(a.out_stride, a.k);
  for (int32_t i = threadIdx.x; i < a.k; i += kThreads) {
    if (token[i] < 0 || token[i] >= a.vocab) continue;
    out[i] = static_cast<float>(static_cast<double>(logits[token[i]]) - total);
  }
}

}  // namespace

void penalize(Stream& any, const PenalizeArgs& a) {
  if (a.n_rows == 0) return;
  CudaStream& stream = of(any);
  penalize_kernel<<<static_cast<unsigned>(a.n_rows), 256, 0, stream.handle>>>(a);
  stream.note(cudaGetLastError());
}

void draw(Stream& any, const DrawArgs& a) {
  if (a.n_rows == 0) return;
  CudaStream& stream = of(any);
  draw_kernel<<<static_cast<unsigned>(a.n_rows), kThreads, 0, stream.handle>>>(a);
  stream.note(cudaGetLastError());
}

void draw_noise(Stream& any, const DrawNoiseArgs& a) {
  if (a.n_rows == 0) return;
  CudaStream& stream = of(any);
  const dim3 grid(static_cast<unsigned>((a.vocab + 1023) / 1024), static_cast<unsigned>(a.n_rows));
  draw_noise_kernel<<<grid, 256, 0, stream.handle>>>(a);
  stream.note(cudaGetLastError());
}

void uniform(Stream& any, const UniformArgs& a) {
  if (a.n_rows == 0 || a.lanes == 0) return;
  CudaStream& stream = of(any);
  const dim3 grid(static_cast<unsigned>((a.lanes + 1023) / 1024), static_cast<unsigned>(a.n_rows));
  uniform_kernel<<<grid, 256, 0, stream.handle>>>(a);
  stream.note(cudaGetLastError());
}

void top_k(Stream& any, const TopKArgs& a) {
  if (a.n_rows == 0) return;
  CudaStream& stream = of(any);
  top_k_kernel<<<static_cast<unsigned>(a.n_rows), kThreads, 0, stream.handle>>>(a);
  stream.note(cudaGetLastError());
}

void log_prob(Stream& any, const LogProbArgs& a) {
  if (a.n_rows == 0) return;
  CudaStream& stream = of(any);
  log_prob_kernel<<<static_cast<unsigned>(a.n_rows), kThreads, 0, stream.handle>>>(a);
  stream.note(cudaGetLastError());
}

}  // namespace specd::kernels::cuda
