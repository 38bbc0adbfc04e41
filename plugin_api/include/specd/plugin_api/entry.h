/* The one symbol that a plugin exports, and the table it returns.
 *
 * Version 0 promises no compatibility between different headers: SPECD_ABI_LAYOUT is a hash of the
 * core's layout table (plugin_api/abi/v0.txt: every struct, offset and constant outside of
 * services/), and each side refuses any other value. Each service has a hash of its own, which is
 * checked when a plugin asks for the service. The signature of the entry and the first 16 bytes of
 * specd_plugin never change, so a refusal can always be reported. */
#ifndef SPECD_PLUGIN_API_ENTRY_H
#define SPECD_PLUGIN_API_ENTRY_H

#include <specd/plugin_api/abi_layout.h>
#include <specd/plugin_api/drafter.h>
#include <specd/plugin_api/host.h>
#include <specd/plugin_api/types.h>
#include <specd/plugin_api/verifier.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPECD_ENTRY_SYMBOL "specd_plugin_entry_v0"

struct specd_factory { /* static; exactly one of the two api pointers is non-null */
  uint32_t struct_size;
  uint32_t reserved0;
  const char *id; /* unique inside the plugin, e.g. "ngram" */
  const char *description;
  /* JSON Schema text, checked by the host before describe(); NULL = no keys */
  const char *config_schema;
  const specd_drafter_api *drafter;
  const specd_verifier_api *verifier;
};

struct specd_plugin { /* static */
  uint32_t struct_size;
  uint32_t n_factories;
  const char *layout;  /* SPECD_ABI_LAYOUT at the plugin's compile time */
  const char *id;      /* reverse domain name, "org.example.ngram" */
  const char *version; /* semver of the plugin */
  const char *vendor;
  const char *license; /* SPDX */
  const char *description;
  const specd_factory *const *factories;
  /* [control] Called once per module and process. The plugin starts no thread and opens no file or
   * device before it. */
  specd_status (*init)(const specd_host *) SPECD_NOEXCEPT;
  /* [control] Called at process exit only: code is never unmapped, and a version may be used again.
   * Left out when a call that did not return in time has left an instance. May be NULL. */
  void (*deinit)(void) SPECD_NOEXCEPT;
};

/* [control] Has no side effects. Always stores the table in *out. Returns SPECD_E_ABI when
 * strcmp(host_layout, SPECD_ABI_LAYOUT) != 0; the host then reads nothing but the layout. */
SPECD_EXPORT specd_status specd_plugin_entry_v0(const char *host_layout, const specd_host *host,
                                                const specd_plugin **out) SPECD_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
