#include "core/model/kv_store.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/to_size.h"

namespace specd {
namespace {

using kernels::KvDType;

constexpr KvDType kAll[] = {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kF8E4M3,
                            KvDType::kInt8};

ModelConfig shape(int32_t layers, int32_t kv_heads, int32_t head_dim) {
  ModelConfig config;
  config.n_layers = layers;
  config.n_kv_heads = kv_heads;
  config.head_dim = head_dim;
  return config;
}

struct Piece {
  const char* data;
  uint64_t bytes;
};

// What the layers of a store may write in its page number `page`.
std::vector<Piece> pieces_of(const KvStore& store, int32_t page) {
  std::vector<Piece> all;
  for (const kernels::KvLayer& layer : store.layers()) {
    const uint64_t rows = to_size(layer.n_kv_heads) * to_size(kernels::kPageTokens),
                   each = kernels::kv_dtype_bytes(layer.dtype),
                   at = to_size(page) * layer.page_stride * each;
    for (void* data : {layer.k, layer.v}) {
      all.push_back({static_cast<char*>(data) + at, rows * to_size(layer.head_dim) * each});
    }
    for (float* scales : {layer.k_row_scale, layer.v_row_scale}) {
      EXPECT_EQ(scales != nullptr, layer.dtype == KvDType::kInt8);
      if (scales == nullptr) continue;
      const float* row = scales + to_size(page) * layer.scale_stride;
      all.push_back({reinterpret_cast<const char*>(row), rows * sizeof(float)});
    }
  }
  return all;
}

uint64_t expect_apart(std::vector<Piece> pieces, const char* begin, const char* end) {
  std::ranges::sort(pieces, {}, &Piece::data);
  uint64_t bytes = 0;
  for (const Piece& each : pieces) {
    EXPECT_GE(each.data, begin);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(each.data) % 16, 0u);
    begin = each.data + each.bytes;
    bytes += each.bytes;
  }
  EXPECT_LE(begin, end);
  return bytes;
}

TEST(KvStore, pieces_of_pages_lie_apart_whatever_the_numbers_are) {
  const auto device = CpuDevice::create("", 1).value();
  const ModelConfig large = shape(5, 3, 48), small = shape(2, 1, 16);
  constexpr int32_t kPages = 3;
  for (const KvDType dtype : kAll) {
    const KvStore store = KvStore::create(*device, large, dtype, kPages).value();
    const uint64_t page_bytes = KvStore::page_bytes(large, dtype);
    ASSERT_EQ(store.bytes(), kPages * page_bytes);
    std::vector<Piece> all;
    for (int32_t page = 0; page < kPages; ++page) {
      for (const Piece& each : pieces_of(store, page)) all.push_back(each);
    }
    const auto* begin = static_cast<const char*>(store.layers().front().k);
    EXPECT_EQ(expect_apart(all, begin, begin + store.bytes()), store.bytes());
    for (const KvDType inner : kAll) {
      const KvStore inside = KvStore::inside(store, small, inner).value();
      std::vector<Piece> parts;
      for (int32_t page = 0; page < kPages * inside.parts_per_page(); ++page) {
        for (const Piece& each : pieces_of(inside, page)) parts.push_back(each);
      }
      expect_apart(parts, begin, begin + store.bytes());
    }
  }
}

TEST(KvStore, in_8_bits_takes_a_byte_a_number_and_int8_a_scale_for_each_row) {
  const ModelConfig config = shape(32, 8, 128);
  const uint64_t numbers = uint64_t{2} * 32 * 8 * 128 * kernels::kPageTokens;
  EXPECT_EQ(KvStore::page_bytes(config, KvDType::kBF16), 2 * numbers);
  EXPECT_EQ(KvStore::page_bytes(config, KvDType::kF8E4M3), numbers);
  EXPECT_EQ(KvStore::page_bytes(config, KvDType::kInt8), numbers + numbers / 128 * 4);
}

}  // namespace
}  // namespace specd
