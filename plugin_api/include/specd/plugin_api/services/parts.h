/* Other drafters, for a drafter that is made of drafters. The host finds what the configuration names,
 * with every check of a route's own plugin; the rest is between the two: whoever asks makes the part
 * with the part's own table and hands its calls on.
 *
 * What that takes. The part is described and created inside of describe() and create(), with the asker's
 * owner, so that memory, models and metrics of both count as one instance's. Step calls pass on the
 * batch of the running call, every sequence of it in its place, with columns of the part's own for
 * seq_state, seq_status, budgets and proposals: services of [step] calls go by that batch. In update() the
 * node of a row that was not proposed by the part is SPECD_NODE_NONE, and top1 is told of its own
 * nodes alone. A sequence that a part fails in begin() or update() the asker fails too; where others have
 * begun it already they end it, with a batch of that sequence and without a call. */
#ifndef SPECD_PLUGIN_API_SERVICES_PARTS_H
#define SPECD_PLUGIN_API_SERVICES_PARTS_H

#include <specd/plugin_api/config.h>
#include <specd/plugin_api/host.h>
#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPECD_SERVICE_PARTS "specd.host.parts/1"

typedef struct specd_part { /* out */
  uint32_t struct_size;
  uint32_t reserved0;
  const specd_factory *factory; /* static; of a drafter, whose table is complete */
  const specd_config *config;   /* checked against its schema; for describe() and create() */
  const char *data_dir; /* as long as config, which lives as long as the one that names it */
} specd_part;

typedef struct specd_parts {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] In describe() and create(). `path` leads to {"plugin": id, "factory": id, "config": {...}} in
   * the plugin's own configuration, as the host gave it; the last two may be absent. Loads the bundle on first use.
   * SPECD_E_PRECONDITION when nothing is there; SPECD_E_CONFIG when it is not that, or the part cannot be
   * had: report() says why. */
  specd_status (*find)(const specd_host *, const specd_config *, const char *path,
                       specd_part *out) SPECD_NOEXCEPT;
} specd_parts;

#ifdef __cplusplus
}
#endif
#endif
