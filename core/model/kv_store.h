// The bytes of the paged KV cache: pages of one size, whoever holds them. Which sequence holds
// which page is kv/'s business.
//
//   page 0                                        page 1
//   | layer 0: K, V | layer 1: K, V | ...         | ...          of the model the pages were cut
//   for | 0: all layers | 1: all layers | ... | m - 1 | ...          of a smaller model inside
//
// A smaller model's page of kPageTokens tokens is a part of a page, so that its KV costs what it
// weighs: part j of page p is its page number p * m + j.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/device/staging.h"
#include "core/model/model_config.h"

namespace specd {

class KvStore {
 public:
  static uint64_t page_bytes(const ModelConfig& config, kernels::DType dtype);
  // Pages cut for this model.
  static Result<KvStore> create(Device& device, const ModelConfig& config, kernels::DType dtype,
                                int32_t n_pages);
  // The pages of `pages`, which outlives it, cut for another model. kUnsupported when a page of
  // that model is larger than one of `pages`.
  static Result<KvStore> inside(const KvStore& pages, const ModelConfig& config,
                                kernels::DType dtype);

  // Copies slot from[i] to slot to[i] in every layer, in stream order; see kernels/attention.h for
  // what the order asks of them. Submits nothing when `columns` has no memory for both; its
  // status() says so.
  void move(Device& device, Staging& columns, const std::vector<int32_t>& from,
            const std::vector<int32_t>& to) const;

  const std::vector<kernels::KvLayer>& layers() const { return layers_; }
  int32_t n_pages() const { return n_pages_; }         // of the pool, whole ones
  int32_t parts_per_page() const { return n_parts_; }  // m above; 1 for whom they were cut
  uint64_t bytes() const { return page_bytes_ * static_cast<uint64_t>(n_pages_); }

 private:
  void lay_out(void* data, const ModelConfig& config, kernels::DType dtype);

  Buffer buffer_;  // empty inside another's
  std::vector<kernels::KvLayer> layers_;
  uint64_t page_bytes_ = 0;
  int32_t n_pages_ = 0;
  int32_t n_parts_ = 1;
};

}  // namespace specd
