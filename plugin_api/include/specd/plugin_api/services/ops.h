/* Operations on tensors in host or device memory. A plugin that uses only these works on every
 * device. The tensors of one call are either all in host memory or all on the granted device,
 * unless noted. On the device the work goes on batch->stream and may be captured; in host memory it
 * is done when the call returns. No result depends on the other rows of a call, except of linear()
 * under engine.numerics fast.
 *
 * Tensors are [rows, columns] or [rows], row-major. Columns are dense; rows may be any distance
 * apart where "strided" is noted, and are dense otherwise. Inputs and outputs do not overlap unless
 * noted. At most 65535 rows. */
#ifndef SPECD_PLUGIN_API_SERVICES_OPS_H
#define SPECD_PLUGIN_API_SERVICES_OPS_H

#include <specd/plugin_api/abi_layout.h>
#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPECD_SERVICE_OPS "specd.host.ops/1#" SPECD_OPS_LAYOUT

/* Trees as in drafter.h: [n] counts, [n, capacity] columns. */
typedef struct specd_walk_args { /* in */
  uint32_t struct_size;
  uint32_t skip_flags;         /* nodes with any of these SPECD_NODE_* are skipped */
  const specd_tensor *n_nodes; /* [n] int32 */
  const specd_tensor *token;   /* [n, capacity] int32 */
  const specd_tensor *parent;  /* [n, capacity] int32 */
  const specd_tensor *flags;   /* [n, capacity] int32, or NULL */
  const specd_tensor *wanted;  /* [n, capacity + 1] int32: below the root, then below each node */
  const specd_tensor *n_path;  /* out [n] int32 */
  const specd_tensor *path;    /* out [n, path_capacity] int32: nodes, root side first */
  const specd_tensor *last;    /* out [n] int32: the wanted token at the end of the path */
} specd_walk_args;

/* silu(x) = x / (1 + exp(-x)) */
enum {
  SPECD_MAP_ADD = 0,      /* x + y */
  SPECD_MAP_MUL = 1,      /* x * y */
  SPECD_MAP_SILU = 2,     /* silu(x); y is NULL */
  SPECD_MAP_SILU_ADD = 3, /* silu(x) + y */
  SPECD_MAP_SILU_MUL = 4  /* silu(x) * y */
};

/* What the target's draw would make of these logits: with the sampling parameters of a row's sequence
 * and the target's noise at the position of the token that follows the row. */
typedef struct specd_draw_args { /* in */
  uint32_t struct_size;
  uint32_t position_offset;      /* a row's token is at position[seq_index] + this */
  const specd_tensor *logits;    /* [n, width] float32 */
  const specd_tensor *seq_index; /* [n] int32: the row's sequence in the batch */
  const specd_tensor *position;  /* [n_seqs] int32, such as root_position */
  /* [width] int32: the token id of each column, which selects its noise; NULL = the column's number */
  const specd_tensor *token_id;
  /* out [n] int32: the column drawn; -1 when the logits are not finite or there is no such sequence.
   * NULL = not wanted. */
  const specd_tensor *out_index;
  /* out [n, width] float32: what the draw takes the largest of. Of a greedy row its logits; else
   * logits / temperature + noise for what top_k, top_p, min_p and typical_p leave, minus infinity
   * elsewhere and in rows that draw -1. NULL = not wanted. */
  const specd_tensor *out_score;
} specd_draw_args;

typedef struct specd_ops { /* [step] all functions */
  uint32_t struct_size;
  uint32_t reserved0;
  /* Walks down from the root: at each point to the first child whose token is the wanted one, until
   * there is none or the path is full. */
  specd_status (*walk)(const specd_host *, specd_call *, const specd_walk_args *) SPECD_NOEXCEPT;
  /* out = x * matrix^T + bias. x [n, n_in], out [n, n_out] float32; bias [n_out] float32 or NULL. */
  specd_status (*linear)(const specd_host *, specd_call *, const specd_matrix *,
                         const specd_tensor *x, const specd_tensor *bias,
                         const specd_tensor *out) SPECD_NOEXCEPT;
  /* out[r] = table[token[r]] as float32, zeros for a token without a row. table [vocab, n] float32,
   * float16 or bfloat16, dense, in host memory at any alignment; token [n_rows] int32; out [n_rows, n]. */
  specd_status (*embed)(const specd_host *, specd_call *, const specd_tensor *table,
                        const specd_tensor *token, const specd_tensor *out) SPECD_NOEXCEPT;
  /* out = x / sqrt(mean(x^2) + eps) * weight. x, out [n, width], weight [width] float32. */
  specd_status (*rmsnorm)(const specd_host *, specd_call *, const specd_tensor *x,
                          const specd_tensor *weight, double eps,
                          const specd_tensor *out) SPECD_NOEXCEPT;
  /* out = SPECD_MAP_*(x, y). float32 [n, width], all strided; y may be [width], the same for every
   * row. out may be x or y. */
  specd_status (*map)(const specd_host *, specd_call *, uint32_t map, const specd_tensor *x,
                      const specd_tensor *y, const specd_tensor *out) SPECD_NOEXCEPT;
  /* to[to_row[i]] = from[from_row[i]]: gathers, scatters, joins columns, looks up tables. from, to
   * [.., width] float32 or int32, both alike, strided. from_row, to_row [n] int32, or NULL = i; with
   * both NULL n is the number of rows of `from`. A row that is not there, such as -1, is skipped.
   * No row may be written twice. With `to` on the device and both NULL, `from` may be in host memory,
   * dense: its values are taken before the call returns, so the call must not be captured. */
  specd_status (*copy)(const specd_host *, specd_call *, const specd_tensor *from,
                       const specd_tensor *from_row, const specd_tensor *to,
                       const specd_tensor *to_row) SPECD_NOEXCEPT;
  /* The k largest of each row, lower index first among equals, and log(softmax) of them over the
   * whole row. logits [n, width] float32; out_index [n, k] int32; out_logprob [n, k] float32 or
   * NULL; both strided. k is at most 64. With logits on the device, the outputs may be in host
   * memory: the call then waits for the stream, and must not be captured. */
  specd_status (*topk)(const specd_host *, specd_call *, const specd_tensor *logits,
                       const specd_tensor *out_index,
                       const specd_tensor *out_logprob) SPECD_NOEXCEPT;
  specd_status (*draw)(const specd_host *, specd_call *, const specd_draw_args *) SPECD_NOEXCEPT;
} specd_ops;

#ifdef __cplusplus
}
#endif
#endif
