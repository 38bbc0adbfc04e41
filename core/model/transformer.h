// The transformer of Llama and its family as one forward: rows in, logits and taps out. Prefill,
// decode, chain and tree are the same thing: rows with a position, a slot and a way to their
// ancestors.
//
// Source of the arithmetic's order: transformers, models/llama/modeling_llama.py.
// [step] one forward at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/device/device.h"
#include "core/device/staging.h"
#include "core/model/kv_store.h"
#include "core/model/model_config.h"
#include "core/model/weights.h"

namespace specd {

// Segments of k in which o_proj and down_proj are added (law 1): fixed, so that ranks exchange
// whole segments.
inline constexpr int32_t kRowParallelSegments = 8;

// The columns of ForwardRows where the device reads them.
struct ForwardColumns {
  int32_t n_rows = 0, n_logits = 0, n_taps = 0;
  Column<int32_t> token;  // the device may write it before the forward
  const int32_t *position = nullptr, *slot = nullptr, *span = nullptr, *table = nullptr,
                *tail_begin = nullptr, *pages = nullptr, *tail = nullptr, *logits_rows = nullptr,
                *tap_rows = nullptr;
};

// The rows of one forward. Columns have n_rows() entries unless said; see kernels/attention.h for
// span, table and tail. A row's own KV is written to its slot before anything attends to it.
struct ForwardRows {
  std::vector<int32_t> token;
  std::vector<int32_t> position;
  std::vector<int32_t> slot;  // in the cache
  std::vector<int32_t> span;
  std::vector<int32_t> table;        // offset into pages
  std::vector<int32_t> tail_begin;   // offset into tail
  std::vector<int32_t> pages;        // any length
  std::vector<int32_t> tail;         // any length
  std::vector<int32_t> logits_rows;  // rows whose logits are wanted, increasing
  std::vector<int32_t> tap_rows;     // rows whose taps are wanted, increasing

  int32_t n_rows() const { return static_cast<int32_t>(token.size()); }
  void clear();

  // Bytes of staging for rows within these limits.
  static uint64_t staging_bytes(int64_t rows, int64_t pages, int64_t tail);
  // Copies the columns into `staging`; the caller uploads.
  ForwardColumns stage(Staging& staging) const;
  // The columns themselves, for a device whose memory is the host's.
  ForwardColumns in_place();
};

class Transformer {
 public:
  // Loads the weights of `path`, see weights.h. rows_max: rows of one forward; logits_rows_max:
  // rows that want logits.
  static Result<std::unique_ptr<Transformer>> load(Device& device, const std::string& path,
                                                   const ModelConfig& config, int32_t rows_max,
                                                   int32_t logits_rows_max,
                                                   const std::function<void(double)>& progress);
  // With random bf16 weights, for benchmarks.
  static Result<std::unique_ptr<Transformer>> random(Device& device, const ModelConfig& config,
                                                     int32_t rows_max, int32_t logits_rows_max,
                                                     uint64_t seed);
  ~Transformer();

  // A capture point as in plugin_api/drafter.h with the memory for its rows. [any] REQUIRES a point
  // of the model.
  struct Tap {
    uint32_t point = 0;
    Buffer rows;
  };
  Result<Tap> make_tap(uint32_t point) const;
  // Records it from the next forward on. Its index is the number of taps before it; taps are only
  // added, so an index stays good. [step] between forwards
  void add_tap(Tap tap);
  size_t n_taps() const;

  // Appends the rows' KV to `kv` and computes what they want, in stream order. REQUIRES rows within
  // the limits, tokens in range, slots distinct.
  void forward(const ForwardColumns& rows, KvStore& kv);

  // Results of the last forward, device memory.
  float* logits() const;                 // [logits_rows, vocab]; may be changed in place
  const float* tap(size_t index) const;  // [tap_rows, hidden]: order of add_tap()

  const ModelConfig& config() const;
  int32_t rows_max() const;  // of one forward
  int32_t logits_rows_max() const;
  const Weights& weights() const;
  uint64_t activation_bytes() const;

 private:
  Transformer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specd
