/* The host's worker threads, lent for the duration of one call. */
#ifndef SPECD_PLUGIN_API_SERVICES_POOL_H
#define SPECD_PLUGIN_API_SERVICES_POOL_H

#include <specd/plugin_api/abi_layout.h>
#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPECD_SERVICE_POOL "specd.host.pool/1#" SPECD_POOL_LAYOUT

typedef void (*specd_pool_task)(void *ctx, uint32_t index); /* must not throw */

typedef struct specd_pool {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [any] Number of workers, including the calling thread. */
  uint32_t (*width)(const specd_host *) SPECD_NOEXCEPT;
  /* [step] Calls task(ctx, i) once for every i in [0, n), and returns when all are done. Tasks must
   * not block. */
  specd_status (*run)(const specd_host *, specd_call *, uint32_t n, specd_pool_task task,
                      void *ctx) SPECD_NOEXCEPT;
} specd_pool;

#ifdef __cplusplus
}
#endif
#endif
