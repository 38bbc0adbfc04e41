/* Operations on tensors in host or device memory. A plugin that uses only these works on every
 * device. The tensors of one call are dense, row-major, and either all in host memory or all on the
 * granted device. On the device the work goes on batch->stream and may be captured. */
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

typedef struct specd_ops {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [step] Walks down from the root: at each point to the first child whose token is the wanted
   * one, until there is none or the path is full. */
  specd_status (*walk)(const specd_host *, specd_call *, const specd_walk_args *) SPECD_NOEXCEPT;
} specd_ops;

#ifdef __cplusplus
}
#endif
#endif
