// The transformer of the Llama family as one forward: rows in, logits and taps out. Prefill,
// decode, chain and tree are all rows with a position, a slot and a path to their ancestors.
//
// Source of the order of operations: transformers, models/llama/modeling_llama.py. [step] one
// forward at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/device/collective.h"
#include "core/device/device.h"
#include "core/device/staging.h"
#include "core/model/kv_store.h"
#include "core/model/model_config.h"
#include "core/model/split.h"
#include "core/model/weights.h"

namespace specd {

// The columns of ForwardRows in device memory.
struct ForwardColumns {
  int32_t n_rows = 0, n_logits = 0, n_taps = 0;
  Column<int32_t> token;  // the device may write it before the forward
  const int32_t *position = nullptr, *slot = nullptr, *span = nullptr, *table = nullptr,
                *tail_begin = nullptr, *pages = nullptr, *tail = nullptr, *logits_rows = nullptr,
                *tap_rows = nullptr;
};

// The rows of one forward. Columns have n_rows() entries unless noted; span, table and tail are
// explained in kernels/attention.h. A row's KV is written to its slot before any row attends to it.
struct ForwardRows {
  std::vector<int32_t> token;
  std::vector<int32_t> position;
  std::vector<int32_t> slot;  // slot in the cache
  std::vector<int32_t> span;
  std::vector<int32_t> table;        // offset into pages
  std::vector<int32_t> tail_begin;   // offset into tail
  std::vector<int32_t> pages;        // any length
  std::vector<int32_t> tail;         // any length
  std::vector<int32_t> logits_rows;  // rows that need logits, increasing
  std::vector<int32_t> tap_rows;     // rows that need taps, increasing

  int32_t n_rows() const { return static_cast<int32_t>(token.size()); }
  void clear();

  // Staging bytes for rows within these limits.
  static uint64_t staging_bytes(int64_t rows, int64_t pages, int64_t tail);
  // Copies the columns to `staging`; the caller uploads them.
  ForwardColumns stage(Staging& staging) const;
  // The columns in place, for a device that uses host memory.
  ForwardColumns in_place();
};

class Transformer {
 public:
  // Loads the weights of `path`; see weights.h. rows_max: rows of one forward; logits_rows_max:
  // rows that need logits. `config` is that of the whole model, of which this rank loads its part.
  static Result<std::unique_ptr<Transformer>> load(Device& device, const std::string& path,
                                                   const ModelConfig& config, int32_t rows_max,
                                                   int32_t logits_rows_max,
                                                   const std::function<void(double)>& progress,
                                                   const RankLinks& ranks = {});
  // Creates a model with random bf16 weights, for benchmarks.
  static Result<std::unique_ptr<Transformer>> random(Device& device, const ModelConfig& config,
                                                     int32_t rows_max, int32_t logits_rows_max,
                                                     uint64_t seed);
  ~Transformer();

  // A tap as in plugin_api/drafter.h, with memory for its rows. [any] REQUIRES a valid tap of
  // the model.
  struct Tap {
    uint32_t point = 0;
    Buffer rows;
  };
  Result<Tap> make_tap(uint32_t point) const;
  // Records the tap from the next forward on. Its index is the number of taps added before it. Taps
  // are never removed, so an index stays valid. [step] between forwards
  void add_tap(Tap tap);
  void reserve_taps(size_t n_more);  // so that adding them takes no memory
  size_t n_taps() const;
  // Of several stages: whether this rank has the state and is the one that sends it to the lead.
  bool sends_tap(uint32_t point) const;

  // Appends the rows' KV to `kv` and computes the requested logits and taps, in stream order. The
  // ranks of a group do this together, each with the KV of its layers and heads and all with the tokens
  // of rank 0; logits and taps are then on rank 0, and undefined when the group has failed
  // (Collective::status()). REQUIRES rows within the limits, tokens in range and distinct slots.
  void forward(const ForwardColumns& rows, KvStore& kv);

  // out = x times the output head, [n_rows, hidden] and [n_rows, vocab], for a model that ranks share.
  // They do it together; only rank 0 passes x and out. REQUIRES at most logits_rows_max() rows, and drops
  // the logits of the last forward on the other ranks.
  void shared_head(const float* x, int32_t n_rows, float* out);

  // Results of the last forward, device memory.
  float* logits() const;                 // [logits_rows, vocab]; may be changed in place
  const float* tap(size_t index) const;  // [tap_rows, hidden]; index by order of add_tap()

  const ModelConfig& config() const;  // of the whole model
  Split split() const;
  int32_t rows_max() const;  // of one forward
  int32_t logits_rows_max() const;
  const Weights& weights() const;
  struct Memory {
    uint64_t weights = 0, activations = 0;
  };
  // Of each rank, this one's at its number. They call gather_bytes() together, once all have loaded the
  // model; until then it is this rank's alone.
  const std::vector<Memory>& held() const;
  void gather_bytes();
  // The same for one rank, before anything is loaded, from the headers of the files. Errors are those of
  // load().
  static Result<Memory> plan(Device& device, const std::string& path, const ModelConfig& config,
                             int32_t rows_max, int32_t logits_rows_max, Split split);

 private:
  Transformer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specd
