/* Facts about the target model that a drafter may depend on. */
#ifndef SPECD_PLUGIN_API_TARGET_INFO_H
#define SPECD_PLUGIN_API_TARGET_INFO_H

#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct specd_target_info { /* in */
  uint32_t struct_size;
  uint32_t vocab_size; /* rows of the output head; token ids are in [0, vocab_size) */
  uint32_t hidden_size;
  uint32_t n_layers;
  uint32_t n_heads;
  uint32_t n_kv_heads;
  uint32_t head_dim;
  uint32_t max_positions;
  int32_t bos_token; /* -1 = none */
  int32_t eos_token; /* -1 = none; the first of them when the model has several */
  float norm_eps;
  uint32_t reserved0;
  const char *model_id; /* the model's name in the daemon's configuration */
  const char *architecture;
  const uint8_t *tokenizer_sha256; /* [32], SHA-256 of tokenizer.json */
} specd_target_info;

#ifdef __cplusplus
}
#endif
#endif
