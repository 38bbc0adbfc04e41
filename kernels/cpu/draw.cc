// The Gumbel-max draw. Processed logits are recomputed in each pass instead of being stored, so the
// op needs no buffer of vocabulary size.
//
// top_k, top_p and typical_p find their cut by selection over the digits of the ordered ranks, not by
// sorting. The mass of a token is its float32 exp as fixed point: sums of integers do not depend on
// their order.
#include "specd/kernels/draw.h"

#include "kernels/cpu/isa.h"
#include "kernels/cpu/math.h"

namespace specd::kernels::SPECD_ISA {
namespace {

// Noise is never larger: -log(2^-33) = 22.87. A token further than this below the best cannot win.
constexpr float kNoiseMax = 23.0f;

// -log(-log1p(-w)), w = (x + 0.5) * 2^-32, in float32. Computed from the nearer end: for w above
// one half, 1 - w is (~x + 0.5) * 2^-32, so w never rounds to 1.
SPECD_INLINE F32x16 noise_of(const I32x16& x) {
  const I32x16 nearer = exclusive_or(x, shift_right<31>(x));
  const F32x16 f = mul(add(to_float(nearer), set1(0.5f)), set1(0x1p-32f));
  const F32x16 one = set1(1.0f);
  // log1p(-f) = log(u) + (rounding error of u = 1 - f) / u
  const F32x16 u = sub(one, f);
  const F32x16 lost = div(sub(sub(one, u), f), u);
  const F32x16 log_u = log(select(x, f, u));
  const F32x16 exponential = sub(set1(0.0f), select(x, log_u, add(log_u, lost)));
  return sub(set1(0.0f), log(exponential));
}

// Four lanes of the noise of row `r`, of tokens [4 * group, 4 * group + 4).
SPECD_INLINE void lanes_of(const DrawRow& r, uint32_t group, uint32_t* lanes) {
  const uint32_t counter[4] = {group, static_cast<uint32_t>(r.position), r.purpose, r.round};
  philox4x32(r.seed, counter, lanes);
}

// The noise of tokens [token, token + 16), token a multiple of 16.
void noise16(const DrawRow& r, int32_t token, float* out) {
  uint32_t x[16];
  for (uint32_t i = 0; i < 4; ++i) lanes_of(r, static_cast<uint32_t>(token) / 4 + i, x + 4 * i);
  store(out, noise_of(load_int(x)));
}

// The same for tokens with any ids.
void noise16_of(const DrawRow& r, const int32_t* id, int n, float* out) {
  uint32_t x[16] = {};
  for (int i = 0; i < n; ++i) {
    uint32_t lanes[4];
    lanes_of(r, static_cast<uint32_t>(id[i]) / 4, lanes);
    x[i] = lanes[static_cast<uint32_t>(id[i]) % 4];
  }
  store(out, noise_of(load_int(x)));
}

// Larger floats have larger keys; -0 and +0 share a key.
SPECD_INLINE uint32_t key_of(float l) {
  const uint32_t b = bits_of(l + 0.0f);
  return b ^ (b >> 31 ? 0xffffffffu : 0x80000000u);
}

struct Row {
  const float* logits;
  int32_t vocab;
  F32x16 temperature;
  float max;  // largest l
};

// l of tokens [t, t + n), n <= 16.
SPECD_INLINE int processed(const Row& row, int32_t t, float* l) {
  const int n = row.vocab - t < 16 ? row.vocab - t : 16;
  store(l, div(load_first(row.logits + t, n), row.temperature));
  return n;
}

// What a scan of the raw logits finds.
struct Look {
  bool nan;
  float max;
};

Look look_at(const float* logits, int32_t vocab) {
  uint32_t largest = 0;
  for (int32_t t = 0; t < vocab; ++t) {
    const uint32_t magnitude = bits_of(logits[t]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  F32x16 m = set1(-__builtin_inff());
  int32_t t = 0;
  for (; t + 16 <= vocab; t += 16) m = max(m, load(logits + t));
  float best = tree_max(m);
  for (; t < vocab; ++t) best = best > logits[t] ? best : logits[t];
  return {largest > 0x7f800000u, best};
}

constexpr int kDigits = 3;
constexpr int kDigitShift[kDigits] = {21, 10, 0};
constexpr uint32_t kDigitSize[kDigits] = {2048, 2048, 1024};

// What is kept: keys above `key`, and the tokens below `end` with that key.
struct Cut {
  uint32_t key;
  int32_t end;
};
SPECD_INLINE bool is_kept(const Cut& cut, uint32_t key, int32_t t) {
  return key > cut.key || (key == cut.key && t < cut.end);
}

// The largest rank at which the weights of the tokens with it or a larger one reach a limit; `before`
// is the weight of the larger ones, which is below the limit.
struct Selected {
  uint32_t rank;
  uint64_t before;
  double limit;
};

// each16(t, rank, weight): of tokens [t, t + 16), weight 0 beyond the vocabulary. limit_of: the limit,
// by the sum of all weights.
template <typename Each16, typename Limit>
SPECD_INLINE Selected select(int32_t vocab, Each16&& each16, Limit&& limit_of) {
  Selected found{0, 0, 0};
  for (int digit = 0; digit < kDigits; ++digit) {
    uint64_t sums[2048] = {};
    const int shift = kDigitShift[digit];
    const uint32_t size = kDigitSize[digit];
    for (int32_t t = 0; t < vocab; t += 16) {
      uint32_t rank[16];
      uint64_t weight[16];
      each16(t, rank, weight);
      for (int i = 0; i < 16; ++i) {
        const uint32_t digits = rank[i] >> shift;
        if (digits / size == found.rank) sums[digits & (size - 1)] += weight[i];
      }
    }
    if (digit == 0) {
      uint64_t total = 0;
      for (uint32_t d = 0; d < size; ++d) total += sums[d];
      found.limit = limit_of(total);
    }
    // The first bin, from the top, at whose end the limit is reached.
    uint32_t d = size - 1;
    while (d > 0 && static_cast<double>(found.before + sums[d]) < found.limit) {
      found.before += sums[d--];
    }
    found.rank = found.rank * size + d;
  }
  return found;
}

// The k-th largest key.
uint32_t kth_largest(const Row& row, uint32_t k) {
  const auto each16 = [&](int32_t t, uint32_t* rank, uint64_t* weight) {
    float l[16];
    const int n = processed(row, t, l);
    for (int i = 0; i < 16; ++i) {
      rank[i] = key_of(l[i]);
      weight[i] = i < n ? 1 : 0;
    }
  };
  return select(row.vocab, each16, [&](uint64_t) { return static_cast<double>(k); }).rank;
}

// 2^40 * exp(l - max) of 16 tokens.
SPECD_INLINE void masses16(const Row& row, const float* l, uint64_t* mass) {
  float values[16];
  // At most that of the largest: behind the last token stand values that no one may convert.
  store(values, min(mul(exp(sub(load(l), set1(row.max))), set1(0x1p40f)), set1(0x1p40f)));
  for (int i = 0; i < 16; ++i) mass[i] = static_cast<uint64_t>(static_cast<int64_t>(values[i]));
}
// The same with l, of tokens [t, t + n), n <= 16.
SPECD_INLINE int masses_at(const Row& row, int32_t t, float* l, uint64_t* mass) {
  const int n = processed(row, t, l);
  masses16(row, l, mass);
  return n;
}

// The part p of a mass; the first token is always kept.
SPECD_INLINE double limit_of(float p, uint64_t total) {
  const double limit = static_cast<double>(p) * static_cast<double>(total);
  return limit > 0.5 ? limit : 0.5;
}

// Of the tokens with key >= lowest.
Cut top_p_cut(const Row& row, uint32_t lowest, float top_p) {
  const auto each16 = [&](int32_t t, uint32_t* rank, uint64_t* mass) {
    float l[16];
    const int n = masses_at(row, t, l, mass);
    for (int i = 0; i < 16; ++i) {
      rank[i] = key_of(l[i]);
      if (i >= n || rank[i] < lowest) mass[i] = 0;
    }
  };
  Selected found =
      select(row.vocab, each16, [&](uint64_t total) { return limit_of(top_p, total); });
  // Tokens with the cut's key are ranked by id.
  Cut cut{found.rank, row.vocab};
  for (int32_t t = 0; t < row.vocab; t += 16) {
    float l[16];
    uint64_t mass[16];
    const int n = masses_at(row, t, l, mass);
    for (int i = 0; i < n; ++i) {
      if (key_of(l[i]) != cut.key) continue;
      if (static_cast<double>(found.before) >= found.limit) return {cut.key, t + i};
      found.before += mass[i];
    }
  }
  return cut;
}

// Of the tokens that `cut` keeps, typical_p keeps those with rank_of() >= rank.
struct Typical {
  float mean;  // of d
  uint32_t rank;
};
// Larger = nearer to the mean. d = max - l.
SPECD_INLINE uint32_t rank_of(float d, float mean) { return ~(bits_of(d - mean) & 0x7fffffffu); }

Typical typical_cut(const Row& row, const Cut& cut, float typical_p) {
  uint64_t total = 0, weighted = 0;  // sums of mass and of mass * d, as fixed point
  for (int32_t t = 0; t < row.vocab; t += 16) {
    float l[16];
    uint64_t mass[16];
    const int n = masses_at(row, t, l, mass);
    for (int i = 0; i < n; ++i) {
      if (mass[i] == 0 || !is_kept(cut, key_of(l[i]), t + i)) continue;
      total += mass[i];
      weighted += static_cast<uint64_t>(
          static_cast<int64_t>(static_cast<float>(mass[i]) * (row.max - l[i])));
    }
  }
  const auto mean = static_cast<float>(static_cast<double>(weighted) / static_cast<double>(total));
  const auto each16 = [&](int32_t t, uint32_t* rank, uint64_t* mass) {
    float l[16];
    const int n = masses_at(row, t, l, mass);
    for (int i = 0; i < 16; ++i) {
      rank[i] = rank_of(row.max - l[i], mean);
      if (i >= n || !is_kept(cut, key_of(l[i]), t + i)) mass[i] = 0;
    }
  };
  const auto limit = [&](uint64_t all) { return limit_of(typical_p, all); };
  return {mean, select(row.vocab, each16, limit).rank};
}

// Which tokens can be drawn.
struct Support {
  Cut cut;
  Typical typical;  // rank 0 = off
};
// l and whether it is kept, 1 or 0, of tokens [t, t + n), n <= 16. Without branches, for vectors.
SPECD_INLINE int kept16(const Row& row, const Support& support, int32_t t, float* l,
                        uint32_t* kept) {
  const int n = processed(row, t, l);
  const int32_t end = support.cut.end < t + n ? support.cut.end : t + n;
  for (int i = 0; i < 16; ++i) {
    const uint32_t key = key_of(l[i]);
    const uint32_t above = key > support.cut.key ? 1 : 0, tie = key == support.cut.key ? 1 : 0;
    kept[i] = (above & (i < n ? 1u : 0u)) | (tie & (t + i < end ? 1u : 0u));
  }
  if (support.typical.rank == 0) return n;
  for (int i = 0; i < 16; ++i) {
    kept[i] &= rank_of(row.max - l[i], support.typical.mean) >= support.typical.rank ? 1 : 0;
  }
  return n;
}

Support support_of(const Row& row, const DrawRow& r) {
  Support support{{0, row.vocab}, {0, 0}};
  Cut& cut = support.cut;
  if (r.top_k > 0 && r.top_k < row.vocab) {
    cut.key = kth_largest(row, static_cast<uint32_t>(r.top_k));
  }
  if (r.top_p < 1.0f) cut = top_p_cut(row, cut.key, r.top_p);
  if (r.min_p > 0.0f) {
    alignas(64) float log_p[16];
    store(log_p, log(set1(r.min_p)));
    const uint32_t key = key_of(row.max + log_p[0]);
    if (key > cut.key) cut = {key, row.vocab};
  }
  if (r.typical_p < 1.0f) support.typical = typical_cut(row, cut, r.typical_p);
  return support;
}

// The log of the kept mass.
float lse_of(const Row& row, const Support& support) {
  uint64_t total = 0;
  for (int32_t t = 0; t < row.vocab; t += 16) {
    float l[16];
    uint32_t kept[16];
    uint64_t mass[16];
    (void)kept16(row, support, t, l, kept);
    masses16(row, l, mass);
    for (int i = 0; i < 16; ++i) total += kept[i] * mass[i];
  }
  alignas(64) float log_mass[16];
  store(log_mass, log(set1(static_cast<float>(static_cast<double>(total) * 0x1p-40))));
  return log_mass[0];
}

// What one row gives; a null result is not wanted.
struct RowResults {
  float* score;
  float* law;
  float* lse;
};

// Of a row of which at most one token can be drawn.
int32_t give_one(const float* logits, int32_t vocab, int32_t token, bool is_greedy,
                 const RowResults& out) {
  const float no = -__builtin_inff();
  for (int32_t t = 0; t < vocab; ++t) {
    if (out.score != nullptr) out.score[t] = is_greedy ? logits[t] : no;
    if (out.law != nullptr) out.law[t] = t == token ? 0.0f : no;
  }
  if (out.lse != nullptr) *out.lse = token < 0 ? no : 0.0f;
  return token;
}

// id: null = 0, 1, ..
int32_t draw_row(const float* logits, int32_t vocab, const DrawRow& r, const int32_t* id,
                 const RowResults& out) {
  const float no = -__builtin_inff();
  const Look look = look_at(logits, vocab);
  Row row;
  row.logits = logits;
  row.vocab = vocab;
  row.temperature = set1(r.greedy ? 1.0f : r.temperature);
  // Division preserves the order. Of zeros of both signs any may have been found.
  row.max = (r.greedy ? look.max : look.max / r.temperature) + 0.0f;
  if (look.nan || __builtin_isinf(row.max)) return give_one(logits, vocab, -1, false, out);
  if (r.greedy) {
    int32_t t = 0;
    while (logits[t] != look.max) ++t;
    return give_one(logits, vocab, t, true, out);
  }
  const Support support = support_of(row, r);
  if (out.lse != nullptr) *out.lse = lse_of(row, support);
  const bool is_complete = out.law != nullptr || out.score != nullptr;

  int32_t best = -1;
  float best_value = no;
  for (int32_t t = 0; t < vocab; t += 16) {
    float l[16];
    uint32_t kept[16];
    const int n = kept16(row, support, t, l, kept);
    const float lead = best < 0 || out.score != nullptr ? no : best_value;
    uint32_t worth_noise = 0;
    for (int i = 0; i < 16; ++i) worth_noise |= kept[i] & (l[i] + kNoiseMax >= lead ? 1u : 0u);
    for (int i = 0; i < n && is_complete; ++i) {
      if (out.score != nullptr) out.score[t + i] = no;
      if (out.law != nullptr) out.law[t + i] = kept[i] == 0 ? no : l[i] - row.max;
    }
    if (worth_noise == 0) continue;
    float noise[16];
    if (id == nullptr) {
      noise16(r, t, noise);
    } else {
      noise16_of(r, id + t, n, noise);
    }
    for (int i = 0; i < n; ++i) {
      const float value = l[i] + noise[i];
      if (out.score != nullptr && kept[i] != 0) out.score[t + i] = value;
      if (kept[i] != 0 && (best < 0 || value > best_value)) {
        best = t + i;
        best_value = value;
      }
    }
  }
  return best;
}

}  // namespace

void draw(const DrawArgs& a, int part, int parts) {
  const Share share = share_of(a.n_rows, part, parts);
  for (int64_t r = share.begin; r < share.end; ++r) {
    const int64_t s = a.sequence == nullptr ? r : a.sequence[r];
    const bool is_there = a.sequence == nullptr || (s >= 0 && s < a.n_sequences);
    const bool wants_law = is_there && a.row[s].law;
    const RowResults out = {
        a.score == nullptr ? nullptr : a.score + r * stride_of(a.score_stride, a.vocab),
        a.law == nullptr || !wants_law ? nullptr : a.law + r * stride_of(a.law_stride, a.vocab),
        a.lse == nullptr || !wants_law ? nullptr : a.lse + r};
    const float* logits = a.logits + r * stride_of(a.logits_stride, a.vocab);
    int32_t token = -1;
    if (is_there) {
      DrawRow row = a.row[s];
      if (a.position != nullptr) {
        row.position = static_cast<int32_t>(static_cast<uint32_t>(a.position[s]) +
                                            static_cast<uint32_t>(a.position_offset));
      }
      token = draw_row(logits, a.vocab, row, a.id, out);
    } else {
      (void)give_one(logits, a.vocab, -1, false, out);
    }
    if (a.token != nullptr) a.token[r * stride_of(a.token_stride, 1)] = token;
  }
}

void draw_noise(const DrawNoiseArgs& a, int part, int parts) {
  const int64_t groups = (a.vocab + 15) / 16;
  const Share share = share_of(a.n_rows * groups, part, parts);
  for (int64_t unit = share.begin; unit < share.end; ++unit) {
    const int64_t r = unit / groups;
    const int32_t t = static_cast<int32_t>(unit % groups) * 16;
    float noise[16];
    DrawRow key;
    key.seed = a.seed[r];
    key.position = a.position[r];
    noise16(key, t, noise);
    float* out = a.out + r * a.vocab + t;
    for (int i = 0; i < 16 && t + i < a.vocab; ++i) out[i] = noise[i];
  }
}

}  // namespace specd::kernels::SPECD_ISA
