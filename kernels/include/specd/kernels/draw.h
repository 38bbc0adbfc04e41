// From logits to tokens: processed logits (the law of a row) and the Gumbel-max draw.
//
// Order: penalize(), then, as in transformers, temperature, top_k, top_p, min_p, typical_p. float32:
//   l = logit / temperature
//   top_k: keep l >= the k-th largest (ties kept)
//   top_p: rank the kept by l, higher first, lower id first on ties; keep a token iff the mass of
//          the tokens ranked before it is < top_p of the total (the first is always kept)
//   min_p: keep l >= the largest l + log(min_p)
//   typical_p: rank the kept by |l - mean of l|, smaller first; keep a token iff the mass of the
//          tokens ranked before it is < typical_p of the total (the first is always kept; ties kept)
//   token = argmax(l + noise) over the kept, lowest id on ties
//
// -log p of a token differs from the entropy of the kept by what l differs from its mean, so typical_p
// is locally typical sampling (Meister et al., "Locally typical sampling"; transformers,
// TypicalLogitsWarper). The mean is over d = max - l: the sum of mass * d over the sum of mass, both
// sums of integers.
//
// noise = -log(-log1p(-w)), w = (x + 0.5) * 2^-32, where x is lane (token % 4) of Philox4x32-10 with
// key = seed and counter {token / 4, position, purpose, round}. position is that of the drawn token;
// purpose and round are 0 for the target's draw.
//
// Greedy rows: argmax of the logits, lowest id on ties. A row with a NaN or +inf, without a finite
// logit, or whose largest l overflows, draws token -1: the caller fails only that request.
//
// The scores of a row are what the draw takes the largest of: l + noise of the kept tokens, minus
// infinity for the others; the logits of a greedy row; minus infinity for a row that draws -1.
//
// The law of a row is the distribution that its token is drawn from: exp(law - lse). law = l - the
// largest l for the kept tokens, minus infinity for the others; of a greedy row only the drawn token
// is kept. lse = log of the kept mass. Both are minus infinity for a row that draws -1.
//
// Sources: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (Philox); Gumbel-max.
#pragma once

#include "specd/kernels/types.h"

namespace specd::kernels {

struct DrawRow {
  float temperature = 1;  // > 0 unless greedy
  float top_p = 1;        // 1 = off
  float min_p = 0;        // 0 = off
  float typical_p = 1;    // 1 = off
  int32_t top_k = 0;      // 0 = off
  int32_t position = 0;
  uint32_t purpose = 0, round = 0;
  uint64_t seed = 0;
  bool greedy = true;
  bool law = false;  // the law of the row is wanted
};

// Strides are in elements from one row to the next; 0 = dense. `vocab` may be smaller than a row;
// ids at or above it are never drawn.
struct DrawArgs {
  const float* logits = nullptr;  // [n_rows, vocab]
  const DrawRow* row = nullptr;   // [n_rows]
  int32_t* token = nullptr;       // out [n_rows], or null
  int32_t n_rows = 0;
  int32_t vocab = 0;
  int32_t logits_stride = 0;
  int32_t token_stride = 0;
  // For drafters, each may be null:
  const int32_t* sequence =
      nullptr;              // [n_rows]: `row` is [n_sequences], this row's is row[sequence]
  int32_t n_sequences = 0;  // a row of another sequence draws -1
  const int32_t* position = nullptr;  // [n_sequences]: the row's position is this + position_offset
  int32_t position_offset = 0;
  const int32_t* id =
      nullptr;             // [vocab]: the ids that columns have in the noise; `token` is a column
  float* score = nullptr;  // out [n_rows, vocab]
  int32_t score_stride = 0;
  // The law of the rows that want it; other rows of both are not written, nor those of another
  // sequence. `law` may be `logits` with its stride. Each may be null.
  float* law = nullptr;  // out [n_rows, vocab]
  float* lse = nullptr;  // out [n_rows]
  int32_t law_stride = 0;
};

// How a row's logits change for the tokens of its text. The text is the `seen` tokens, each once
// with the number of times it was generated (0: only in the prompt), followed by the tokens of the
// rows `path`, all generated. With c = number of times t was generated in all of it:
//   l = l > 0 ? l / repetition : l * repetition
//   l = (l - frequency * c) - (c > 0 ? presence : 0)
// Then l = l + add for each token of the row's range in `bias`; minus infinity when `add` is, so that
// the token is never drawn.
// Sources: transformers, RepetitionPenaltyLogitsProcessor; the OpenAI API, frequency, presence and
// logit_bias.
struct PenaltyRow {
  float repetition = 1;  // > 0
  float frequency = 0;
  float presence = 0;
  int32_t seen_begin = 0, seen_end = 0;  // range in `seen`
  int32_t path_begin = 0, path_end = 0;  // range in `path`
  int32_t bias_begin = 0, bias_end = 0;  // range in `bias`, each token once
};
struct PenaltySeen {
  int32_t token = 0;  // in [0, vocab)
  int32_t count = 0;
};
struct TokenBias {
  int32_t token = 0;  // in [0, vocab)
  float add = 0;
};
struct PenalizeArgs {
  float* logits = nullptr;          // [n_rows, vocab], in and out
  const PenaltyRow* row = nullptr;  // [n_rows]
  const PenaltySeen* seen = nullptr;
  const int32_t* path = nullptr;   // indices of rows in `token`
  const int32_t* token = nullptr;  // tokens of the rows of a forward
  const TokenBias* bias = nullptr;
  int32_t n_rows = 0;
  int32_t vocab = 0;
};

// The k most likely tokens of each row, most likely first, lower id first on ties. A NaN counts as
// minus infinity.
struct TopKArgs {
  const float* logits = nullptr;  // [n_rows, vocab]
  int32_t* token = nullptr;       // out [n_rows, k]
  int32_t n_rows = 0;
  int32_t vocab = 0;
  int32_t k = 0;  // 1..vocab
  int32_t logits_stride = 0;
  int32_t token_stride = 0;
};

// out[r][i] = logits[r][token[r][i]] - log(sum(exp(logits[r]))), with the sum in float64. Writes
// nothing for a token outside [0, vocab).
struct LogProbArgs {
  const float* logits = nullptr;   // [n_rows, vocab]
  const int32_t* token = nullptr;  // [n_rows, k]
  float* out = nullptr;            // [n_rows, k]
  int32_t n_rows = 0;
  int32_t vocab = 0;
  int32_t k = 1;
  int32_t logits_stride = 0;
  int32_t token_stride = 0;
  int32_t out_stride = 0;
};

// out[r][t]: the noise that the target's draw adds to token t.
struct DrawNoiseArgs {
  const uint64_t* seed = nullptr;     // [n_rows]
  const int32_t* position = nullptr;  // [n_rows]
  float* out = nullptr;               // [n_rows, vocab]
  int32_t n_rows = 0;
  int32_t vocab = 0;
};

// out[r][lane]: a number in [0, 1), the upper 24 bits of lane (lane % 4) of Philox4x32-10 with the key
// row[sequence[r]].seed and the counter {lane / 4, position[r], purpose, 0}. NaN where there is no such
// sequence.
struct UniformArgs {
  const DrawRow* row = nullptr;       // [n_sequences]
  const int32_t* sequence = nullptr;  // [n_rows]
  const int32_t* position = nullptr;  // [n_rows]
  float* out = nullptr;               // [n_rows, lanes]
  uint32_t purpose = 0;
  int32_t n_rows = 0;
  int32_t n_sequences = 0;
  int32_t lanes = 0;
  int64_t out_stride = 0;  // 0 = dense
};

// One block of Philox4x32-10. counter and out have 4 words. Always inlined, so that code compiled
// for one instruction set leaves no copy to which other code could be linked.
__attribute__((always_inline)) inline void philox4x32(uint64_t key, const uint32_t counter[4],
                                                      uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0;
    const uint64_t b = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(b);
    c3 = static_cast<uint32_t>(a);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

// The numbers of one row, as UniformArgs says. Inlined for the same reason.
__attribute__((always_inline)) inline void uniform_row(uint64_t seed, int32_t position,
                                                       uint32_t purpose, float* out,
                                                       int64_t lanes) {
  for (int64_t lane = 0; lane < lanes; lane += 4) {
    const uint32_t counter[4] = {static_cast<uint32_t>(lane / 4), static_cast<uint32_t>(position),
                                 purpose, 0};
    uint32_t words[4];
    philox4x32(seed, counter, words);
    // A float has 24 bits of precision; values with more could round up to 1.
    for (int64_t k = 0; k < 4 && lane + k < lanes; ++k) {
      out[lane + k] = static_cast<float>(words[k] >> 8) * 0x1p-24f;
    }
  }
}

}  // namespace specd::kernels
