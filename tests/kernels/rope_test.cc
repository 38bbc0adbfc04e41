#include "specd/kernels/attention.h"
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

TEST_P(Rope, rotates_to_the_bit_and_appends_in_the_caches_type) {
  const int32_t H = 6;
  const int32_t G = 2;
  const int32_t pages = 3;
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int32_t D : {16, 48, 64}) {
      for (const int32_t n_rows : {1, 2, 5}) {
        const std::vector<int32_t> all_slots = {37, 0, -1, 16, 47};  // -1: not kept
        const size_t row = static_cast<size_t>(H + 2 * G) * D;
        const std::vector<float> start = random_floats(n_rows * row, 1);
        const std::vector<float> cos_sin = random_floats(static_cast<size_t>(n_rows) * D, 2);
        // The oracle.
        std::vector<float> rotated = start;
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
        }
        for (int threads = 1; threads <= 4; ++threads) {
          std::vector<float> qkv = start;
          const size_t stride = static_cast<size_t>(G * D * kPageTokens + 48);
          const size_t elements = static_cast<size_t>(pages) * stride;
          std::vector<char> k = narrowed(std::vector<float>(elements, kNan), type).bytes;
          std::vector<char> v = k;
          const std::vector<char> untouched = k;
          WorkerPool pool(threads);
          CpuStream stream(pool);
          ops().rope_append(stream, {qkv.data(),
                                     cos_sin.data(),
                                     all_slots.data(),
                                     {k.data(), v.data(), type, G, D, stride},
                                     n_rows,
                                     H});
          EXPECT_EQ(first_difference(qkv.data(), rotated.data(), static_cast<size_t>(H) * D), -1);
          std::vector<char> k_expected = untouched;
          std::vector<char> v_expected = untouched;
          const size_t bytes = dtype_bytes(type);
          const std::vector<char> values = narrowed(rotated, type).bytes;
          for (int32_t r = 0; r < n_rows; ++r) {
            if (all_slots[r] < 0) continue;
            const size_t page = static_cast<size_t>(all_slots[r] / kPageTokens);
            const size_t offset = static_cast<size_t>(all_slots[r] % kPageTokens);
            for (int32_t g = 0; g < G; ++g) {
              for (int32_t d = 0; d < D; ++d) {
                const size_t from_k = r * row + static_cast<size_t>(H + g) * D + d;
                const size_t from_v = r * row + static_cast<size_t>(H + G + g) * D + d;
                std::memcpy(
                    &k_expected[(page * stride + static_cast<size_t>((g * D + d) * 16) + offset) *
                                bytes],
                    &values[from_k * bytes], bytes);
                std::memcpy(
                    &v_expected[(page * stride + (static_cast<size_t>(g) * 16 + offset) * D + d) *
                                bytes],
                    &values[from_v * bytes], bytes);
              }
            }
          }
          EXPECT_EQ(k, k_expected) << dtype_name(type) << " " << D;
          EXPECT_EQ(v, v_expected) << dtype_name(type) << " " << D;
        }
      }
    }
  }
}

}  // namespace
}  // namespace specd::kernels
