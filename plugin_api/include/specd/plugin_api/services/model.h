/* A second model beside the target, run by the host: the draft model of draft-target speculation.
 *
 * For every sequence of a batch and every specd_model, the host keeps a session: the KV of the
 * `kept` tokens at positions 0..kept-1, followed by the rows of the current round. Rows are
 * numbered from 0 in the order in which forward() received them. Row r is at position kept + its
 * depth; a child of the last kept token has depth 0. keep() ends the round: it adds some rows to
 * the kept tokens and drops the others. Keeping a chain costs no copy.
 *
 * A session is empty until its first forward(). It ends with its sequence or with close(). Between
 * two calls to the plugin the host may empty it to reclaim its pages: call length() before every
 * round and feed what is missing.
 *
 * follow() does all of this for drafters whose rounds guess the text: it keeps the prefix that the
 * session shares with the committed text and feeds the rest. It assumes that tokens kept by keep()
 * belong to the text.
 *
 * Whatever determines the shape of the work (offsets, parents, lengths) is host memory, because the
 * host plans pages and attention from it. Tokens and results are tensors, either all in host memory
 * or all on the granted device within one call. Device tensors are accessed in the order of
 * batch->stream, so drawn tokens can be fed back without waiting. With host tensors the call waits
 * for the stream, and results are ready when it returns.
 *
 * While propose() is being captured (SPECD_FEATURE_CAPTURE), only follow() and forward() without
 * parents, out_logits and out_law are allowed, on device tensors; other calls return
 * SPECD_E_PRECONDITION. When the captured work is replayed, the host recomputes for each of these
 * calls what depends on the new lengths. */
#ifndef SPECD_PLUGIN_API_SERVICES_MODEL_H
#define SPECD_PLUGIN_API_SERVICES_MODEL_H

#include <specd/plugin_api/abi_layout.h>
#include <specd/plugin_api/target_info.h>
#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPECD_SERVICE_MODEL "specd.host.model/1#" SPECD_MODEL_LAYOUT

/* One instance's handle of a model that the host has loaded. */
typedef struct specd_model specd_model;

/* Row r of sequence s is element row_offsets[s] <= r < row_offsets[s + 1] of every column. Outputs
 * belong to the rows listed in output_rows; each output may be NULL. Log-probabilities are those of
 * the unmodified logits, without temperature or truncation. V = vocab_size of info().
 *
 * token_at maps row r to its element of `token`, and output_at maps output i to its element (along
 * the first axis) of the outputs. With them the call works directly on the columns of a proposal.
 * NULL means r and i; the shapes then have exactly that length. */
typedef struct specd_forward_args { /* in */
  uint32_t struct_size;
  uint32_t n_rows;
  uint32_t n_outputs;
  /* 0: out_token is drawn with the noise of the target's draw. SPECD_PURPOSE_DRAFT (rng.h): with
   * noise of its own, which is new in every step and keyed by the position of the drawn token; rows
   * at the same position draw with the same noise. In propose() only. */
  uint32_t purpose;
  const uint32_t *row_offsets; /* host [n_seqs + 1], 0 to n_rows; a sequence may have no rows */
  /* host [n_rows]: an earlier row of the sequence's round, or -1 for the last kept token. NULL:
   * each row follows the one before it in the round, and the first follows the last kept token. */
  const int32_t *parent;
  /* host [n_outputs], increasing, < n_rows; NULL when n_outputs is 0 */
  const uint32_t *output_rows;
  const uint32_t *token_at;  /* host [n_rows], or NULL */
  const uint32_t *output_at; /* host [n_outputs], increasing, or NULL */
  const specd_tensor *token; /* [n_rows] int32 */
  /* [n_outputs] int32: the token that the target's draw would pick from this model's logits, with
   * the sequence's sampling parameters and the noise of the position after the row. A model that
   * agrees with the target thus draws what the target will draw. When greedy, the most likely
   * token. -1 when the sequence failed or its logits are not finite; the other outputs are then
   * undefined. With a purpose other than 0 only the noise differs. */
  const specd_tensor *out_token;
  const specd_tensor *out_logprob; /* [n_outputs] float32, of out_token, which must not be NULL */
  /* [n_outputs, k] int32, most likely first; k in 1..V, at most 64 where models run on a device. */
  const specd_tensor *out_topk_token;
  const specd_tensor *out_topk_logprob; /* [n_outputs, k] float32, needs out_topk_token */
  const specd_tensor *out_logits;       /* [n_outputs, V] float32; host memory only */
  /* The distribution that out_token is drawn from, as q of specd_proposal: exp(out_law - out_lse),
   * minus infinity for what cannot be drawn, at temperature 0 for all but one token. Host memory
   * only; both or none, with out_token and without out_logprob.
   *   out_law  [n_outputs, width] float32, width >= V; columns from V on become minus infinity
   *   out_lse  [n_outputs] float32 */
  const specd_tensor *out_law;
  const specd_tensor *out_lse;
  /* out, host [n_seqs]. A sequence that fails is unchanged; the others continue.
   *   SPECD_E_UNSUPPORTED  a position beyond the model's context, or a token of the target's
   *                        vocabulary that the model's lacks; permanent for this text
   *   SPECD_E_EXHAUSTED    no pages; may work later
   *   SPECD_E_INVALID      a token or parent out of range, or 1024 rows or more between the last
   *                        kept token and a row that is not on the round's first chain */
  specd_status *seq_status;
} specd_forward_args;

typedef struct specd_models {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] `name` is that of an item of draft_models in the daemon's configuration. Returns
   * SPECD_E_PRECONDITION, with the reason in report(), when there is no such model or it cannot be
   * used with the target. Models still open at destroy() are closed. */
  specd_status (*open)(const specd_host *, specd_owner *, const char *name,
                       specd_model **out) SPECD_NOEXCEPT;
  /* [control] vocab_size counts the ids below the target's vocabulary; no other id is ever drawn.
   * Strings live until close(). */
  specd_status (*info)(const specd_host *, specd_owner *, specd_model *,
                       specd_target_info *out) SPECD_NOEXCEPT;
  void (*close)(const specd_host *, specd_owner *, specd_model *) SPECD_NOEXCEPT; /* [control] */
  /* [step] Number of kept tokens of every sequence of the batch; out is host [n_seqs]. Without
   * memory it answers SPECD_E_EXHAUSTED, as forward() does. */
  specd_status (*length)(const specd_host *, specd_call *, specd_model *,
                         uint32_t *out) SPECD_NOEXCEPT;
  /* [step] Computes rows for sequences of the batch. When the call itself fails, all sessions are
   * unchanged, except after SPECD_E_EXHAUSTED and SPECD_E_DEVICE: sessions of the batch may then be
   * empty, as if their pages had been reclaimed. */
  specd_status (*forward)(const specd_host *, specd_call *, specd_model *,
                          const specd_forward_args *) SPECD_NOEXCEPT;
  /* [step] In propose() only. For every sequence of the batch: ends the round, keeps the prefix
   * that the session shares with the committed text, feeds the missing tokens (always at least the
   * last committed one) and keeps them.
   *
   * Arguments are those of forward(), except: n_rows limits the total rows of sequences that miss
   * more than two tokens; output_rows lists sequences, and their outputs belong to the last
   * committed token; row_offsets, parent, token and token_at are NULL. Where the limit is reached
   * first, seq_status is SPECD_E_DEADLINE and out_token is -1; the next step continues. A failing
   * sequence has ended its round too. */
  specd_status (*follow)(const specd_host *, specd_call *, specd_model *,
                         const specd_forward_args *) SPECD_NOEXCEPT;
  /* [step] Ends the round of every sequence of the batch. Keeps the first `kept[s]` kept tokens,
   * followed by rows [row_offsets[s], row_offsets[s + 1]) of `rows`: a path in the round that
   * starts at a child of the last kept token. kept[s] is at most length(), and equal to it when
   * rows follow. All arrays are host memory; row_offsets NULL = no rows. An error changes nothing,
   * except SPECD_E_EXHAUSTED and SPECD_E_DEVICE, as for forward(). */
  specd_status (*keep)(const specd_host *, specd_call *, specd_model *, const uint32_t *kept,
                       const uint32_t *row_offsets, const uint32_t *rows) SPECD_NOEXCEPT;
} specd_models;

#ifdef __cplusplus
}
#endif
#endif
