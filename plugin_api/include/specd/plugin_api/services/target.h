/* The target's own matrices, for drafters that share them. Nothing is copied or charged. They are
 * where the models are: a drafter that was granted other memory gets SPECD_E_UNSUPPORTED. */
#ifndef SPECD_PLUGIN_API_SERVICES_TARGET_H
#define SPECD_PLUGIN_API_SERVICES_TARGET_H

#include <specd/plugin_api/abi_layout.h>
#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPECD_SERVICE_TARGET "specd.host.target/1#" SPECD_TARGET_LAYOUT

typedef struct specd_target_api { /* [control & active]; both live as long as the instance */
  uint32_t struct_size;
  uint32_t reserved0;
  /* The embedding table [vocab_size, hidden_size] for ops/1 embed(): float32, float16 or bfloat16,
   * read only, perhaps unaligned. */
  specd_status (*embedding)(const specd_host *, specd_owner *, specd_tensor *out) SPECD_NOEXCEPT;
  /* The output head [vocab_size, hidden_size] for ops/1 linear(). */
  specd_status (*head)(const specd_host *, specd_owner *, specd_matrix **out) SPECD_NOEXCEPT;
} specd_target_api;

#ifdef __cplusplus
}
#endif
#endif
