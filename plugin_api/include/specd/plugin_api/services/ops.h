/* Operations on tensors, wherever they lie: a plugin that works through them alone is the same on
 * every device. All tensors of one call lie in host memory or all on the granted device, dense and
 * row-major; on the device the work is put on batch->stream and may be captured. */
#ifndef SPECD_PLUGIN_API_SERVICES_OPS_H
#define SPECD_PLUGIN_API_SERVICES_OPS_H

#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPECD_SERVICE_OPS "specd.host.ops/1"

/* Trees as in drafter.h: [n] counts, [n, capacity] columns. */
typedef struct specd_walk_args { /* in */
  uint32_t struct_size;
  uint32_t skip_flags;         /* nodes with one of these SPECD_NODE_* are passed over */
  const specd_tensor *n_nodes; /* [n] int32 */
  const specd_tensor *token;   /* [n, capacity] int32 */
  const specd_tensor *parent;  /* [n, capacity] int32 */
  const specd_tensor *flags;   /* [n, capacity] int32, or NULL */
  const specd_tensor *wanted;  /* [n, capacity + 1] int32: below the root, then below each node */
  const specd_tensor *n_path;  /* out [n] int32 */
  const specd_tensor *path;    /* out [n, path_capacity] int32: nodes, root side first */
  const specd_tensor *last;    /* out [n] int32: what was wanted where the path ends */
} specd_walk_args;

typedef struct specd_ops {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [step] From the root down, always to the first child whose token is the one wanted there, as
   * long as there is one and the path has room. */
  specd_status (*walk)(const specd_host *, specd_call *, const specd_walk_args *) SPECD_NOEXCEPT;
} specd_ops;

#ifdef __cplusplus
}
#endif
#endif
