// Typed two-dimensional access to a host-readable specd_tensor.
#ifndef SPECD_SDK_COLUMN_H
#define SPECD_SDK_COLUMN_H

#include <specd/plugin_api/types.h>
#include <specd/sdk/error.h>

#include <cstdint>
#include <type_traits>

namespace specd::sdk {

template <class T>
struct DtypeOf;
template <>
struct DtypeOf<int32_t> {
  static constexpr uint8_t kCode = SPECD_DT_INT, kBits = 32;
};
template <>
struct DtypeOf<int64_t> {
  static constexpr uint8_t kCode = SPECD_DT_INT, kBits = 64;
};
template <>
struct DtypeOf<float> {
  static constexpr uint8_t kCode = SPECD_DT_FLOAT, kBits = 32;
};

// A non-owning view of [rows] or [rows, cols]. The constructor checks type, rank, device and that
// there are at least `min_rows` x `min_cols` elements. Access is unchecked.
template <class T>
class Column {
  using Value = std::remove_const_t<T>;

 public:
  Column(const specd_tensor* tensor, int64_t min_rows, int64_t min_cols, const char* name) {
    const bool good = tensor != nullptr && tensor->data != nullptr &&
                      tensor->device_type == SPECD_DEV_CPU &&
                      tensor->dtype_code == DtypeOf<Value>::kCode &&
                      tensor->dtype_bits == DtypeOf<Value>::kBits && tensor->dtype_lanes == 1 &&
                      tensor->rank >= 1 && tensor->rank <= 2 && tensor->shape[0] >= min_rows &&
                      (tensor->rank == 2 ? tensor->shape[1] : 1) >= min_cols;
    if (!good) {
      throw Error(SPECD_E_INVALID, std::string(name) + ": expected a CPU tensor of at least [" +
                                       std::to_string(min_rows) + ", " + std::to_string(min_cols) +
                                       "]");
    }
    data_ = static_cast<T*>(tensor->data);
    row_ = tensor->stride[0];
    col_ = tensor->rank == 2 ? tensor->stride[1] : 0;
  }

  T& operator()(int64_t row, int64_t col = 0) const { return data_[row * row_ + col * col_]; }

 private:
  T* data_;
  int64_t row_;
  int64_t col_;
};

}  // namespace specd::sdk

#endif
