/* Counter-based random numbers: the same key gives the same number on every call and thread. */
#ifndef SPECD_PLUGIN_API_SERVICES_RNG_H
#define SPECD_PLUGIN_API_SERVICES_RNG_H

#include <specd/plugin_api/abi_layout.h>
#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPECD_SERVICE_RNG "specd.host.rng/1#" SPECD_RNG_LAYOUT

/* Purposes of uniform(). 0 is reserved for the host's draw and is refused. */
enum { SPECD_PURPOSE_DRAFT = 1, SPECD_PURPOSE_ACCEPT = 2, SPECD_PURPOSE_RESIDUAL = 3 };

typedef struct specd_rng {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [step] The noise that the target's Gumbel-max draw adds to each token's processed logit at the
   * position of the drawn token, keyed by (seed, position, token id). A drafter that adds it to its
   * own logits guesses what will be drawn, and the text stays identical. All zeros for a greedy
   * sequence.
   *   seq_index [n] int32 (index in the batch), position [n] int32, out [n, vocab_size] float32 */
  specd_status (*draw_noise)(const specd_host *, specd_call *, const specd_tensor *seq_index,
                             const specd_tensor *position, const specd_tensor *out) SPECD_NOEXCEPT;
  /* [step] Numbers in [0, 1) with 24 bits, keyed by (seed, position, purpose, lane); lane is the
   * column. In propose() ACCEPT and RESIDUAL are refused, because with their numbers the verifier
   * judges what is drafted. No position is the root's in two steps, so numbers at the root's position
   * are new in every step; those at a node's position come again when the step does not reach it.
   *   seq_index [n] int32, position [n] int32, out [n, lanes] float32
   * `out` is apart from the others. All three may be in the device memory that was granted: at most
   * 65535 rows and 2^20 lanes, seq_index and position dense, and not from a pool task. The numbers
   * are the same and the work goes on batch->stream. Nothing there can refuse an index or a position:
   * a row of no sequence is NaN, and a negative position gives some number. In propose() the work may
   * be captured; a step whose verify() uses it runs without a graph. */
  specd_status (*uniform)(const specd_host *, specd_call *, const specd_tensor *seq_index,
                          const specd_tensor *position, uint32_t purpose,
                          const specd_tensor *out) SPECD_NOEXCEPT;
} specd_rng;

#ifdef __cplusplus
}
#endif
#endif
