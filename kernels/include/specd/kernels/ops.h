// The contract of a backend: one table of ops, ordered by a stream. Every op is strict, except on a
// CUDA device in fast mode: the bits of a row do not depend on the other rows. Ops are asynchronous
// to the caller, except on the CPU, where they are complete on return. Arguments must live until the
// op is done. Ops allocate nothing.
#pragma once

#include "specd/kernels/attention.h"
#include "specd/kernels/draw.h"
#include "specd/kernels/elementwise.h"
#include "specd/kernels/matmul.h"
#include "specd/kernels/rmsnorm.h"
#include "specd/kernels/tree.h"
#include "specd/kernels/types.h"

namespace specd::kernels {

struct Ops {
  const char* name;  // "cpu-avx2"
  SplitRule (*split_rule)(DType);
  size_t (*packed_bytes)(DType, int32_t n_out, int32_t n_in);
  void (*pack)(Stream&, const PackArgs&);
  void (*embed)(Stream&, const EmbedArgs&);
  void (*rmsnorm)(Stream&, const RmsNormArgs&);
  void (*head_norm)(Stream&, const HeadNormArgs&);
  void (*matmul)(Stream&, const MatmulArgs&);
  void (*add_segments)(Stream&, const AddSegmentsArgs&);
  void (*rope_table)(Stream&, const RopeTableArgs&);
  void (*rope_append)(Stream&, const RopeAppendArgs&);
  void (*attention)(Stream&, const AttentionArgs&);
  void (*map)(Stream&, const MapArgs&);
  void (*copy_rows)(Stream&, const CopyRowsArgs&);
  void (*kv_move)(Stream&, const KvMoveArgs&);
  void (*penalize)(Stream&, const PenalizeArgs&);
  void (*draw)(Stream&, const DrawArgs&);
  void (*draw_noise)(Stream&, const DrawNoiseArgs&);
  void (*uniform)(Stream&, const UniformArgs&);
  void (*top_k)(Stream&, const TopKArgs&);
  void (*log_prob)(Stream&, const LogProbArgs&);
  void (*pick_tokens)(Stream&, const PickTokensArgs&);
  void (*clamp_nodes)(Stream&, const ClampNodesArgs&);
  void (*walk_tree)(Stream&, const WalkTreeArgs&);
  size_t (*packed_code_bytes)(const CodeOrder&, int32_t n_out);
};

}  // namespace specd::kernels
