// Structs and columns surrounded by canaries, to detect out-of-bounds writes.
#ifndef SPECD_SDK_CANARY_H
#define SPECD_SDK_CANARY_H

#include <specd/plugin_api/types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace specd::sdk {

inline constexpr unsigned char kCanary = 0xa5;

// A struct with canary bytes after it.
template <class T>
struct Guarded {
  T value{};
  unsigned char canary[64];
  Guarded() { std::memset(canary, kCanary, sizeof canary); }
  bool intact() const {
    for (const unsigned char byte : canary) {
      if (byte != kCanary) return false;
    }
    return true;
  }
};

// A [rows, cols] column with canary cells before and after it. The cells of a row beyond its limit
// are canaries too, so an overflow into the next row is also found.
template <class T>
class GuardedColumn {
 public:
  GuardedColumn(std::size_t rows, std::size_t cols, uint32_t rank = 2)
      : rows_(rows), cols_(cols), limit_(rows, cols), cells_(rows * cols + 2 * kGuard) {
    for (T& cell : cells_) cell = pattern();
    for (std::size_t i = 0; i < rows * cols; ++i) data()[i] = 0;
    tensor_.struct_size = sizeof tensor_;
    tensor_.dtype_code = std::is_floating_point<T>::value ? SPECD_DT_FLOAT : SPECD_DT_INT;
    tensor_.dtype_bits = sizeof(T) * 8;
    tensor_.dtype_lanes = 1;
    tensor_.device_type = SPECD_DEV_CPU;
    tensor_.rank = rank;
    tensor_.data = data();
    tensor_.byte_capacity = rows * cols * sizeof(T);
    tensor_.shape[0] = static_cast<int64_t>(rows);
    tensor_.stride[0] = rank == 1 ? 1 : static_cast<int64_t>(cols);
    tensor_.shape[1] = rank == 1 ? 0 : static_cast<int64_t>(cols);
    tensor_.stride[1] = rank == 1 ? 0 : 1;
  }
  GuardedColumn(const GuardedColumn&) = delete;
  GuardedColumn& operator=(const GuardedColumn&) = delete;

  T* data() { return cells_.data() + kGuard; }
  T& at(std::size_t row, std::size_t col = 0) { return data()[row * cols_ + col]; }
  const specd_tensor* tensor() const { return &tensor_; }

  void limit_row(std::size_t row, std::size_t limit) {
    limit_[row] = limit;
    for (std::size_t c = limit; c < cols_; ++c) at(row, c) = pattern();
  }
  bool intact() {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (cells_[i] != pattern() || cells_[cells_.size() - 1 - i] != pattern()) return false;
    }
    for (std::size_t r = 0; r < rows_; ++r) {
      for (std::size_t c = limit_[r]; c < cols_; ++c) {
        if (at(r, c) != pattern()) return false;
      }
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 16;
  static T pattern() {
    T value;
    std::memset(&value, kCanary, sizeof value);
    return value;
  }

  std::size_t rows_, cols_;
  std::vector<std::size_t> limit_;
  std::vector<T> cells_;
  specd_tensor tensor_{};
};

}  // namespace specd::sdk

#endif
