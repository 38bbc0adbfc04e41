#include "core/model/kv_store.h"

#include <limits>

namespace specd {
namespace {

// Kernels load vectors from the start of a part.
constexpr uint64_t kPartAlignment = 64;

// Bytes of K or V of one page in one layer, without and with the scales of its rows.
uint64_t codes_bytes(const ModelConfig& config, kernels::KvDType dtype) {
  return uint64_t{kernels::kPageTokens} * static_cast<uint64_t>(config.n_kv_heads) *
         static_cast<uint64_t>(config.head_dim) * kernels::kv_dtype_bytes(dtype);
}
uint64_t scales_bytes(const ModelConfig& config, kernels::KvDType dtype) {
  if (dtype != kernels::KvDType::kInt8) return 0;
  return uint64_t{kernels::kPageTokens} * static_cast<uint64_t>(config.n_kv_heads) * sizeof(float);
}

}  // namespace

uint64_t KvStore::page_bytes(const ModelConfig& config, kernels::KvDType dtype) {
  return 2 * (codes_bytes(config, dtype) + scales_bytes(config, dtype)) *
         static_cast<uint64_t>(config.n_layers);
}

Result<KvStore> KvStore::create(Device& device, const ModelConfig& config, kernels::KvDType dtype,
                                int32_t n_pages) {
  KvStore store;
  store.n_pages_ = n_pages;
  store.page_bytes_ = page_bytes(config, dtype);
  SPECD_TRY(store.buffer_, device.allocate(store.bytes(), "KV cache"));
  store.lay_out(store.buffer_.data(), config, dtype);
  return store;
}

Result<KvStore> KvStore::inside(const KvStore& pages, const ModelConfig& config,
                                kernels::KvDType dtype) {
  KvStore store;
  store.n_pages_ = pages.n_pages_;
  store.page_bytes_ = pages.page_bytes_;
  const uint64_t need = page_bytes(config, dtype);
  if (need > pages.page_bytes_) {
    return Status(Code::kUnsupported, "the KV of " + std::to_string(kernels::kPageTokens) +
                                          " tokens takes " + std::to_string(need) +
                                          " bytes, a page of the target's cache has " +
                                          std::to_string(pages.page_bytes_) +
                                          "; use a smaller model or a smaller kv.dtype for it");
  }
  // As many parts as fit and divide the page evenly, so that one stride fits all.
  uint64_t parts = pages.page_bytes_ / need;
  while (pages.page_bytes_ % (parts * kPartAlignment) != 0) --parts;
  // Slots are 32-bit.
  const uint64_t slots =
      static_cast<uint64_t>(pages.n_pages_) * parts * uint64_t{kernels::kPageTokens};
  if (slots > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
    return Status(Code::kUnsupported, "the target's cache has room for " + std::to_string(slots) +
                                          " tokens of it, more than 2^31 - 1; lower "
                                          "model.kv.bytes_max");
  }
  store.n_parts_ = static_cast<int32_t>(parts);
  store.lay_out(pages.buffer_.data(), config, dtype);
  return store;
}

void KvStore::move(Device& device, Staging& columns, const KvMoves& moves) const {
  const Column<int32_t> sources = columns.add(moves.from), targets = columns.add(moves.to);
  if (!columns.status().ok()) return;
  columns.upload();
  for (const kernels::KvLayer& layer : layers_) {
    device.ops().kv_move(device.stream(), {.kv = layer,
                                           .from = sources.device,
                                           .to = targets.device,
                                           .n = static_cast<int32_t>(moves.from.size())});
  }
}

void KvStore::lay_out(void* data, const ModelConfig& config, kernels::KvDType dtype) {
  const uint64_t codes = codes_bytes(config, dtype), scales = scales_bytes(config, dtype);
  const uint64_t stride = page_bytes_ / static_cast<uint64_t>(n_parts_);
  char* next = static_cast<char*>(data);
  for (int32_t i = 0; i < config.n_layers; ++i, next += 2 * (codes + scales)) {
    kernels::KvLayer layer{.k = next,
                           .v = next + codes,
                           .dtype = dtype,
                           .n_kv_heads = config.n_kv_heads,
                           .head_dim = config.head_dim,
                           .page_stride = stride / kernels::kv_dtype_bytes(dtype)};
    if (scales > 0) {
      layer.k_row_scale = reinterpret_cast<float*>(next + 2 * codes);
      layer.v_row_scale = reinterpret_cast<float*>(next + 2 * codes + scales);
      layer.scale_stride = stride / sizeof(float);
    }
    layers_.push_back(layer);
  }
}

}  // namespace specd
