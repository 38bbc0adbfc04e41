#include "specd/kernels/attention.h"

#include <string>

#include "tests/kernels/kernel_testing.h"

namespace specd::kernels {
namespace {

class Rope : public IsaTest {};
SPECD_FOR_EACH_ISA(Rope);

TEST_P(Rope, table_is_near_float64) {
  const std::vector<int32_t> position = {0, 1, 17, 4000};
  std::vector<float> inv_freq(32);
  for (size_t i = 0; i < 32; ++i) inv_freq[i] = std::pow(10000.0f, -static_cast<float>(i) / 32.0f);
  std::vector<float> table(4 * 64, kNan);
  WorkerPool pool(3);
  CpuStream stream(pool);
  ops().rope_table(stream, {position.data(), inv_freq.data(), table.data(), 4, 64});
  for (size_t r = 0; r < 4; ++r) {
    for (size_t i = 0; i < 32; ++i) {
      const double angle = static_cast<float>(position[r]) * inv_freq[i];
      EXPECT_NEAR(table[r * 64 + i], std::cos(angle), 1e-6);
      EXPECT_NEAR(table[r * 64 + 32 + i], std::sin(angle), 1e-6);
    }
  }
}

// A cache whose K and V, and scales, are all bytes of 0xff before anything is appended.
struct Cache {
  Cache(KvDType type, int32_t kv_heads, int32_t dim, int32_t pages)
      : layer{.dtype = type,
              .n_kv_heads = kv_heads,
              .head_dim = dim,
              .page_stride = static_cast<size_t>(kv_heads * dim * kPageTokens + 48),
              .scale_stride = static_cast<size_t>(kv_heads * kPageTokens + 4),
              .k_scale = 0.013f,
              .v_scale = 1.7f},
        k(static_cast<size_t>(pages) * layer.page_stride * kv_dtype_bytes(type), '\xff'),
        v(k),
        k_row_scale(static_cast<size_t>(pages) * layer.scale_stride, -1.0f),
        v_row_scale(k_row_scale) {}

  KvLayer view() {
    KvLayer all = layer;
    all.k = k.data(), all.v = v.data();
    all.k_row_scale = k_row_scale.data(), all.v_row_scale = v_row_scale.data();
    return all;
  }
  // Stores a row of K or V by the contract, one number at a time.
  void put(bool is_k, const std::vector<float>& x, int32_t slot, int32_t g) {
    const size_t page = static_cast<size_t>(slot / kPageTokens),
                 offset = static_cast<size_t>(slot % kPageTokens), dim = x.size();
    std::vector<char> bytes;
    if (layer.dtype == KvDType::kInt8) {
      const Int8Row row = int8_row(x);
      bytes.assign(row.codes.begin(), row.codes.end());
      (is_k ? k_row_scale : v_row_scale)[page * layer.scale_stride +
                                         static_cast<size_t>(g) * kPageTokens + offset] = row.scale;
    } else {
      std::vector<float> scaled = x;
      for (float& each : scaled) {
        if (layer.dtype == KvDType::kF8E4M3) each = each / (is_k ? layer.k_scale : layer.v_scale);
      }
      bytes = narrowed(scaled, layer.dtype).bytes;
    }
    const size_t each = kv_dtype_bytes(layer.dtype);
    const size_t slab = page * layer.page_stride + static_cast<size_t>(g) * dim * kPageTokens;
    for (size_t d = 0; d < dim; ++d) {
      const size_t at = slab + (is_k ? d * kPageTokens + offset : offset * dim + d);
      std::memcpy(&(is_k ? k : v)[at * each], &bytes[d * each], each);
    }
  }
  void expect_is(const Cache& other, const std::string& what) const {
    for (const bool is_k : {true, false}) {
      const std::vector<char>&mine = is_k ? k : v, &theirs = is_k ? other.k : other.v;
      for (size_t i = 0; i < mine.size(); ++i) {
        ASSERT_EQ(mine[i], theirs[i]) << what << (is_k ? ", k" : ", v") << ", byte " << i;
      }
    }
    EXPECT_EQ(first_difference(k_row_scale, other.k_row_scale), -1) << what;
    EXPECT_EQ(first_difference(v_row_scale, other.v_row_scale), -1) << what;
  }

  KvLayer layer;
  std::vector<char> k, v;
  std::vector<float> k_row_scale, v_row_scale;
};

TEST_P(Rope, rotates_to_the_bit_and_appends_in_the_caches_type) {
  const int32_t H = 6;
  const int32_t G = 2;
  for (const KvDType type : kAllKv) {
    for (const int32_t D : {16, 48, 64}) {
      for (const int32_t n_rows : {1, 2, 5}) {
        const std::vector<int32_t> all_slots = {37, 0, -1, 16, 47};  // -1: not kept
        const size_t row = static_cast<size_t>(H + 2 * G) * D;
        const std::vector<float> start = random_floats(n_rows * row, 1);
        const std::vector<float> cos_sin = random_floats(static_cast<size_t>(n_rows) * D, 2);
        // The oracle.
        std::vector<float> rotated = start;
        Cache expected(type, G, D, 3);
        for (int32_t r = 0; r < n_rows; ++r) {
          for (int32_t h = 0; h < H + G; ++h) {
            float* x = &rotated[r * row + static_cast<size_t>(h) * D];
            for (int32_t i = 0; i < D / 2; ++i) {
              const float a = x[i];
              const float b = x[i + D / 2];
              const float c = cos_sin[static_cast<size_t>(r) * D + i];
              const float s = cos_sin[static_cast<size_t>(r) * D + D / 2 + i];
              x[i] = std::fma(a, c, -(b * s));
              x[i + D / 2] = std::fma(b, c, a * s);
            }
          }
          for (int32_t head = 0; all_slots[r] >= 0 && head < 2 * G; ++head) {
            const auto at = rotated.begin() + static_cast<int64_t>(r * row + (H + head) * D);
            expected.put(head < G, {at, at + D}, all_slots[r], head % G);
          }
        }
        for (int threads = 1; threads <= 4; ++threads) {
          std::vector<float> qkv = start;
          Cache cache(type, G, D, 3);
          WorkerPool pool(threads);
          CpuStream stream(pool);
          ops().rope_append(
              stream, {qkv.data(), cos_sin.data(), all_slots.data(), cache.view(), n_rows, H});
          EXPECT_EQ(first_difference(qkv.data(), rotated.data(), static_cast<size_t>(H) * D), -1);
          cache.expect_is(expected, std::string(dtype_name(type)) + " " + std::to_string(D));
        }
      }
    }
  }
}

// Rows that a cache of 8 bits cannot hold as they are, and every number halfway between two codes.
TEST_P(Rope, a_cache_of_8_bits_takes_every_row) {
  const int32_t D = 256;
  std::vector<std::vector<float>> rows(9, std::vector<float>(D));
  for (int32_t d = 0; d < D; ++d) {
    const auto code = static_cast<uint8_t>(d);
    const float halfway = (widen_f8(code) + widen_f8(static_cast<uint8_t>(code + 1))) / 2;
    rows[1][d] = (code & 0x7f) < 0x7e ? halfway : 464.0f;
    rows[2][d] = std::nextafter(rows[1][d], 1e9f);
    rows[3][d] = std::nextafter(rows[1][d], -1e9f);
    rows[4][d] = d == 255 ? 127.0f : static_cast<float>(d % 254) - 126.5f;  // halfway, scale 1
    rows[5][d] = d == 77 ? 1e30f : 1e-3f;
    rows[6][d] = std::ldexp(d % 2 == 0 ? 1.0f : -1.0f, -101 - d % 40);
    rows[7][d] = d == 3 ? -std::numeric_limits<float>::infinity() : 1.0f;
    rows[8][d] = d == 250 ? kNan : -2.0f;
  }
  for (const KvDType type : {KvDType::kF8E4M3, KvDType::kInt8}) {
    Cache expected(type, 1, D, 1), cache(type, 1, D, 1);
    expected.layer.k_scale = expected.layer.v_scale = 1;
    cache.layer = expected.layer;
    std::vector<float> qkv;
    std::vector<int32_t> slots;
    for (size_t r = 0; r < rows.size(); ++r) {
      qkv.insert(qkv.end(), D, 0.0f);  // q
      qkv.insert(qkv.end(), D, 0.0f);  // k
      qkv.insert(qkv.end(), rows[r].begin(), rows[r].end());
      slots.push_back(static_cast<int32_t>(r));
      expected.put(true, std::vector<float>(D), slots.back(), 0);
      expected.put(false, rows[r], slots.back(), 0);
    }
    std::vector<float> cos_sin(rows.size() * D, 1.0f);
    WorkerPool pool(2);
    CpuStream stream(pool);
    ops().rope_append(stream, {qkv.data(), cos_sin.data(), slots.data(), cache.view(),
                               static_cast<int32_t>(rows.size()), 1});
    cache.expect_is(expected, dtype_name(type));
    if (type == KvDType::kInt8) {
      EXPECT_EQ(cache.v_row_scale[0], 0.0f) << "a row of zeros";
      EXPECT_EQ(cache.v_row_scale[5], 1e30f / 127) << "a row with one huge number";
      EXPECT_EQ(cache.v_row_scale[6], 0.0f) << "too small for a scale";
      EXPECT_TRUE(std::isnan(cache.v_row_scale[7]) && std::isnan(cache.v_row_scale[8]));
    }
  }
}

}  // namespace
}  // namespace specd::kernels
