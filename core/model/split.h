// Which part of a model one of several ranks holds. The layers are cut into stages (pipeline parallel), and
// the ranks of a stage share its layers (tensor parallel):
//
//   heads with their q, and their k and v   neighboring ones; a kv head on several ranks where there are
//                                           fewer of them than ranks
//   columns of gate and up                  neighboring ones
//   o_proj, down_proj                       the k of these heads and columns; the ranks exchange the sums of
//                                           segments, see kernels/matmul.h. Of codes neighboring outputs with
//                                           all k; the ranks exchange x and the outputs
//   output head                             a part of the vocabulary, in the last stage
//   norms, other biases                     all, so that each rank has the whole residual stream
//   embedding                               all of it where it is read in place from the file, on CPUs; on
//                                           devices neighboring columns, in the first stage
//
// Rank 0, the lead, is in the last stage, where the logits are: of 2 stages of 4, ranks 0 to 3 are the last
// stage and ranks 4 to 7 the first.
#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "core/device/collective.h"
#include "core/model/model_config.h"

namespace specd {

// Number of segments of k whose results are added in o_proj and down_proj (law 1). It is fixed, so
// that ranks exchange whole segments.
inline constexpr int32_t kRowParallelSegments = 8;

struct Split {
  int32_t rank = 0, n_ranks = 1;    // of a stage
  int32_t stage = 0, n_stages = 1;  // in the order of the layers

  bool is_first() const { return stage == 0; }
  bool is_last() const { return stage + 1 == n_stages; }
  // The number among all ranks.
  int32_t world_rank() const { return (n_stages - 1 - stage) * n_ranks + rank; }
  bool operator==(const Split&) const = default;
};
// REQUIRES world_rank < n_ranks * n_stages.
constexpr Split split_of(int32_t world_rank, int32_t n_ranks, int32_t n_stages) {
  return {.rank = world_rank % n_ranks,
          .n_ranks = n_ranks,
          .stage = n_stages - 1 - world_rank / n_ranks,
          .n_stages = n_stages};
}

// A rank's ends of the groups that share a model. They must outlive the model.
struct RankLinks {
  Collective* all = nullptr;    // null = this rank has the whole model
  Collective* stage = nullptr;  // the ranks of its stage
  // The same groups between the memory of the ranks' devices; null = that is host memory.
  Exchanges* tensors_all = nullptr;
  Exchanges* tensors_stage = nullptr;
  Split split = {};
};

// [begin, begin + n)
struct Range {
  int32_t begin = 0, n = 0;
};

// Whether this many ranks can share a layer of the model. `grain`: see checkpoint.h. The
// error is kInvalidArgument without a field.
Status check_split(const ModelConfig& config, int32_t n_ranks, int32_t grain);
// Whether it has so many stages.
Status check_stages(const ModelConfig& config, int32_t n_stages);

// REQUIRES that the split is possible.
Range layers_of(const ModelConfig& config, Split split);
// The stage that has the state `point`, as in plugin_api/drafter.h.
int32_t stage_of_tap(const ModelConfig& config, int32_t n_stages, uint32_t point);
Range heads_of(const ModelConfig& config, Split split);
Range kv_heads_of(const ModelConfig& config, Split split);
Range columns_of(const ModelConfig& config, Split split);  // of gate and up
// The output head is cut in parts of vocab_part() tokens; the last one may be shorter, or empty.
int32_t vocab_part(const ModelConfig& config, int32_t n_ranks);
Range vocab_of(const ModelConfig& config, Split split);
// The same of the columns of the embedding, on devices.
int32_t embedding_part(const ModelConfig& config, int32_t n_ranks);
Range embedding_of(const ModelConfig& config, Split split);

// The configuration with the layers, heads and columns of a rank, for its attention and its KV.
ModelConfig part_of(const ModelConfig& config, Split split);

}  // namespace specd
