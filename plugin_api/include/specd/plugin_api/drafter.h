/* A drafter guesses the next tokens of every sequence of a batch. It can only cost time: under a
 * route that guarantees `identical`, it may be detached at any step boundary and no text changes.
 *
 * Life: describe* -> create -> activate -> [static_tree] -> { begin, update, propose, end }* ->
 * deactivate -> destroy. Everything that crosses in a step is a tensor on the granted device;
 * `host_*` companions are the same numbers in host memory and are NULL unless
 * SPECD_NEED_HOST_TOKENS was granted (on the CPU they point at the tensors' own data). */
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
  SPECD_NEED_PROBES = 1u << 2       /* may add nodes that are computed but never accepted */
};
/* caps.features: what the plugin can do; the host may use it */
enum {
  /* On a granted device, with a CHAIN or STATIC tree: what propose() puts on batch->stream, calls
   * of model/1 included, depends on the sequences' number, budgets and place in the batch and on
   * memory that it reads in stream order, by slot for what is kept per sequence; on nothing else.
   * The host may then capture it, and in later steps run the same work again without calling
   * propose(). It captures only batches that it has seen before; the tensors keep their addresses.
   */
  SPECD_FEATURE_CAPTURE = 1u << 0
};
/* Where models run on a device, that is granted to drafters that offer it (SPECD_DEV_CUDA) with a CHAIN or STATIC
 * tree and without hidden states or probes; all others get host memory. A verifier is granted the device
 * when its drafter is and it offers it too. On a device every function makes device_index current itself,
 * and restores what was. In a captured call nothing waits, nothing is allocated, and no host memory is read
 * or written by the work but what is pinned and stays. */
/* caps.tree_mode */
enum {
  SPECD_TREE_CHAIN = 0,   /* parent[i] == i - 1, preset by the host */
  SPECD_TREE_STATIC = 1,  /* topology fixed at activate(), preset by the host */
  SPECD_TREE_VARIABLE = 2 /* count and topology per call */
};
/* caps.draft_rule: how the children of one node came about; verifiers state a guarantee for each */
enum {
  SPECD_RULE_POINT_MASS = 0, /* a function of context and state: top-k, lookup */
  SPECD_RULE_IID = 1,        /* each child drawn from q, with replacement */
  SPECD_RULE_NO_REPLACE = 2, /* drawn in index order without replacement */
  SPECD_RULE_COUNT = 3
};
/* caps.attach_modes (bits), begin_args.attach_mode (one bit) */
enum {
  SPECD_ATTACH_FRESH = 1u << 0,  /* position 0; the prompt is given, its rows follow in update() */
  SPECD_ATTACH_TOKENS = 1u << 1, /* mid-stream, the committed tokens are given */
  SPECD_ATTACH_COLD = 1u << 2    /* mid-stream, tokens given, hidden states only from now on */
};
enum { SPECD_MAX_TREE_NODES = 1024, SPECD_MAX_TREE_DEPTH = 64, SPECD_MAX_TAPS = 8 };

typedef struct specd_drafter_caps { /* out of describe() */
  uint32_t struct_size;
  uint32_t tree_mode;
  uint32_t needs;
  uint32_t draft_rule;
  uint32_t attach_modes;
  uint32_t device_types; /* bit (1 << SPECD_DEV_*) */
  uint32_t max_nodes;    /* without the root; 1..SPECD_MAX_TREE_NODES */
  uint32_t max_depth;    /* 1..SPECD_MAX_TREE_DEPTH */
  uint32_t max_batch;    /* 0 = no limit */
  uint32_t n_taps;
  /* static. Capture points in the residual stream: k in [0, n_layers) = input of layer k, n_layers
   * = output of the last layer, n_layers + 1 = after the final norm. */
  const uint32_t *taps;
  const char *const *services; /* static; required service ids */
  uint32_t n_services;
  uint32_t features;    /* SPECD_FEATURE_* */
  uint64_t bytes_fixed; /* estimates for the start-up plan */
  uint64_t bytes_per_seq;
} specd_drafter_caps;

typedef struct specd_drafter_grant { /* in of activate(): what the host will really do */
  uint32_t struct_size;
  int32_t device_type;
  int32_t device_index;
  uint32_t max_nodes; /* per sequence; node_capacity of every proposal */
  uint32_t max_depth;
  uint32_t max_batch;
  uint32_t max_rows; /* rows per sequence in one update() */
  uint32_t needs;
  uint64_t memory_bytes_max; /* quota of services/memory.h */
  /* cudaStream_t of the models; NULL in host memory. For work of [step] calls alone: elsewhere a step may
   * be running on it or be captured, so activate() and deactivate() take a stream of their own and wait. */
  void *stream;
} specd_drafter_grant;

typedef struct specd_create_args { /* in */
  uint32_t struct_size;
  uint32_t reserved0;
  const specd_target_info *target;
  const specd_config *config;
  specd_owner *owner;
  specd_call *call; /* for host->report() while creating */
  const char *instance_name;
  const char *data_dir; /* read-only directory of the plugin bundle */
} specd_create_args;

typedef struct specd_begin_args { /* in */
  uint32_t struct_size;
  uint32_t attach_mode;
  const specd_batch *batch;
  const uint64_t *token_offsets;         /* host [n_seqs + 1] */
  const int32_t *tokens;                 /* host; every committed token: the prompt for FRESH */
  const specd_sampling *const *sampling; /* host [n_seqs] */
  void **seq_state;                      /* out [n_seqs] */
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
  SPECD_NODE_ROOT = -1, /* row computed at the root of the last step */
  SPECD_NODE_NONE = -2  /* prefill row, or one of a proposal that was not this drafter's */
};

/* Row r of sequence s is one position whose target forward pass is now final: the token at it, the
 * token committed after it, its hidden states. Rows of a sequence are contiguous in position and
 * follow the last update; the host never leaves a gap (it ends and begins the sequence instead).
 * Only committed positions arrive here, so a plugin that keeps state from update() alone never
 * rolls back. The first row is the last position of the history given to begin(); earlier rows come
 * only with SPECD_NEED_HIDDEN. All columns are [n_seqs, max_rows] int32; row r < count[s] is valid.
 */
typedef struct specd_update_args { /* in */
  uint32_t struct_size;
  uint32_t max_rows; /* stride of the columns in this call */
  const specd_batch *batch;
  const specd_tensor *count; /* [n_seqs] int32; 0 = nothing new for it */
  const specd_tensor *position;
  const specd_tensor *token;      /* token at the position */
  const specd_tensor *next_token; /* token committed after it */
  const specd_tensor *node;       /* index in the last proposal, or SPECD_NODE_* */
  const int32_t *host_count;
  const int32_t *host_position;
  const int32_t *host_token;
  const int32_t *host_next_token;
  const int32_t *host_node;
  const specd_tensor *const *hidden; /* [n_taps], each [n_seqs, max_rows, hidden_size] float32 */
  /* [n_seqs, node_capacity] int32: the target's most likely token after node i of the last proposal
   * where SPECD_NODE_WANT_TOP1 was set, else -1. NULL when none was asked for. */
  const specd_tensor *top1;
  const int32_t *host_top1;
} specd_update_args;

enum { SPECD_NODE_PROBE = 1, SPECD_NODE_WANT_TOP1 = 2 };

/* token: no node here, and none after it in this sequence */
enum { SPECD_NO_TOKEN = -1 };

/* Node i of sequence s is element s * node_capacity + i of every column. parent is -1 for a child
 * of the root, else < i (parents first; BFS and DFS both satisfy it). The root is the last
 * committed token, whose KV is not computed yet; it is not a node. A node's position is root
 * position + depth; it attends the committed tokens and its ancestors. The host cuts a sequence's
 * tree at the first bad node. n_nodes is preset to the budget and every token to SPECD_NO_TOKEN, so
 * that writing tokens is enough; on a device n_nodes is not read back (a verifier there gets it cut by the host). */
typedef struct specd_proposal {
  uint32_t struct_size;
  uint32_t node_capacity;
  const specd_tensor *n_nodes; /* out [n_seqs] int32 */
  const specd_tensor *token;   /* out [n_seqs, node_capacity] int32 */
  const specd_tensor
      *parent;               /* out, same shape; preset and not to be written in CHAIN and STATIC */
  const specd_tensor *flags; /* out, same shape, SPECD_NODE_*; NULL unless probes are granted */
} specd_proposal;

typedef struct specd_propose_args { /* in */
  uint32_t struct_size;
  uint32_t reserved0;
  const specd_batch *batch;
  const specd_tensor *root_token;    /* [n_seqs] int32: last committed token */
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
  /* [control] Pure; may be called before create() and many times. Say refusals with report(). */
  specd_status (*describe)(const specd_factory *, const specd_host *, const specd_target_info *,
                           const specd_config *, specd_drafter_caps *out) SPECD_NOEXCEPT;
  specd_status (*create)(const specd_factory *, const specd_host *, const specd_create_args *,
                         specd_drafter **out) SPECD_NOEXCEPT; /* [control] */
  specd_status (*activate)(specd_drafter *,
                           const specd_drafter_grant *) SPECD_NOEXCEPT; /* [control & !active] */
  /* STATIC mode only, else NULL: fills at most `capacity` parents, returns the count.
   * [control & active] */
  uint32_t (*static_tree)(specd_drafter *, int32_t *parent, uint32_t capacity) SPECD_NOEXCEPT;
  /* [step & active] Nothing is kept for a sequence that fails (batch->seq_status), nor for any when
   * the call fails: the host never ends them, and decodes them plainly to their end. A sequence
   * that fails in update() is ended (QUARANTINED); one that fails in propose() is not drafted this
   * step. */
  specd_status (*begin)(specd_drafter *, const specd_begin_args *) SPECD_NOEXCEPT;
  /* [step & active] May be NULL, unless hidden states or probes are asked for: nothing is kept. */
  specd_status (*update)(specd_drafter *, const specd_update_args *) SPECD_NOEXCEPT;
  specd_status (*propose)(specd_drafter *,
                          const specd_propose_args *) SPECD_NOEXCEPT;  /* [step & active] */
  void (*end)(specd_drafter *, const specd_end_args *) SPECD_NOEXCEPT; /* [step & active] */
  void (*deactivate)(specd_drafter *)
      SPECD_NOEXCEPT;                              /* [control & active] every sequence has ended */
  void (*destroy)(specd_drafter *) SPECD_NOEXCEPT; /* [control & !active] */
};

#ifdef __cplusplus
}
#endif
#endif
