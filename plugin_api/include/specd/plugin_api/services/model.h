/* A second model beside the target, run by the host: the draft model of draft-target speculation.
 *
 * Of every sequence of a batch the host keeps a session per specd_model: the KV of `kept` tokens at
 * positions 0..kept-1, and after them the rows of the current round, numbered from 0 in the order
 * in which forward() got them. Row r stands at position kept + its depth, where a child of the last
 * kept token has depth 0. keep() ends the round: some rows join the kept tokens, the others are
 * forgotten. A chain costs no copy.
 *
 * A session is empty until its first forward(). It dies with the sequence and with close(), and the
 * host may empty it between two calls to the plugin when it needs the pages: ask length() before
 * every round, and feed again what is missing.
 *
 * follow() does all of that for a drafter whose rounds guess the text itself: it keeps what the
 * session shares with the committed text and feeds the rest. What keep() has kept it takes for the text's.
 *
 * What decides the shape of the work (offsets, parents, lengths) is host memory, because the host
 * plans pages and attention from it. Tokens and results are tensors, all of one call in host memory
 * or all on the granted device. Those on the device are read and written in the order of
 * batch->stream, so that drawn tokens are fed back without waiting for them; host tensors are ready
 * when the call returns, which then waits for the stream.
 *
 * In a propose() that is being captured (SPECD_FEATURE_CAPTURE) only follow() and forward() without
 * parents and out_logits, on device tensors, are allowed; the others answer SPECD_E_PRECONDITION. When the
 * captured work runs again the host does for the same calls what the new lengths ask for. */
#ifndef SPECD_PLUGIN_API_SERVICES_MODEL_H
#define SPECD_PLUGIN_API_SERVICES_MODEL_H

#include <specd/plugin_api/target_info.h>
#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPECD_SERVICE_MODEL "specd.host.model/1"

typedef struct specd_model specd_model; /* one instance's use of a model that the host has loaded */

/* Row r of sequence s is element row_offsets[s] <= r < row_offsets[s + 1] of every column. Outputs
 * are of the rows listed in output_rows, any of them may be NULL; log-probabilities are those of
 * the model's logits as they are, without temperature or cuts. V = vocab_size of info().
 *
 * token_at and output_at say which element of `token` row r is and to which element (of the first
 * axis) of the outputs output i goes, so that a proposal's own columns serve: NULL means r and i,
 * and shapes that are just as long. */
typedef struct specd_forward_args { /* in */
  uint32_t struct_size;
  uint32_t n_rows;
  uint32_t n_outputs;
  uint32_t reserved0;
  const uint32_t *row_offsets; /* host [n_seqs + 1], from 0 to n_rows; a sequence may have no row */
  /* host [n_rows]: an earlier row of the sequence's round, or -1 = the last kept token. NULL: every
   * row follows the one before it in the round, the first one the last kept token. */
  const int32_t *parent;
  const uint32_t
      *output_rows;          /* host [n_outputs], increasing, < n_rows; NULL when n_outputs is 0 */
  const uint32_t *token_at;  /* host [n_rows], or NULL */
  const uint32_t *output_at; /* host [n_outputs], increasing, or NULL */
  const specd_tensor *token; /* [n_rows] int32 */
  /* [n_outputs] int32: what the target's own draw gives on this model's logits: the sequence's
   * sampling, and the noise of the target's draw at the position after the row (so a model that
   * agrees with the target draws what the target will draw); the most likely token when greedy. -1
   * when the sequence failed or its logits are not finite; the other outputs mean nothing then. */
  const specd_tensor *out_token;
  const specd_tensor *out_logprob; /* [n_outputs] float32, of out_token, which must be there */
  const specd_tensor
      *out_topk_token; /* [n_outputs, k] int32, most likely first, k in 1..V; at most 64
                                         where models run on a device */
  const specd_tensor *out_topk_logprob; /* [n_outputs, k] float32, needs out_topk_token */
  const specd_tensor *out_logits;       /* [n_outputs, V] float32; host memory only */
  /* out, host [n_seqs]. A sequence that fails is as it was before the call; the others go on.
   * SPECD_E_UNSUPPORTED: a position beyond the model's context, or a token that is in the target's
   * vocabulary and not in the model's: never works for this text. SPECD_E_EXHAUSTED: no pages, may
   * work later. SPECD_E_INVALID: token or parent out of range, or more than 1024 rows between a row
   * that is not on the round's first chain and the last kept token. */
  specd_status *seq_status;
} specd_forward_args;

typedef struct specd_models {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] `name` as in the daemon's configuration (draft_models). SPECD_E_PRECONDITION when no
   * such model can be used with the target; report() says why. What is still open at destroy() is
   * closed. */
  specd_status (*open)(const specd_host *, specd_owner *, const char *name,
                       specd_model **out) SPECD_NOEXCEPT;
  /* [control] vocab_size counts the ids below the target's vocabulary: no other is ever drawn.
   * Strings live until close(). */
  specd_status (*info)(const specd_host *, specd_owner *, specd_model *,
                       specd_target_info *out) SPECD_NOEXCEPT;
  void (*close)(const specd_host *, specd_owner *, specd_model *) SPECD_NOEXCEPT; /* [control] */
  /* [step] Kept tokens of every sequence of the call's batch: out, host [n_seqs]. */
  specd_status (*length)(const specd_host *, specd_call *, specd_model *,
                         uint32_t *out) SPECD_NOEXCEPT;
  /* [step] Computes rows for sequences of the call's batch. Any error of the call itself leaves all
   * sessions as they were, but for SPECD_E_EXHAUSTED and SPECD_E_DEVICE: those that had
   * rows are empty then, as if their pages had been taken. */
  specd_status (*forward)(const specd_host *, specd_call *, specd_model *,
                          const specd_forward_args *) SPECD_NOEXCEPT;
  /* [step] Only in propose(). Ends the round of every sequence of the batch, keeps what its session
   * shares with the committed text, and feeds what is missing of it, the last committed token
   * always; what was fed is kept. args as in forward(), but: n_rows bounds the rows of sequences
   * that miss more than two tokens, all together; output_rows lists sequences, and their outputs
   * are of the last committed token; row_offsets, parent, token and token_at are NULL. seq_status
   * is SPECD_E_DEADLINE and out_token -1 where the bound was reached first: the next step goes on.
   * A sequence that fails has ended its round all the same.
   */
  specd_status (*follow)(const specd_host *, specd_call *, specd_model *,
                         const specd_forward_args *) SPECD_NOEXCEPT;
  /* [step] Ends the round of every sequence of the batch: the first `kept[s]` kept tokens stay,
   * then follow rows [row_offsets[s], row_offsets[s + 1]) of `rows`: a path in the round, the first
   * a child of the last kept token. kept[s] is at most length(); with rows it is exactly that. All
   * arrays are host memory; row_offsets NULL = no rows at all. An error changes nothing, but for
   * SPECD_E_DEVICE. */
  specd_status (*keep)(const specd_host *, specd_call *, specd_model *, const uint32_t *kept,
                       const uint32_t *row_offsets, const uint32_t *rows) SPECD_NOEXCEPT;
} specd_models;

#ifdef __cplusplus
}
#endif
#endif
