// The bytes of the paged KV cache: per layer one block of K pages and one of V pages. Which
// sequence holds which page is kv/'s business.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/device/device.h"
#include "core/model/model_config.h"

namespace specd {

class KvStore {
 public:
  static uint64_t page_bytes(const ModelConfig& config, kernels::DType dtype);
  static Result<KvStore> create(Device& device, const ModelConfig& config, kernels::DType dtype,
                                int32_t n_pages);

  const std::vector<kernels::KvLayer>& layers() const { return layers_; }
  int32_t n_pages() const { return n_pages_; }
  uint64_t bytes() const { return buffer_.bytes(); }

 private:
  Buffer buffer_;
  std::vector<kernels::KvLayer> layers_;
  int32_t n_pages_ = 0;
};

}  // namespace specd
