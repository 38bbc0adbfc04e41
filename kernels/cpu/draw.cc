// The Gumbel-max draw. Processed logits are recomputed in each pass instead of being stored, so the
// op needs no buffer of vocabulary size.
//
// top_k and top_p find their cut by selection over the digits of the ordered logits, not by
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

// The noise of tokens [token, token + 16), token a multiple of 16.
void noise16(uint64_t seed, int32_t position, int32_t token, float* out) {
  uint32_t x[16];
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t counter[4] = {static_cast<uint32_t>(token) / 4 + i,
                                 static_cast<uint32_t>(position), 0, 0};
    philox4x32(seed, counter, x + 4 * i);
  }
  store(out, noise_of(load_int(x)));
}

// The same for tokens with any ids.
void noise16_of(uint64_t seed, int32_t position, const int32_t* id, int n, float* out) {
  uint32_t x[16] = {};
  for (int i = 0; i < n; ++i) {
    const uint32_t counter[4] = {static_cast<uint32_t>(id[i]) / 4, static_cast<uint32_t>(position),
                                 0, 0};
    uint32_t lanes[4];
    philox4x32(seed, counter, lanes);
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

// The k-th largest key.
uint32_t kth_largest(const Row& row, uint32_t k) {
  uint32_t prefix = 0;  // the digits found so far
  uint32_t left = k;
  for (int digit = 0; digit < kDigits; ++digit) {
    uint32_t count[2048] = {};
    const int shift = kDigitShift[digit];
    const uint32_t size = kDigitSize[digit];
    for (int32_t t = 0; t < row.vocab; t += 16) {
      float l[16];
      const int n = processed(row, t, l);
      for (int i = 0; i < n; ++i) {
        const uint32_t digits = key_of(l[i]) >> shift;
        count[digits & (size - 1)] += digits / size == prefix ? 1 : 0;
      }
    }
    uint32_t d = size - 1;
    while (count[d] < left) left -= count[d--];
    prefix = prefix * size + d;
  }
  return prefix;
}

// For tokens with key >= lowest: the mass of a token is 2^40 * exp(l - max).
SPECD_INLINE void masses16(const Row& row, const float* l, float* mass) {
  const F32x16 values = load(l);
  store(mass, mul(exp(sub(values, set1(row.max))), set1(0x1p40f)));
  // also when both are infinite
  for (int i = 0; i < 16; ++i) mass[i] = l[i] == row.max ? 0x1p40f : mass[i];
}

// What is kept: keys above `key`, and the first `ties` tokens with that key.
struct Cut {
  uint32_t key = 0;
  int32_t ties = 0;
};

Cut top_p_cut(const Row& row, uint32_t lowest, float top_p) {
  double limit = 0;     // a token is kept iff the mass before it is below this
  uint64_t before = 0;  // mass of keys above the current range
  uint32_t prefix = 0;
  for (int digit = 0; digit < kDigits; ++digit) {
    uint64_t sums[2048] = {};
    const int shift = kDigitShift[digit];
    const uint32_t size = kDigitSize[digit];
    for (int32_t t = 0; t < row.vocab; t += 16) {
      float l[16];
      float mass[16];
      const int n = processed(row, t, l);
      masses16(row, l, mass);
      for (int i = 0; i < n; ++i) {
        const uint32_t key = key_of(l[i]);
        const uint32_t digits = key >> shift;
        if (key < lowest || digits / size != prefix) continue;
        sums[digits & (size - 1)] += static_cast<uint64_t>(static_cast<int64_t>(mass[i]));
      }
    }
    if (digit == 0) {
      uint64_t total = 0;
      for (uint32_t d = 0; d < size; ++d) total += sums[d];
      limit = static_cast<double>(top_p) * static_cast<double>(total);
      limit = limit > 0.5 ? limit : 0.5;  // the first is always kept
    }
    // The cut is in the first digit, from the top, at whose end the limit is reached.
    uint32_t d = size - 1;
    while (d > 0 && static_cast<double>(before + sums[d]) < limit) before += sums[d--];
    prefix = prefix * size + d;
  }
  // Tokens with the cut's key have equal mass and are ranked by id.
  float l[16];
  float mass[16];
  uint64_t each = 0;
  for (int32_t t = 0; t < row.vocab && each == 0; t += 16) {
    const int n = processed(row, t, l);
    masses16(row, l, mass);
    for (int i = 0; i < n; ++i) {
      if (key_of(l[i]) == prefix) each = static_cast<uint64_t>(static_cast<int64_t>(mass[i]));
    }
  }
  Cut cut{prefix, 0};
  if (each == 0) {
    cut.ties = row.vocab;
    return cut;
  }
  for (uint64_t mass_before = before; static_cast<double>(mass_before) < limit;
       mass_before += each) {
    if (++cut.ties == row.vocab) break;
  }
  return cut;
}

// id: null = 0, 1, ..; score: null = not wanted.
int32_t draw_row(const float* logits, int32_t vocab, const DrawRow& r, const int32_t* id,
                 float* score) {
  const Look look = look_at(logits, vocab);
  const bool is_damaged = look.nan || __builtin_isinf(look.max);
  for (int32_t t = 0; score != nullptr && t < vocab; ++t) {
    score[t] = is_damaged || !r.greedy ? -__builtin_inff() : logits[t];
  }
  if (is_damaged) return -1;
  if (r.greedy) {
    int32_t t = 0;
    while (logits[t] != look.max) ++t;
    return t;
  }
  Row row;
  row.logits = logits;
  row.vocab = vocab;
  row.temperature = set1(r.temperature);
  row.max = look.max / r.temperature;  // division preserves the order
  Cut cut{0, vocab};
  if (r.top_k > 0 && r.top_k < vocab) cut.key = kth_largest(row, static_cast<uint32_t>(r.top_k));
  if (r.top_p < 1.0f) cut = top_p_cut(row, cut.key, r.top_p);
  if (r.min_p > 0.0f) {
    alignas(64) float log_p[16];
    store(log_p, log(set1(r.min_p)));
    const uint32_t key = key_of(row.max + log_p[0]);
    if (key > cut.key) cut = {key, vocab};
  }

  int32_t best = -1;
  float best_value = -__builtin_inff();
  int32_t ties = 0;
  for (int32_t t = 0; t < vocab; t += 16) {
    float l[16];
    const int n = processed(row, t, l);
    bool kept[16];
    bool worth_noise = false;
    for (int i = 0; i < n; ++i) {
      const uint32_t key = key_of(l[i]);
      kept[i] = key > cut.key || (key == cut.key && ties++ < cut.ties);
      const bool may_win = best < 0 || l[i] + kNoiseMax >= best_value;
      worth_noise = worth_noise || (kept[i] && (may_win || score != nullptr));
    }
    if (!worth_noise) continue;
    float noise[16];
    if (id == nullptr) {
      noise16(r.seed, r.position, t, noise);
    } else {
      noise16_of(r.seed, r.position, id + t, n, noise);
    }
    for (int i = 0; i < n; ++i) {
      const float value = l[i] + noise[i];
      if (score != nullptr && kept[i]) score[t + i] = value;
      if (kept[i] && (best < 0 || value > best_value)) {
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
    float* score = a.score == nullptr ? nullptr : a.score + r * stride_of(a.score_stride, a.vocab);
    int32_t token = -1;
    if (is_there) {
      DrawRow row = a.row[s];
      if (a.position != nullptr) {
        row.position = static_cast<int32_t>(static_cast<uint32_t>(a.position[s]) +
                                            static_cast<uint32_t>(a.position_offset));
      }
      const float* logits = a.logits + r * stride_of(a.logits_stride, a.vocab);
      token = draw_row(logits, a.vocab, row, a.id, score);
    } else {
      for (int32_t t = 0; score != nullptr && t < a.vocab; ++t) score[t] = -__builtin_inff();
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
    noise16(a.seed[r], a.position[r], t, noise);
    float* out = a.out + r * a.vocab + t;
    for (int i = 0; i < 16 && t + i < a.vocab; ++i) out[i] = noise[i];
  }
}

}  // namespace specd::kernels::SPECD_ISA
