#include "core/model/kv_store.h"

#include <limits>

namespace specd {
namespace {

// Kernels load vectors from the start of a part.
constexpr uint64_t kPartAlignment = 64;

// Bytes of K or V of one page in one layer.
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
  store.page_bytes_ = page_bytes(config, dtype);
  SPECD_TRY(store.buffer_, device.allocate(store.bytes(), "KV cache"));
  store.lay_out(store.buffer_.data(), config, dtype);
  return store;
}

Result<KvStore> KvStore::inside(const KvStore& pages, const ModelConfig& config,
                                kernels::DType dtype) {
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

void KvStore::lay_out(void* data, const ModelConfig& config, kernels::DType dtype) {
  const uint64_t half = half_page_bytes(config, dtype);
  const uint64_t stride = page_bytes_ / static_cast<uint64_t>(n_parts_);
  char* next = static_cast<char*>(data);
  for (int32_t layer = 0; layer < config.n_layers; ++layer, next += 2 * half) {
    layers_.push_back({.k = next,
                       .v = next + half,
                       .dtype = dtype,
                       .n_kv_heads = config.n_kv_heads,
                       .head_dim = config.head_dim,
                       .page_stride = stride / kernels::dtype_bytes(dtype)});
  }
}

}  // namespace specd
