// Which part of a model one of several ranks holds (tensor parallel).
//
//   heads with their q, and their k and v   neighboring ones; a kv head on several ranks where there are
//                                           fewer of them than ranks
//   columns of gate and up                  neighboring ones
//   o_proj, down_proj                       the k of these heads and columns; the ranks exchange the sums of
//                                           segments, see kernels/matmul.h
//   output head                             a part of the vocabulary
//   embedding, norms, other biases          all, so that each rank has the whole residual stream
#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "core/model/model_config.h"
#include "specd/kernels/matmul.h"

namespace specd {

// Number of segments of k whose results are added in o_proj and down_proj (law 1). It is fixed, so
// that ranks exchange whole segments.
inline constexpr int32_t kRowParallelSegments = 8;

struct Split {
  int32_t rank = 0;
  int32_t n_ranks = 1;
  bool operator==(const Split&) const = default;
};

// [begin, begin + n)
struct Range {
  int32_t begin = 0, n = 0;
};

// Whether this many ranks can share the model. `rule`: of the weights' type. The error is
// kInvalidArgument without a field.
Status check_split(const ModelConfig& config, int32_t n_ranks, const kernels::SplitRule& rule);

// REQUIRES check_split().
Range heads_of(const ModelConfig& config, Split split);
Range kv_heads_of(const ModelConfig& config, Split split);
Range columns_of(const ModelConfig& config, Split split);  // of gate and up
// The output head is cut in parts of vocab_part() tokens; the last one may be shorter, or empty.
int32_t vocab_part(const ModelConfig& config, int32_t n_ranks);
Range vocab_of(const ModelConfig& config, Split split);

// The configuration with the heads and columns of a rank, for its attention and its KV.
ModelConfig part_of(const ModelConfig& config, Split split);

}  // namespace specd
