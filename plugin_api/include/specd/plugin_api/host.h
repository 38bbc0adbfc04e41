/* What the host offers a plugin. The plugin receives the host as a pointer and never links a symbol
 * of the daemon. */
#ifndef SPECD_PLUGIN_API_HOST_H
#define SPECD_PLUGIN_API_HOST_H

#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SPECD_LOG_DEBUG = 0, SPECD_LOG_INFO = 1, SPECD_LOG_WARN = 2, SPECD_LOG_ERROR = 3 };

struct specd_host { /* static */
  uint32_t struct_size;
  uint32_t reserved0;
  void *ctx; /* private to the host */
  const char *name;
  const char *version;
  /* [any] Logs UTF-8 text, which is copied. Never blocks. More than 100 lines of a plugin in a
   * second are dropped and counted. A plugin never writes to stdout or stderr. */
  void (*log)(const specd_host *, uint32_t severity, const char *text, uint64_t len) SPECD_NOEXCEPT;
  /* [any] Attaches text to the status that the current call will return. seq_index -1 means the
   * whole call. `call` may be NULL in describe(), activate(), init() and the entry. The text is
   * copied. When the call returns SPECD_E_CONFIG, its first text is "KEY: reason" where one key is at
   * fault. */
  void (*report)(const specd_host *, specd_call *call, int32_t seq_index, const char *text,
                 uint64_t len) SPECD_NOEXCEPT;
  /* [any] Returns the static, const table with this id: SPECD_SERVICE_* of services/, which is a
   * name, a version, '#' and the layout of that service's header. NULL when the host does not have
   * the service, or has another layout of it; the host then reports both layouts. */
  /* clang-format off */
  const void *(*get_service)(const specd_host *, const char *id) SPECD_NOEXCEPT;
  /* clang-format on */
  /* [any] CLOCK_MONOTONIC in nanoseconds. Every deadline uses this clock. */
  uint64_t (*now_ns)(const specd_host *) SPECD_NOEXCEPT;
};

#ifdef __cplusplus
}
#endif
#endif
