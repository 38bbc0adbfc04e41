/* Paged KV for layers that the plugin computes itself, in the pages of the target's cache, or in pages
 * of its own where a rank has only a part of those.
 *
 * For every sequence of a batch and every specd_kv, the host keeps a session as in model/1: K and V
 * of the `kept` rows at positions 0..kept-1, followed by the rows of the current round. Row r of the
 * round is at position kept + its depth; a child of the last kept row has depth 0.
 *
 *   rows() -> in each layer: q, k, v by ops/1 -> append() -> attend() -> the rest by ops/1 -> keep()
 *
 * Positions count from the first row that the session has kept, not from the start of the text. So a
 * sequence that begins late, or whose pages the host has reclaimed between two calls, is only
 * shorter: call length() where it matters. A session ends with its sequence or with close().
 *
 * What determines the shape of the work (offsets, parents) is host memory, as in model/1. Tensors are
 * in the granted memory, in stream order. rows(), append(), attend() and view() may be captured. */
#ifndef SPECD_PLUGIN_API_SERVICES_KV_H
#define SPECD_PLUGIN_API_SERVICES_KV_H

#include <specd/plugin_api/abi_layout.h>
#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPECD_SERVICE_KV "specd.host.kv/1#" SPECD_KV_LAYOUT

typedef struct specd_kv specd_kv;

typedef struct specd_kv_open_args { /* in */
  uint32_t struct_size;
  uint32_t n_layers;      /* together at most a page of the target's cache holds for its tokens */
  uint32_t n_kv_heads;    /* at most 1024 */
  uint32_t head_dim;      /* a multiple of 16, at most 256 */
  uint32_t rows_max;      /* of one call of rows(); at most 65535 */
  uint32_t positions_max; /* of a session */
  /* host [head_dim / 2]: a row at position p is rotated by p * inv_freq[i], in halves as Llama does
   * it; NULL = not rotated. Scaled rotations are other frequencies. */
  const float *inv_freq;
  double rope_scale; /* factor of cos and sin; 1 without scaling */
} specd_kv_open_args;

/* flags of rows(): a row sees all rows of its sequence in this call, also those behind it. Without
 * parents only. */
enum { SPECD_KV_BLOCK = 1u << 0 };

/* Row r of sequence s: row_offsets[s] <= r < row_offsets[s + 1], in every tensor of the calls that
 * follow. A row of a sequence that fails stays in the tensors: its K and V are not stored, and it
 * attends to nothing, with zeros as result. */
typedef struct specd_kv_rows_args { /* in */
  uint32_t struct_size;
  uint32_t flags; /* SPECD_KV_* */
  uint32_t n_rows;
  uint32_t n_queries;
  const uint32_t *row_offsets; /* host [n_seqs + 1], 0 to n_rows; a sequence may have no rows */
  /* host [n_rows]: an earlier row of the sequence's round, or -1 for the last kept row. NULL: each
   * row follows the one before it in the round, and the first follows the last kept row. */
  const int32_t *parent;
  const uint32_t *query_rows; /* host [n_queries], increasing: for SPECD_ATTEND_QUERIES */
  /* out, host [n_seqs]. A sequence that fails is unchanged; the others continue.
   *   SPECD_E_UNSUPPORTED  a position beyond positions_max
   *   SPECD_E_EXHAUSTED    no pages; may work later
   *   SPECD_E_INVALID      a parent out of range, 1024 rows or more between the last kept row and a
   *                        row that is not on the round's first chain, or a round of more than
   *                        positions_max + 1024 rows */
  specd_status *seq_status;
} specd_kv_rows_args;

typedef struct specd_kv_append_args { /* in */
  uint32_t struct_size;
  uint32_t layer;
  uint32_t n_heads; /* query heads in qkv; may be 0 */
  uint32_t reserved0;
  double norm_eps;
  /* [n_rows, (n_heads + 2 n_kv_heads) * head_dim] float32: q, k and v of each row. q and k are
   * normalized per head and rotated in place, then k and v are stored. */
  const specd_tensor *qkv;
  const specd_tensor *q_norm; /* [head_dim] float32, or both NULL: no norm */
  const specd_tensor *k_norm;
} specd_kv_append_args;

enum {
  SPECD_ATTEND_ALL = 0,    /* every row of rows() attends */
  SPECD_ATTEND_QUERIES = 1 /* row i of the tensors is query_rows[i] */
};

typedef struct specd_kv_attend_args { /* in */
  uint32_t struct_size;
  uint32_t layer;
  uint32_t n_heads; /* a multiple of n_kv_heads, at most 4096 */
  uint32_t queries; /* SPECD_ATTEND_* */
  uint32_t window;  /* a row sees this many positions up to its own, in a block up to the block's
                     * last; 0 = all */
  uint32_t reserved0;
  double scale;            /* of the scores */
  const specd_tensor *qkv; /* rows as append() left them */
  const specd_tensor *out; /* [rows, n_heads * head_dim] float32 */
} specd_kv_attend_args;

/* For kernels of the plugin's own: one layer, and the columns of the last rows(), in the granted
 * memory. Valid until the next rows(), keep() or the end of the call to the plugin; in a graph as well.
 * view() returns SPECD_E_UNSUPPORTED for a cache with 8 bits a number, which append() and attend() can use.
 *
 * Page p of K is [n_kv_heads, head_dim, page_tokens] at k + p * page_stride elements, of V
 * [n_kv_heads, page_tokens, head_dim]; slot = page * page_tokens + offset. Row r sees the positions
 * up to last[r]. Position p < span[r] is at offset p % page_tokens of page pages[table[r] + p /
 * page_tokens]; position span[r] + i is in slot tail[tail_begin[r] + i]. */
typedef struct specd_kv_view {
  uint32_t struct_size;
  uint32_t page_tokens;
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t reserved0;
  uint32_t n_rows;
  uint64_t page_stride;
  void *k;
  void *v;
  const int32_t *position; /* [n_rows]; of a failed sequence -1, as last and slot */
  const int32_t *slot;     /* [n_rows] */
  const int32_t *last;     /* [n_rows] */
  const int32_t *span;     /* [n_rows] */
  const int32_t *table;    /* [n_rows] */
  const int32_t *pages;
  const int32_t *tail_begin; /* [n_rows] */
  const int32_t *tail;
} specd_kv_view;

typedef struct specd_kv_api {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control & active] Elements have the type of the target's cache. Counts rows_max * head_dim
   * floats against the quota; pages count against the target's cache. Returns SPECD_E_UNSUPPORTED
   * when a whole page is too small for the layers, or when the plugin does not work where the
   * target's cache is, and SPECD_E_EXHAUSTED without memory. KV still open at destroy() is closed. */
  specd_status (*open)(const specd_host *, specd_owner *, const specd_kv_open_args *,
                       specd_kv **out) SPECD_NOEXCEPT;
  void (*close)(const specd_host *, specd_owner *, specd_kv *) SPECD_NOEXCEPT; /* [control] */
  /* [step] Number of kept rows of every sequence of the batch; out is host [n_seqs]. They stay kept
   * until the end of the call to the plugin. */
  specd_status (*length)(const specd_host *, specd_call *, specd_kv *,
                         uint32_t *out) SPECD_NOEXCEPT;
  /* [step] Adds rows to the rounds of the batch's sequences. The following calls are about them,
   * until the next rows(), keep() or the end of the call to the plugin. When this, length() or keep()
   * returns SPECD_E_EXHAUSTED or SPECD_E_DEVICE, sessions of the batch may be empty, as if their
   * pages had been reclaimed. */
  specd_status (*rows)(const specd_host *, specd_call *, specd_kv *,
                       const specd_kv_rows_args *) SPECD_NOEXCEPT;
  specd_status (*append)(const specd_host *, specd_call *, specd_kv *,
                         const specd_kv_append_args *) SPECD_NOEXCEPT; /* [step] */
  specd_status (*attend)(const specd_host *, specd_call *, specd_kv *,
                         const specd_kv_attend_args *) SPECD_NOEXCEPT; /* [step] */
  /* [step] As in model/1: ends the round of every sequence of the batch, and keeps the first
   * `kept[s]` kept rows, followed by rows [row_offsets[s], row_offsets[s + 1]) of `rows`: a path in
   * the round that starts at a child of the last kept row. */
  specd_status (*keep)(const specd_host *, specd_call *, specd_kv *, const uint32_t *kept,
                       const uint32_t *row_offsets, const uint32_t *rows) SPECD_NOEXCEPT;
  specd_status (*view)(const specd_host *, specd_call *, specd_kv *, uint32_t layer,
                       specd_kv_view *out) SPECD_NOEXCEPT; /* [step] */
} specd_kv_api;

#ifdef __cplusplus
}
#endif
#endif
