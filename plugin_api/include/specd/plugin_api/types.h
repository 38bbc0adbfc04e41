/* Basic types of the plugin boundary: status codes, tensors, opaque handles.
 *
 * C11, LP64 Linux. Every struct starts with `struct_size` (the writer's sizeof) and has no implicit
 * padding. These words annotate the declarations:
 *   [control]  one call at a time per module; off the step path; may block.
 *   [step]     one call at a time per instance, on any OS thread; must meet batch->deadline_ns.
 *   [any]      any thread, concurrently with other calls.
 *   active     between activate() and deactivate().
 *   in:        owned by the caller, valid until the call returns; copy what must live longer.
 *              Device memory is also valid for work put on batch->stream before the call returned.
 *   out:       allocated and zeroed by the caller, filled by the callee.
 *   static:    valid from the entry call until the process ends. */
#ifndef SPECD_PLUGIN_API_TYPES_H
#define SPECD_PLUGIN_API_TYPES_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SPECD_EXPORT __attribute__((visibility("default")))
#else
#define SPECD_EXPORT
#endif
#if defined(__cplusplus) && __cplusplus >= 201103L
#define SPECD_NOEXCEPT noexcept
#else
#define SPECD_NOEXCEPT
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t specd_status; /* unknown values are read as SPECD_E_INTERNAL */
enum {
  SPECD_OK = 0,
  SPECD_E_INVALID = 1,      /* the caller broke the contract */
  SPECD_E_UNSUPPORTED = 2,  /* can never work with this build, model or device */
  SPECD_E_EXHAUSTED = 3,    /* memory, pages or quota; may work later */
  SPECD_E_DEADLINE = 4,     /* stopped at the deadline; output so far is usable */
  SPECD_E_PRECONDITION = 5, /* wrong state, or an absent config key */
  /* Configuration refused; host->report() has the reason. "KEY: reason" names the key that is
   * wrong by its path in the plugin's configuration, as in "tree.max_nodes: expected at most 64".
   * The host then shows the place of that key in the file. When the schema has no such key, the
   * whole text is the reason. */
  SPECD_E_CONFIG = 6,
  SPECD_E_DATA = 7,   /* a data file is damaged or made for another model */
  SPECD_E_DEVICE = 8, /* device error: the work on the stream is lost */
  SPECD_E_ABI = 9,    /* built with another layout of these headers */
  SPECD_E_CANCELLED = 10,
  SPECD_E_INTERNAL = 11
};

/* Same values as DLPack, so that a view converts to a DLTensor field by field. */
enum {
  SPECD_DT_INT = 0,
  SPECD_DT_UINT = 1,
  SPECD_DT_FLOAT = 2,
  SPECD_DT_OPAQUE = 3, /* only the host reads it; data are NULL */
  SPECD_DT_BFLOAT = 4,
  SPECD_DT_BOOL = 6
};
enum { SPECD_DEV_CPU = 1, SPECD_DEV_CUDA = 2 };
enum { SPECD_MAX_RANK = 4 };

/* A strided view; never owns its data. Each use states its shape; row-major unless noted. */
typedef struct specd_tensor {
  uint32_t struct_size;
  uint8_t dtype_code; /* SPECD_DT_* */
  uint8_t dtype_bits;
  uint16_t dtype_lanes; /* always 1 */
  int32_t device_type;  /* SPECD_DEV_* */
  int32_t device_index;
  uint32_t rank;
  uint32_t reserved0;
  void *data;
  uint64_t byte_capacity; /* bytes accessible from `data`; of SPECD_DT_OPAQUE, see weights.h */
  int64_t shape[SPECD_MAX_RANK];
  int64_t stride[SPECD_MAX_RANK]; /* in elements */
} specd_tensor;

typedef struct specd_call specd_call;         /* one host-to-plugin call; invalid when it returns */
typedef struct specd_owner specd_owner;       /* the instance that memory and models are charged
                                               * to */
typedef struct specd_matrix specd_matrix;     /* weights [n_out, n_in] for ops/1, where the
                                               * instance works */
typedef struct specd_drafter specd_drafter;   /* defined by the plugin */
typedef struct specd_verifier specd_verifier; /* defined by the plugin */
typedef struct specd_host specd_host;
typedef struct specd_plugin specd_plugin;
typedef struct specd_factory specd_factory;
typedef struct specd_config specd_config;
typedef struct specd_drafter_api specd_drafter_api;
typedef struct specd_verifier_api specd_verifier_api;

#ifdef __cplusplus
}
#endif
#endif
