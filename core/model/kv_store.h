// The bytes of the paged KV cache, in pages of one size. kv/ decides which sequence holds
// which page.
//
//   page 0                                      | page 1
//   layer 0: K, V | layer 1: K, V | ...         | ...     the model for which the pages were cut;
//                                                         of int8: K, V, scales of K, of V
//   0: all layers | 1: all layers | ... | m - 1 | ...     a smaller model in the same pages
//
// A smaller model's page of kPageTokens tokens takes part of a page, so it uses only the memory it
// needs: part j of page p is its page number p * m + j.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/device/staging.h"
#include "core/kv/block_table.h"
#include "core/model/model_config.h"

namespace specd {

class KvStore {
 public:
  static uint64_t page_bytes(const ModelConfig& config, kernels::KvDType dtype);
  // Allocates pages cut for this model.
  static Result<KvStore> create(Device& device, const ModelConfig& config, kernels::KvDType dtype,
                                int32_t n_pages);
  // The pages of `pages`, which must outlive it, cut for another model. Fails with kUnsupported
  // when a page of that model is larger than one of `pages`.
  static Result<KvStore> inside(const KvStore& pages, const ModelConfig& config,
                                kernels::KvDType dtype);

  // Copies slots in every layer, in stream order; see kernels/attention.h for
  // the constraints on their order. When `columns` has no memory for both, submits nothing, and its
  // status() has the error.
  void move(Device& device, Staging& columns, const KvMoves& moves) const;

  const std::vector<kernels::KvLayer>& layers() const { return layers_; }
  int32_t n_pages() const { return n_pages_; }  // whole pages of the pool
  // m above; 1 for the model that the pages were cut for
  int32_t parts_per_page() const { return n_parts_; }
  uint64_t bytes() const { return page_bytes_ * static_cast<uint64_t>(n_pages_); }

 private:
  void lay_out(void* data, const ModelConfig& config, kernels::KvDType dtype);

  Buffer buffer_;  // empty when created by inside()
  std::vector<kernels::KvLayer> layers_;
  uint64_t page_bytes_ = 0;
  int32_t n_pages_ = 0;
  int32_t n_parts_ = 1;
};

}  // namespace specd
