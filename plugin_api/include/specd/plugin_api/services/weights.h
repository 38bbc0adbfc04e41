/* Weights of the plugin's own: a folder of safetensors files or one such file, named in the
 * plugin's configuration. The host opens and checks the files; other formats are refused.
 *
 * A matrix that is quantized, as config.json, hf_quant_config.json, quant_config.json or
 * quantize_config.json beside the files says, is one tensor here, "MODULE.weight" of type
 * SPECD_DT_OPAQUE, whatever tensors of the file have its codes and scales. matrix() takes it like
 * any other; what a format does to x is in core/model/README.md.
 *
 * find() reads the mapped file and needs no memory. matrix() and tensor() make copies in the
 * granted memory. Each copy is made once, however many instances ask for it, and every instance is
 * charged for it as if it were alone: bytes_fixed of the caps must include the bytes of the copies.
 * Copies live as long as the instance. */
#ifndef SPECD_PLUGIN_API_SERVICES_WEIGHTS_H
#define SPECD_PLUGIN_API_SERVICES_WEIGHTS_H

#include <specd/plugin_api/abi_layout.h>
#include <specd/plugin_api/config.h>
#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPECD_SERVICE_WEIGHTS "specd.host.weights/1#" SPECD_WEIGHTS_LAYOUT

typedef struct specd_weights specd_weights;

typedef struct specd_weights_api {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] In describe() and create() only. `key` leads to the path in the plugin's
   * configuration; a relative path starts at plugins.base_directory, by default the folder of the
   * daemon's configuration file. A folder holds model.safetensors, or the shards of
   * model.safetensors.index.json. *out lives as long as the instance or, in describe(), where the
   * owner is NULL, as the configuration. Returns SPECD_E_PRECONDITION when the key is absent, and
   * SPECD_E_CONFIG, with "KEY: reason" in report(), when the files cannot be used. */
  specd_status (*open)(const specd_host *, specd_owner *, const specd_config *, const char *key,
                       specd_weights **out) SPECD_NOEXCEPT;
  /* [control] config.json beside the files, read with the getters of a configuration; NULL when
   * there is none. Lives as long as the weights. */
  const specd_config *(*config)(const specd_host *, specd_weights *)SPECD_NOEXCEPT;
  /* [control] A tensor by its name or, when `name` is NULL, by its number in order of names. The
   * data are as stored: in host memory, read only, perhaps unaligned. *out_name, unless NULL, gets
   * the name. Of a quantized matrix there are no data: dtype_bits are those of a code, and
   * byte_capacity is what matrix() charges: the bytes of its codes as they are packed, of their
   * scales, and of the order of its columns.
   * Returns SPECD_E_PRECONDITION when there is no such tensor, and SPECD_E_UNSUPPORTED
   * when it has more than SPECD_MAX_RANK axes or a type without a SPECD_DT_*. */
  specd_status (*find)(const specd_host *, specd_weights *, const char *name, uint32_t number,
                       const char **out_name, specd_tensor *out) SPECD_NOEXCEPT;
  /* [control & active] The matrix [n_out, n_in] for ops/1, made of n tensors (at most 64) of n_in
   * columns (at most 2^18), one below the other (q, k and v; gate and up), of one type: float32,
   * float16, bfloat16, or quantized in one way. Charged: the byte_capacity of the tensors, as
   * find() gives them. Returns SPECD_E_DATA when a tensor is missing or has another shape or
   * type, and SPECD_E_EXHAUSTED beyond the quota. */
  specd_status (*matrix)(const specd_host *, specd_owner *, specd_weights *,
                         const char *const *names, uint32_t n, int64_t n_out, int64_t n_in,
                         specd_matrix **out) SPECD_NOEXCEPT;
  /* [control & active] A dense copy of `shape` (rank axes): as stored, or floating point as
   * float32, or integers and booleans as int32. Charged: its bytes. Errors as above; an integer
   * that does not fit is SPECD_E_DATA. */
  specd_status (*tensor)(const specd_host *, specd_owner *, specd_weights *, const char *name,
                         uint32_t rank, const int64_t *shape, uint8_t dtype_code,
                         uint8_t dtype_bits, specd_tensor *out) SPECD_NOEXCEPT;
} specd_weights_api;

#ifdef __cplusplus
}
#endif
#endif
