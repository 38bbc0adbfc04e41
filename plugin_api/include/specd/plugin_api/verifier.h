/* A verifier decides which nodes of a proposal are accepted. Its only state is one int64 per
 * sequence, which the host stores and passes in and out. The host has no acceptance rule: when no
 * usable verdict comes back, it accepts nothing and emits the root row's token.
 *
 * Life: describe* -> create -> activate -> verify* -> deactivate -> destroy. */
#ifndef SPECD_PLUGIN_API_VERIFIER_H
#define SPECD_PLUGIN_API_VERIFIER_H

#include <specd/plugin_api/drafter.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a verifier promises about the emitted text, for one draft rule. */
enum {
  SPECD_GUARANTEE_UNUSABLE = 0, /* the verifier cannot judge drafts of this rule */
  SPECD_GUARANTEE_NONE = 1,     /* lossy by design */
  SPECD_GUARANTEE_LAW = 2,      /* same distribution as the target */
  SPECD_GUARANTEE_IDENTICAL = 3 /* exactly the tokens of plain decoding */
};

/* caps.needs: what the host must provide */
enum {
  /* No bits of specd_drafter_caps.needs. */
  SPECD_NEED_LAW = 1u << 3, /* the distributions that row tokens are drawn from */
  SPECD_NEED_Q = 1u << 4    /* those that drafts were drawn from, where their rule has them */
};

typedef struct specd_verifier_caps { /* out of describe() */
  uint32_t struct_size;
  uint32_t tree_modes;                  /* bit (1 << SPECD_TREE_*) */
  uint32_t device_types;                /* bit (1 << SPECD_DEV_*) */
  uint32_t max_nodes;                   /* 0 = no limit */
  uint32_t guarantee[SPECD_RULE_COUNT]; /* SPECD_GUARANTEE_*, indexed by SPECD_RULE_* */
  uint32_t n_services;
  const char *const *services; /* static; required service ids */
  /* SPECD_FEATURE_*. CAPTURE promises for verify() what it promises for propose(); a captured
   * verify() must not use model/1. */
  uint32_t features;
  uint32_t needs; /* SPECD_NEED_LAW, SPECD_NEED_Q */
} specd_verifier_caps;

typedef struct specd_verifier_grant { /* in */
  uint32_t struct_size;
  int32_t device_type;
  int32_t device_index;
  uint32_t max_nodes;
  uint32_t max_depth;
  uint32_t max_batch;
  uint32_t tree_mode;  /* SPECD_TREE_* of the drafter */
  uint32_t draft_rule; /* SPECD_RULE_* of the drafter */
  void *stream;        /* as in specd_drafter_grant */
} specd_verifier_grant;

typedef struct specd_verdict {
  uint32_t struct_size;
  uint32_t path_capacity;
  const specd_tensor *n_accepted; /* out [n_seqs] int32 */
  const specd_tensor *path; /* out [n_seqs, path_capacity] int32: node indices, root side first */
  const specd_tensor *next_token; /* out [n_seqs] int32: the token after the last accepted node */
} specd_verdict;

typedef struct specd_verify_args { /* in */
  uint32_t struct_size;
  uint32_t reserved0;
  /* seq_state is NULL: a verifier does not see drafter state. A verifier on the device gets only
   * the sequences that were drafted there; for the others the host emits the root row's token. */
  const specd_batch *batch;
  /* Already cut by the host; columns as in drafter.h, read-only. q, q_lse and q_row are there with
   * SPECD_NEED_Q and a draft rule that has them, else NULL. */
  const specd_proposal *proposal;
  const specd_tensor *root_token;    /* [n_seqs] int32 */
  const specd_tensor *root_position; /* [n_seqs] int32 */
  /* [n_seqs, node_capacity + 1] int32. Element 0 is the token that plain decoding emits after the
   * root, element i + 1 the one after node i (greedy: argmax, lowest id on ties; otherwise the
   * Gumbel-max draw with the noise of that position). Accepting exactly the nodes that equal the
   * row token of their parent reproduces plain decoding, whatever the drafter proposed. */
  const specd_tensor *row_token;
  /* With SPECD_NEED_LAW, else NULL: the distribution that a row's token was drawn from,
   * exp(law - law_lse), in the granted memory, read-only. `law` holds the row's logits after penalties,
   * bias, temperature and cuts, in this order, less their largest; minus infinity for tokens that could
   * not be drawn. Of a greedy row only its token is finite. A row whose logits are not finite draws -1,
   * and its law_lse is minus infinity: do not accept its node, but give its token as the next one. The
   * next step then fails the sequence, as plain decoding does. Rows that no element of `row` names
   * belong to other calls.
   *   row      [n_seqs, node_capacity + 1] int32, as row_token: a row of `law` and `law_lse`, or -1
   *   law      [.., vocab_size] float32
   *   law_lse  [..] float32 */
  const specd_tensor *row;
  const specd_tensor *law;
  const specd_tensor *law_lse;
  const specd_tensor *state; /* in/out [n_seqs] int64, zero when a sequence starts */
  /* These three are not the same in the next step: a captured verify() must not depend on them. */
  const specd_sampling *const *sampling; /* host [n_seqs] */
  const int32_t *const *text;            /* host [n_seqs]: every committed token, the root last */
  const uint32_t *text_len;              /* host [n_seqs] */
  const specd_verdict *out;
} specd_verify_args;

struct specd_verifier_api { /* static */
  uint32_t struct_size;
  uint32_t reserved0;
  specd_status (*describe)(const specd_factory *, const specd_host *, const specd_target_info *,
                           const specd_config *,
                           specd_verifier_caps *out) SPECD_NOEXCEPT; /* [control] */
  specd_status (*create)(const specd_factory *, const specd_host *, const specd_create_args *,
                         specd_verifier **out) SPECD_NOEXCEPT; /* [control] */
  specd_status (*activate)(specd_verifier *,
                           const specd_verifier_grant *) SPECD_NOEXCEPT; /* [control & !active] */
  specd_status (*verify)(specd_verifier *,
                         const specd_verify_args *) SPECD_NOEXCEPT; /* [step & active] */
  void (*deactivate)(specd_verifier *) SPECD_NOEXCEPT;              /* [control & active] */
  void (*destroy)(specd_verifier *) SPECD_NOEXCEPT;                 /* [control & !active] */
};

#ifdef __cplusplus
}
#endif
#endif
