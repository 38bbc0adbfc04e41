#include "core/model/kv_store.h"

namespace specd {
namespace {

// K or V of one page of one layer.
uint64_t half_page_bytes(const ModelConfig& config, kernels::DType dtype) {
  return uint64_t{kernels::kPageTokens} * static_cast<uint64_t>(config.n_kv_heads) *
         static_cast<uint64_t>(config.head_dim) * kernels::dtype_bytes(dtype);
}

}  // namespace

uint64_t KvStore::page_bytes(const ModelConfig& config, kernels::DType dtype) {
  return 2 * half_page_bytes(config, dtype) * static_cast<uint64_t>(config.n_layers);
}

Result<KvStore> KvStore::create(Device& device, const ModelConfig& config, kernels::DType dtype,
                                int32_t n_pages) {
  KvStore store;
  store.n_pages_ = n_pages;
  const uint64_t half_layer = half_page_bytes(config, dtype) * static_cast<uint64_t>(n_pages);
  SPECD_TRY(store.buffer_,
            device.allocate(2 * half_layer * static_cast<uint64_t>(config.n_layers), "KV cache"));
  char* next = store.buffer_.as<char>();
  for (int32_t layer = 0; layer < config.n_layers; ++layer, next += 2 * half_layer) {
    store.layers_.push_back({.k = next,
                             .v = next + half_layer,
                             .dtype = dtype,
                             .n_kv_heads = config.n_kv_heads,
                             .head_dim = config.head_dim});
  }
  return store;
}

}  // namespace specd
