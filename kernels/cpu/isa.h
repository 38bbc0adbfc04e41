// What one instruction set implements: every op as the part done by one thread. The parts of a call
// write disjoint outputs, and no result depends on `parts`.
//
// The files compiled per instruction set define these without threads or streams; cpu_ops.cc
// spreads the parts over the pool.
#pragma once

#include "specd/kernels/cpu.h"

namespace specd::kernels {

// Lane functions over arrays, to test the building blocks of the ops.
struct LaneArgs {
  enum class Function { kExp, kLog, kWiden, kNarrow } function = Function::kExp;
  DType dtype = DType::kF32;  // the narrow type of kWiden and kNarrow
  const void* in = nullptr;   // [n]
  void* out = nullptr;        // [n]
  int32_t n = 0;              // a multiple of 16
};

struct IsaOps {
  void (*pack)(const PackArgs&, int part, int parts);
  void (*embed)(const EmbedArgs&, int part, int parts);
  void (*rmsnorm)(const RmsNormArgs&, int part, int parts);
  void (*head_norm)(const HeadNormArgs&, int part, int parts);
  void (*matmul)(const MatmulArgs&, int part, int parts);
  void (*rope_append)(const RopeAppendArgs&, int part, int parts);
  void (*attention)(const AttentionArgs&, int part, int parts);
  void (*map)(const MapArgs&, int part, int parts);
  void (*draw)(const DrawArgs&, int part, int parts);
  void (*draw_noise)(const DrawNoiseArgs&, int part, int parts);
  void (*lanes)(const LaneArgs&, int part, int parts);
  // Of matrices of codes. A matmul is round_rows(), then one of the last two; with tiles, see below.
  void (*pack_codes)(const PackArgs&, int part, int parts);
  void (*round_rows)(const MatmulArgs&, int part, int parts);
  void (*multiply_integers)(const MatmulArgs&, int part, int parts);
  void (*multiply_float8)(const MatmulArgs&, int part, int parts);
};

#define SPECD_DECLARE_ISA(isa)                                    \
  namespace isa {                                                 \
  void pack(const PackArgs&, int part, int parts);                \
  void embed(const EmbedArgs&, int part, int parts);              \
  void rmsnorm(const RmsNormArgs&, int part, int parts);          \
  void head_norm(const HeadNormArgs&, int part, int parts);       \
  void matmul(const MatmulArgs&, int part, int parts);            \
  void rope_append(const RopeAppendArgs&, int part, int parts);   \
  void attention(const AttentionArgs&, int part, int parts);      \
  void map(const MapArgs&, int part, int parts);                  \
  void draw(const DrawArgs&, int part, int parts);                \
  void draw_noise(const DrawNoiseArgs&, int part, int parts);     \
  void lanes(const LaneArgs&, int part, int parts);               \
  void pack_codes(const PackArgs&, int part, int parts);          \
  void round_rows(const MatmulArgs&, int part, int parts);        \
  void multiply_integers(const MatmulArgs&, int part, int parts); \
  void multiply_float8(const MatmulArgs&, int part, int parts);   \
  }
SPECD_DECLARE_ISA(scalar)
SPECD_DECLARE_ISA(avx2)
SPECD_DECLARE_ISA(avx512)
#undef SPECD_DECLARE_ISA
// bfloat16 times bfloat16, for weights of that type; see matmul.cc.
namespace avx512_bf16 {
void pack(const PackArgs&, int part, int parts);
void matmul(const MatmulArgs&, int part, int parts);
}  // namespace avx512_bf16
// Products of integers and their sums in one instruction; see integers.cc.
namespace avx512_vnni {
void multiply_integers(const MatmulArgs&, int part, int parts);
}  // namespace avx512_vnni
bool vnni_available();
// Sixteen rows of x and columns at once; see amx.cc. Of x in 16 bits it takes
// what avx512::round_rows_to_bytes() writes, and not what round_rows() does.
namespace avx512 {
void round_rows_to_bytes(const MatmulArgs&, int part, int parts);
}  // namespace avx512
namespace avx512_amx {
// Whether tiles fit the runs of a matrix, and are faster for so many rows.
bool takes(const CodeOrder&, int32_t n_rows);
void multiply_integers(const MatmulArgs&, int part, int parts);
}  // namespace avx512_amx
// Asks the operating system for the tiles, once.
bool amx_available();

// Copies and scalar libm: one implementation for every instruction set.
void rope_table_part(const RopeTableArgs&, int part, int parts);
void add_segments_part(const AddSegmentsArgs&, int part, int parts);
void copy_rows_part(const CopyRowsArgs&, int part, int parts);
void kv_move_part(const KvMoveArgs&, int part, int parts);
void penalize_part(const PenalizeArgs&, int part, int parts);
void uniform_part(const UniformArgs&, int part, int parts);
void top_k_part(const TopKArgs&, int part, int parts);
void log_prob_part(const LogProbArgs&, int part, int parts);
void pick_tokens_part(const PickTokensArgs&, int part, int parts);
void clamp_nodes_part(const ClampNodesArgs&, int part, int parts);
void walk_tree_part(const WalkTreeArgs&, int part, int parts);

// The internal table of an available instruction set, for cpu_ops.cc and tests.
const IsaOps& isa_ops(Isa isa);

// Packed weights are padded to a multiple of this many output columns, the widest panel, so that
// their size is the same for every instruction set.
inline constexpr int32_t kPaddedColumns = 32;

// Resolves a stride; 0 means dense.
static inline int64_t stride_of(int32_t stride, int32_t width) {
  return stride == 0 ? width : stride;
}

// The range [begin, end) of `units` for one part.
struct Share {
  int64_t begin;
  int64_t end;
};
static inline Share share_of(int64_t units, int part, int parts) {
  return {units * part / parts, units * (part + 1) / parts};
}

}  // namespace specd::kernels
