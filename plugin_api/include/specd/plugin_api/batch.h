/* The batch of sequences that a [step] call works on. */
#ifndef SPECD_PLUGIN_API_BATCH_H
#define SPECD_PLUGIN_API_BATCH_H

#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SPECD_SAMPLE_GREEDY = 1u << 0 };

typedef struct specd_sampling { /* in */
  uint32_t struct_size;
  uint32_t flags; /* SPECD_SAMPLE_* */
  float temperature;
  float top_p;     /* 1 = off */
  int32_t top_k;   /* 0 = off */
  float min_p;     /* 0 = off */
  float typical_p; /* 1 = off */
  uint32_t reserved0;
  uint64_t seed;
  uint64_t tokens_left; /* tokens this sequence may still emit */
} specd_sampling;

typedef struct specd_batch { /* in; arrays have n_seqs entries, in host memory unless a tensor */
  uint32_t struct_size;
  uint32_t n_seqs;
  uint64_t step_id;
  uint64_t deadline_ns; /* on the clock of host->now_ns(); 0 = none */
  void *stream;         /* cudaStream_t; NULL on the CPU */
  specd_call *call;
  const uint64_t *seq_id;   /* never reused by one daemon process */
  void *const *seq_state;   /* what begin() stored; NULL inside begin() */
  specd_status *seq_status; /* out, preset SPECD_OK; see each call */
  /* A dense index in [0, grant.max_batch), fixed for a sequence from begin() to end(). A captured
   * propose() must find per-sequence device memory by slot, because its host code does not run
   * again. */
  const uint32_t *slot;
  const specd_tensor *slots; /* [n_seqs] int32 on the granted device: same values as `slot` */
} specd_batch;

#ifdef __cplusplus
}
#endif
#endif
