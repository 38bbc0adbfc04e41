/* Memory charged to the instance's quota. */
#ifndef SPECD_PLUGIN_API_SERVICES_MEMORY_H
#define SPECD_PLUGIN_API_SERVICES_MEMORY_H

#include <specd/plugin_api/abi_layout.h>
#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPECD_SERVICE_MEMORY "specd.host.memory/1#" SPECD_MEMORY_LAYOUT

typedef struct specd_memory {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [any] `align` is a power of two, at most 4096 in host memory and 256 on a device. Returns
   * SPECD_E_EXHAUSTED beyond the quota of the grant (of the caps before activate()). Device memory is
   * zero-filled, host memory is not. Memory still held at destroy() is freed and reported. */
  specd_status (*alloc)(const specd_host *, specd_owner *, int32_t device_type,
                        int32_t device_index, uint64_t bytes, uint64_t align,
                        void **out) SPECD_NOEXCEPT;
  /* [any] NULL is allowed. */
  void (*free)(const specd_host *, specd_owner *, void *) SPECD_NOEXCEPT;
  /* [step] Host memory, valid until the call returns; do not use it for work on a stream. */
  specd_status (*scratch)(const specd_host *, specd_call *, uint64_t bytes, uint64_t align,
                          void **out) SPECD_NOEXCEPT;
} specd_memory;

#ifdef __cplusplus
}
#endif
#endif
