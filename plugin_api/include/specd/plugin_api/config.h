/* The plugin's part of the configuration. The host has already checked it against the factory's
 * JSON schema, so plugins written in C need no parser. */
#ifndef SPECD_PLUGIN_API_CONFIG_H
#define SPECD_PLUGIN_API_CONFIG_H

#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct specd_config { /* in, for describe() and create() */
  uint32_t struct_size;
  uint32_t reserved0;
  const char *json; /* the whole subtree as canonical JSON (an object), NUL-terminated */
  uint64_t json_len;
  void *ctx;
  /* [any] `path` is like "tree.max_nodes"; list elements are numbers: "drafters.0.plugin". Returns
   * SPECD_E_PRECONDITION when the key is absent and SPECD_E_CONFIG when the value has another type
   * or does not fit. *out is unchanged on error. */
  specd_status (*get_i64)(const specd_config *, const char *path, int64_t *out) SPECD_NOEXCEPT;
  specd_status (*get_f64)(const specd_config *, const char *path, double *out) SPECD_NOEXCEPT;
  specd_status (*get_bool)(const specd_config *, const char *path, uint32_t *out) SPECD_NOEXCEPT;
  /* NUL-terminated, owned by the config. */
  specd_status (*get_str)(const specd_config *, const char *path, const char **out,
                          uint64_t *len) SPECD_NOEXCEPT;
};

#ifdef __cplusplus
}
#endif
#endif
