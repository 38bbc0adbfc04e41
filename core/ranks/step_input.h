// What a step computes, as plain data: rows of the forward, and draws from their logits. Only
// numbers; no sequence, request, route or plugin. It can be recorded and computed again by any
// worker whose cache has the same KV.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/model/transformer.h"
#include "specd/kernels/draw.h"

namespace specd {

// Tokens that only the device knows: row to[i] gets element from[i] of the token column of part
// `part` (stream_part.h), or token 0 when it is not in the vocabulary.
struct TokenPick {
  int32_t part = 0;
  std::vector<int32_t> from;
  std::vector<int32_t> to;  // increasing
};

struct StepInput {
  ForwardRows rows;  // logits_rows: one draw each; tap_rows: their taps are returned
  std::vector<kernels::DrawRow> draws;           // [logits rows]
  int32_t top_k = 0;                             // most likely tokens of every logits row
  bool taps_to_host = false;                     // taps are also wanted in host memory
  std::vector<int32_t> law_to_host;              // so are the laws of these logits rows
  std::vector<int32_t> raw_to_host;              // and the logits of these, as the model gives them
  std::vector<kernels::PenaltyRow> penalty_row;  // [logits rows], or empty: no penalties
  std::vector<kernels::PenaltySeen> penalty_seen;  // of all penalized texts
  std::vector<int32_t> penalty_path;               // rows
  std::vector<kernels::TokenBias> penalty_bias;
  std::vector<TokenPick> picks;  // each part at most once

  void clear();
};

// The limits of a worker.
struct StepLimits {
  int32_t rows_max = 0, logits_rows_max = 0;
  int32_t vocab_size = 0;
  int32_t n_pages = 0;
  int32_t positions_end = 0;  // all positions, also of draft nodes, are below
};

// Empty when a worker within these limits can compute the input, else the first number that is
// wrong: "rows.slot[3] is 70, expected 0..63". `part_tokens`: for each part the size of its token
// column. Linear time.
std::string step_input_fault(const StepInput& input, const StepLimits& limits,
                             std::span<const size_t> part_tokens = {});

}  // namespace specd
