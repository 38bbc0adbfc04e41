// Tensors as the fake host sees them: checks, elements, short floats. See fake_host.h.
#ifndef SPECD_SDK_FAKE_TENSOR_H
#define SPECD_SDK_FAKE_TENSOR_H

#include <specd/plugin_api/types.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace specd::sdk {

// What a function of a service returns, and what the plugin did wrong or why the host refuses.
struct FakeResult {
  FakeResult(specd_status code, std::string why = "") : status(code), text(std::move(why)) {}
  // A violation, or none when the text is empty.
  FakeResult(std::string violation)
      : status(violation.empty() ? SPECD_OK : SPECD_E_INVALID), text(std::move(violation)) {}
  bool is_violation() const {
    const bool is_mine = status == SPECD_OK || status == SPECD_E_INVALID;
    return !text.empty() && (is_mine || status == SPECD_E_PRECONDITION);
  }
  specd_status status;
  std::string text;
};

// What a specd_matrix of the fake host points at.
struct FakeMatrix {
  int64_t n_out = 0, n_in = 0;
  std::vector<float> value;  // [n_out, n_in]
};

template <class T>
T& fake_cell(const specd_tensor* t, int64_t row, int64_t column = 0) {
  return static_cast<T*>(t->data)[row * t->stride[0] + column];
}

// The checks of one call. The first fault stays.
class FakeCheck {
 public:
  static constexpr int64_t kVector = -1;  // as the number of columns: a tensor of rank 1
  static constexpr int64_t kRowsMax = 65535;

  bool ok() const { return fault_.empty(); }
  const std::string& fault() const { return fault_; }
  void expect(bool good, const std::string& text) {
    if (ok() && !good) fault_ = text;
  }
  // The number of rows of a call, and that of columns; 0 when there is a fault.
  int64_t rows(const char* name, const specd_tensor* t) {
    expect(t != nullptr, std::string(name) + " is null");
    expect(!ok() || (t->shape[0] >= 0 && t->shape[0] <= kRowsMax),
           std::string(name) + " has more than 65535 rows");
    return ok() ? t->shape[0] : 0;
  }
  int64_t columns(const char* name, const specd_tensor* t) {
    expect(t != nullptr && t->rank == 2 && t->shape[1] >= 1, std::string(name) + " has no columns");
    return ok() ? t->shape[1] : 0;
  }
  void floats(const char* name, const specd_tensor* t, int64_t rows, int64_t columns = kVector,
              bool strided = false) {
    tensor(name, t, SPECD_DT_FLOAT, rows, columns, strided);
  }
  void ints(const char* name, const specd_tensor* t, int64_t rows, int64_t columns = kVector,
            bool strided = false) {
    tensor(name, t, SPECD_DT_INT, rows, columns, strided);
  }
  // A tensor of 32-bit elements in host memory.
  void tensor(const char* name, const specd_tensor* t, uint8_t code, int64_t rows, int64_t columns,
              bool strided) {
    const std::string what = name;
    expect(t != nullptr, what + " is null");
    if (!ok()) return;
    const bool is_vector = columns == kVector;
    expect(t->struct_size == sizeof *t && t->dtype_code == code && t->dtype_bits == 32 &&
               t->dtype_lanes == 1 && t->device_type == SPECD_DEV_CPU &&
               t->rank == (is_vector ? 1u : 2u),
           what + " is not " + (code == SPECD_DT_INT ? "int32" : "float32") + " of rank " +
               (is_vector ? "1" : "2") + " in host memory");
    if (!ok()) return;
    const auto shape = [](int64_t n, int64_t width, bool vector) {
      return "[" + std::to_string(n) + (vector ? "" : ", " + std::to_string(width)) + "]";
    };
    expect(t->shape[0] == rows && (is_vector || t->shape[1] == columns),
           what + " is " + shape(t->shape[0], t->shape[1], is_vector) + ", expected " +
               shape(rows, columns, is_vector));
    const int64_t width = is_vector ? 1 : columns;
    expect(rows <= 1 || t->stride[0] == width || (strided && t->stride[0] > width),
           what + " has rows that are not dense, or that overlap");
    expect(is_vector || width <= 1 || t->stride[1] == 1, what + " has columns that are not dense");
    if (!ok() || rows == 0 || width == 0) return;
    expect(static_cast<uint64_t>((rows - 1) * t->stride[0] + width) <= t->byte_capacity / 4,
           what + " reaches beyond its capacity");
    expect(t->data != nullptr && reinterpret_cast<uintptr_t>(t->data) % 4 == 0,
           what + " has no data, or is not aligned");
  }
  // Two checked tensors do not share an element. Columns of one matrix may be told apart.
  void apart(const specd_tensor* a, const specd_tensor* b, const char* names) {
    if (!ok() || a->shape[0] == 0 || b->shape[0] == 0) return;
    const int64_t a_end = extent(a), b_end = extent(b), distance = (address(b) - address(a)) / 4;
    if (distance >= a_end || -distance >= b_end) return;
    // The same columns of no row, if they are interleaved.
    const int64_t stride = a->shape[0] > 1 ? a->stride[0] : b->stride[0];
    const bool alike = a->rank == 2 && b->rank == 2 && (a->shape[0] > 1 || b->shape[0] > 1) &&
                       (b->shape[0] <= 1 || b->stride[0] == stride);
    const int64_t shift = alike ? ((distance % stride) + stride) % stride : 0;
    expect(alike && shift >= a->shape[1] && stride - shift >= b->shape[1],
           std::string(names) + " overlap");
  }

 private:
  static int64_t address(const specd_tensor* t) { return reinterpret_cast<int64_t>(t->data); }
  static int64_t extent(const specd_tensor* t) {
    return (t->shape[0] - 1) * t->stride[0] + (t->rank == 2 ? t->shape[1] : 1);
  }

  std::string fault_;
};

// ---- short floats ----------------------------------------------------------------------------

inline float fake_from_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}
// Rounds to the nearest, as fake_to_f16 does. Not for NaN.
inline uint16_t fake_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline float fake_from_f16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  float value = std::ldexp(static_cast<float>(fraction + (exponent == 0 ? 0 : 1024)),
                           (exponent == 0 ? 1 : exponent) - 25);
  if (exponent == 31) value = fraction == 0 ? INFINITY : NAN;
  return (bits & 0x8000) != 0 ? -value : value;
}
inline uint16_t fake_to_f16(float value) {
  const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  const float size = std::fabs(value);
  if (size == 0) return static_cast<uint16_t>(sign);
  if (size >= 65520) return static_cast<uint16_t>(sign | 0x7c00);
  const int exponent = std::max(std::ilogb(size), -14);
  // 1024 to 2048 units of the last place; fewer when the number is subnormal.
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return static_cast<uint16_t>(sign | ((static_cast<uint32_t>(exponent + 14) << 10) + units));
}
// An element of stored data, at any alignment: float32, float16 or bfloat16.
inline float fake_float_at(const void* data, uint8_t code, uint8_t bits, int64_t i) {
  const char* at = static_cast<const char*>(data) + i * (bits / 8);
  float value = 0;
  uint16_t half = 0;
  std::memcpy(bits == 16 ? static_cast<void*>(&half) : &value, at, bits / 8);
  if (bits == 32) return value;
  return code == SPECD_DT_BFLOAT ? fake_from_bf16(half) : fake_from_f16(half);
}
inline bool fake_is_short_or_float32(uint8_t code, uint8_t bits) {
  return (code == SPECD_DT_FLOAT && (bits == 32 || bits == 16)) ||
         (code == SPECD_DT_BFLOAT && bits == 16);
}

// ---- numbers from keys -----------------------------------------------------------------------

inline uint64_t fake_hash(std::initializer_list<uint64_t> key) {
  uint64_t x = 0x243f6a8885a308d3u;
  for (const uint64_t part : key) {
    x += part + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return x;
}
// In [0, 1).
inline float fake_unit(uint64_t bits) { return static_cast<float>(bits >> 40) * 0x1p-24f; }

}  // namespace specd::sdk

#endif
