/* Parts: drafters used by another drafter, the composite. The host finds and checks the plugin that
 * the configuration names, exactly as for a route; from then on the composite drives the part
 * itself through the part's table.
 *
 * Rules for the composite:
 * - It calls the part's describe() and create() inside its own, with its own owner. Memory, models
 *   and metrics of both then count as one instance's.
 * - In step calls it passes on the batch of the running call, with every sequence in its place, but
 *   with columns of the part's own for seq_state, seq_status, budgets and proposals. Services of
 *   [step] calls rely on that batch.
 * - In update() it sets node to SPECD_NODE_NONE for rows that the part did not propose, and passes
 *   top_row only for the root and the part's nodes.
 * - It fails a sequence that a part fails in begin() or update(). Parts that have already begun
 *   this sequence must end it, in a batch of that sequence alone and without a call. */
#ifndef SPECD_PLUGIN_API_SERVICES_PARTS_H
#define SPECD_PLUGIN_API_SERVICES_PARTS_H

#include <specd/plugin_api/abi_layout.h>
#include <specd/plugin_api/config.h>
#include <specd/plugin_api/host.h>
#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPECD_SERVICE_PARTS "specd.host.parts/1#" SPECD_PARTS_LAYOUT

typedef struct specd_part { /* out */
  uint32_t struct_size;
  uint32_t reserved0;
  const specd_factory *factory; /* static; a drafter's, with a complete table */
  const specd_config *config;   /* checked against its schema; for describe() and create() */
  /* lives as long as config, which lives as long as the configuration that names the part */
  const char *data_dir;
} specd_part;

typedef struct specd_parts {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] In describe() and create() only. `path` leads to {"plugin": id, "factory": id,
   * "config": {...}} in the plugin's configuration as the host passed it; factory and config may be
   * absent. Loads the bundle on first use. Returns SPECD_E_PRECONDITION when `path` is absent.
   * Returns SPECD_E_CONFIG, with the reason in report(), when the value has another form or the
   * part cannot be used. */
  specd_status (*find)(const specd_host *, const specd_config *, const char *path,
                       specd_part *out) SPECD_NOEXCEPT;
} specd_parts;

#ifdef __cplusplus
}
#endif
#endif
