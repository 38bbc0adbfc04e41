/* A drafter guesses the next tokens of every sequence of a batch. It can only cost time: under a
 * route that guarantees `identical`, the host may detach it at any step boundary without changing
 * any text.
 *
 * Life: describe* -> create -> activate -> [static_tree] -> { begin, update, propose, end }* ->
 * deactivate -> destroy.
 *
 * Step data are tensors on the granted device. The `host_*` fields hold the same values in host
 * memory and are NULL unless SPECD_NEED_HOST_TOKENS was granted. On the CPU they point at the
 * tensors' data. */
#ifndef SPECD_PLUGIN_API_DRAFTER_H
#define SPECD_PLUGIN_API_DRAFTER_H

#include <specd/plugin_api/batch.h>
#include <specd/plugin_api/config.h>
#include <specd/plugin_api/host.h>
#include <specd/plugin_api/target_info.h>
#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* caps.needs, grant.needs: what the host must provide */
enum {
  SPECD_NEED_HOST_TOKENS = 1u << 0, /* host mirrors of the token columns */
  SPECD_NEED_HIDDEN = 1u << 1,      /* rows of caps.taps in update() */
  SPECD_NEED_PROBES = 1u << 2       /* may propose nodes that are computed but never accepted */
};
/* caps.features: what the plugin supports; the host decides whether to use it */
enum {
  /* For a granted device and a CHAIN or STATIC tree. What propose() puts on batch->stream,
   * including calls of model/1, depends only on the number of sequences, their budgets and places
   * in the batch, and on memory that it reads in stream order (by slot for per-sequence state). The
   * host may then capture that work and repeat it in later steps without calling propose(). It
   * captures only batches that it has seen before. Tensors keep their addresses. */
  SPECD_FEATURE_CAPTURE = 1u << 0,
  /* Of a drafter whose rule is not POINT_MASS: hands on q in propose(). Granted when the verifier
   * needs it (SPECD_NEED_Q); the pair then works in host memory. */
  SPECD_FEATURE_Q = 1u << 1
};
/* Models on a device: the host grants the device to a drafter that offers it (SPECD_DEV_CUDA), needs
 * no probes and hands on no q; every other drafter gets host memory. The columns of specd_proposal
 * are on the device for a CHAIN or STATIC tree. Those of a VARIABLE tree are in host memory on every
 * device, because the host plans with them: they are complete when propose() returns.
 *
 * A verifier gets the device when the proposals are there and it offers the device too. On a
 * device, every function makes device_index current and restores the previous device before it
 * returns. A captured call does not wait or allocate, and its work accesses no host memory except
 * pinned memory that outlives the capture. */
/* caps.tree_mode */
enum {
  SPECD_TREE_CHAIN = 0,   /* parent[i] == i - 1, preset by the host */
  SPECD_TREE_STATIC = 1,  /* topology fixed at activate(), preset by the host */
  SPECD_TREE_VARIABLE = 2 /* count and topology chosen per call */
};
/* caps.draft_rule: how the children of a node are chosen. Verifiers state a guarantee for each
 * rule. Which children that are drawn are left out may depend on what was drawn above them and for
 * their elder siblings, never on their own token or on those of younger siblings. */
enum {
  SPECD_RULE_POINT_MASS =
      0,              /* a function of context, state and the target's noise: top-k, lookup */
  SPECD_RULE_IID = 1, /* each child drawn from q, with replacement, in index order */
  SPECD_RULE_NO_REPLACE = 2, /* each drawn from what q leaves without its elder siblings */
  SPECD_RULE_COUNT = 3
};
/* caps.attach_modes (bits), begin_args.attach_mode (one bit) */
enum {
  SPECD_ATTACH_FRESH = 1u << 0,  /* position 0; the prompt is given, its rows follow in update() */
  SPECD_ATTACH_TOKENS = 1u << 1, /* mid-stream; the committed tokens are given */
  SPECD_ATTACH_COLD = 1u << 2    /* mid-stream; tokens given, hidden states only from now on */
};
enum {
  SPECD_MAX_TREE_NODES = 1024,
  SPECD_MAX_TREE_DEPTH = 64,
  SPECD_MAX_TAPS = 16,
  SPECD_MAX_TOP_K = 64
};

typedef struct specd_drafter_caps { /* out of describe() */
  uint32_t struct_size;
  uint32_t tree_mode;
  uint32_t needs;
  uint32_t draft_rule;
  uint32_t attach_modes;
  uint32_t device_types; /* bit (1 << SPECD_DEV_*) */
  uint32_t max_nodes;    /* root excluded; 1..SPECD_MAX_TREE_NODES */
  uint32_t max_depth;    /* 1..SPECD_MAX_TREE_DEPTH */
  uint32_t max_batch;    /* 0 = no limit */
  /* Rows of one update() that it can use, all sequences together. The host gives at least what the
   * deepest drafts can commit in one step; with more, a prompt comes in fewer calls. */
  uint32_t rows_max;
  uint32_t top_k; /* of the target's tokens in update(); 0..SPECD_MAX_TOP_K */
  uint32_t n_taps;
  /* Taps of the residual stream: k in [0, n_layers) is the input of layer k, n_layers the output of
   * the last layer, n_layers + 1 the result of the final norm. */
  uint32_t taps[SPECD_MAX_TAPS];
  const char *const *services; /* static; required service ids */
  uint32_t n_services;
  uint32_t features; /* SPECD_FEATURE_* */
  /* The quota of memory/1: bytes_fixed + grant.max_batch * bytes_per_seq, planned at startup.
   * Allocations beyond it are refused. */
  uint64_t bytes_fixed;
  uint64_t bytes_per_seq;
} specd_drafter_caps;

typedef struct specd_drafter_grant { /* in of activate(): what the host grants */
  uint32_t struct_size;
  int32_t device_type;
  int32_t device_index;
  uint32_t max_nodes; /* per sequence; node_capacity of every proposal */
  uint32_t max_depth;
  uint32_t max_batch;
  uint32_t max_rows; /* of one update(), all sequences together */
  uint32_t needs;
  uint32_t features; /* SPECD_FEATURE_Q */
  uint32_t reserved0;
  uint64_t memory_bytes_max; /* quota of services/memory.h */
  /* cudaStream_t of the models; NULL in host memory. Use it in [step] calls only: at other times a
   * step may be running or being captured on it. activate() and deactivate() must use a stream of
   * their own and wait for it. */
  void *stream;
} specd_drafter_grant;

typedef struct specd_create_args { /* in */
  uint32_t struct_size;
  uint32_t reserved0;
  const specd_target_info *target;
  const specd_config *config;
  specd_owner *owner;
  specd_call *call; /* for host->report() in create() */
  const char *instance_name;
  const char *data_dir; /* read-only directory of the plugin bundle */
} specd_create_args;

typedef struct specd_begin_args { /* in */
  uint32_t struct_size;
  uint32_t attach_mode;
  const specd_batch *batch;
  const uint64_t *token_offsets;         /* host [n_seqs + 1] */
  const int32_t *tokens;                 /* host; every committed token; the prompt for FRESH */
  const specd_sampling *const *sampling; /* host [n_seqs] */
  void **seq_state;                      /* out [n_seqs] */
  /* host [n_seqs]: whose text it is. Sequences have the same tenant when their requests have the
   * same cache salt, the rule by which the host shares cached prefixes. 0 is the tenant of all
   * requests without a salt. A drafter that keeps text beyond end(), or uses it for more than one
   * sequence, must keep tenants apart: no proposal may depend on another tenant's text. The values
   * are hashes under a key that is drawn anew at each start of the daemon. They tell nothing about
   * the salt, and mean nothing after a restart: do not store them. */
  const uint64_t *tenant;
} specd_begin_args;

enum {
  SPECD_END_FINISHED = 0,
  SPECD_END_CANCELLED = 1,
  SPECD_END_PREEMPTED = 2,
  SPECD_END_SWAPPED = 3,
  SPECD_END_QUARANTINED = 4
};
typedef struct specd_end_args { /* in */
  uint32_t struct_size;
  uint32_t reason; /* SPECD_END_* */
  const specd_batch *batch;
} specd_end_args;

enum {
  SPECD_NODE_ROOT = -1, /* the row computed at the root of the last step */
  SPECD_NODE_NONE = -2  /* a prefill row, or a node of another drafter's proposal */
};

/* A row is one position whose target forward pass is final: the token at it, the token committed
 * after it, and its hidden states. The rows of a sequence have consecutive positions and continue
 * its last update. The host never leaves a gap; it ends and begins the sequence instead. Only
 * committed positions arrive here, so a plugin that keeps state from update() alone never rolls
 * back. The first row is the last position of the history given to begin(); earlier rows come only
 * with SPECD_NEED_HIDDEN.
 *
 * Row r belongs to sequence s when row_offsets[s] <= r < row_offsets[s + 1]. All columns are
 * [n_rows] int32. A prompt may come in several calls; a sequence may have no rows in a call. */
typedef struct specd_update_args { /* in */
  uint32_t struct_size;
  uint32_t n_rows; /* at most grant.max_rows */
  const specd_batch *batch;
  const uint32_t *row_offsets;   /* host [n_seqs + 1], 0 to n_rows */
  const specd_tensor *seq_index; /* the row's sequence: its index in the batch */
  const specd_tensor *position;
  const specd_tensor *token;      /* token at the position */
  const specd_tensor *next_token; /* token committed after it */
  const specd_tensor *node;       /* index in the last proposal, or SPECD_NODE_* */
  const specd_tensor *last_row;   /* [n_seqs] int32: the sequence's last row, -1 = it has none */
  const int32_t *host_position;
  const int32_t *host_token;
  const int32_t *host_next_token;
  const int32_t *host_node;
  /* With SPECD_NEED_HIDDEN: row r's state at tap t is row hidden_row[r] of hidden[t], in the
   * granted memory. hidden[t] also holds rows that are nobody's; do not write to it. */
  const specd_tensor *hidden_row; /* [n_rows] int32; NULL without hidden states */
  const int32_t *host_hidden_row;
  const specd_tensor *last_hidden_row; /* [n_seqs] int32: that of last_row, or -1 */
  const specd_tensor *const *hidden;   /* [n_taps], each [.., hidden_size] float32 */
  /* With caps.top_k > 0: the target's most likely tokens, without penalties, after the root (element
   * 0 of a sequence) and after node i of its last proposal (element i + 1), accepted or not; after
   * a probe only with SPECD_NODE_WANT_TOP. They come in the call with the root's row, the last one
   * that is not a node. -1 = none. NULL when the step has none. */
  const specd_tensor *top_row; /* [n_seqs, node_capacity + 1] int32: row of top_token */
  const int32_t *host_top_row;
  const specd_tensor *top_token; /* [.., top_k] int32, most likely first */
  const int32_t *host_top_token; /* rows are top_token->stride[0] apart */
} specd_update_args;

enum {
  SPECD_NODE_PROBE = 1,
  SPECD_NODE_WANT_TOP = 2 /* of a probe: the target's top_k after it are wanted */
};

/* token: no node here, and no later node in this sequence */
enum { SPECD_NO_TOKEN = -1 };

/* Node i of sequence s is element s * node_capacity + i of every column. parent is -1 for a child
 * of the root, otherwise < i: parents come first, as in BFS and DFS order. The root is the last
 * committed token, whose KV is not computed yet; it is not a node. A node's position is root
 * position + depth; it attends to the committed tokens and its ancestors. The host cuts a
 * sequence's tree at the first bad node.
 *
 * n_nodes is preset to the budget and every token to SPECD_NO_TOKEN, so writing tokens is enough.
 * Columns on a device: n_nodes is not read back; a verifier there gets the count after the host's
 * cut. */
typedef struct specd_proposal {
  uint32_t struct_size;
  uint32_t node_capacity;
  const specd_tensor *n_nodes; /* out [n_seqs] int32 */
  const specd_tensor *token;   /* out [n_seqs, node_capacity] int32 */
  const specd_tensor *parent;  /* out, same shape; preset in CHAIN and STATIC, do not write */
  const specd_tensor *flags;   /* out, same shape, SPECD_NODE_*; NULL unless probes are granted */
  /* With SPECD_FEATURE_Q granted, else NULL: the distribution that the first child of a node was
   * drawn from, exp(q - q_lse), with temperature and cuts in; minus infinity for tokens that could
   * not be drawn. q_row says for the children of the root (element 0 of a sequence) and of node i
   * (element i + 1) which row of q and q_lse; it is preset to -1, and needed where there are
   * children. The drafter fills in the tensors q and q_lse, whose data are its own host memory, dense;
   * they stay as they are until its next propose() or deactivate(). The host refuses the draft of a
   * sequence when a row is not a distribution, or gives a child no probability.
   *   q_row  out [n_seqs, node_capacity + 1] int32
   *   q      out [.., vocab_size] float32
   *   q_lse  out [..] float32 */
  const specd_tensor *q_row;
  specd_tensor *q;
  specd_tensor *q_lse;
} specd_proposal;

typedef struct specd_propose_args { /* in */
  uint32_t struct_size;
  uint32_t reserved0;
  const specd_batch *batch;
  const specd_tensor *root_token;    /* [n_seqs] int32: the last committed token */
  const specd_tensor *root_position; /* [n_seqs] int32 */
  const specd_tensor *node_budget;   /* [n_seqs] int32, <= node_capacity; 0 = propose nothing */
  const int32_t *host_root_token;
  const int32_t *host_root_position;
  const int32_t *host_node_budget;
  const specd_sampling *const *sampling; /* host [n_seqs] */
  const specd_proposal *out;
} specd_propose_args;

struct specd_drafter_api { /* static */
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] Pure. May be called before create(), and repeatedly. Give the reason of a refusal
   * with report(). */
  specd_status (*describe)(const specd_factory *, const specd_host *, const specd_target_info *,
                           const specd_config *, specd_drafter_caps *out) SPECD_NOEXCEPT;
  specd_status (*create)(const specd_factory *, const specd_host *, const specd_create_args *,
                         specd_drafter **out) SPECD_NOEXCEPT; /* [control] */
  specd_status (*activate)(specd_drafter *,
                           const specd_drafter_grant *) SPECD_NOEXCEPT; /* [control & !active] */
  /* [control & active] STATIC mode only, otherwise NULL. Writes at most `capacity` parents, returns
   * the count. */
  uint32_t (*static_tree)(specd_drafter *, int32_t *parent, uint32_t capacity) SPECD_NOEXCEPT;
  /* [step & active] The plugin must keep nothing for a sequence that fails (batch->seq_status), and
   * nothing for any sequence when the call fails. The host never calls end() for those and decodes
   * them plainly until they finish. A sequence that fails in update() is ended (QUARANTINED). One
   * that fails in propose() gets no draft in this step. */
  specd_status (*begin)(specd_drafter *, const specd_begin_args *) SPECD_NOEXCEPT;
  /* [step & active] May be NULL when the drafter keeps no state and needs neither hidden states,
   * probes nor top_k. */
  specd_status (*update)(specd_drafter *, const specd_update_args *) SPECD_NOEXCEPT;
  specd_status (*propose)(specd_drafter *,
                          const specd_propose_args *) SPECD_NOEXCEPT;  /* [step & active] */
  void (*end)(specd_drafter *, const specd_end_args *) SPECD_NOEXCEPT; /* [step & active] */
  void (*deactivate)(specd_drafter *) SPECD_NOEXCEPT; /* [control & active] after the last end() */
  void (*destroy)(specd_drafter *) SPECD_NOEXCEPT;    /* [control & !active] */
};

#ifdef __cplusplus
}
#endif
#endif
