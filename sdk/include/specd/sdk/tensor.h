// Tensors in the granted memory, for drafters that pass them on to host services. Their values are
// never read here, so the same code works in host memory and on a device.
#ifndef SPECD_SDK_TENSOR_H
#define SPECD_SDK_TENSOR_H

#include <specd/plugin_api/drafter.h>
#include <specd/sdk/column.h>
#include <specd/sdk/instance.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace specd::sdk {

// A dense view of `data`: [rows], or [rows, columns] when columns >= 0.
template <class T>
specd_tensor tensor_at(T* data, int64_t rows, int64_t columns, int32_t device_type,
                       int32_t device_index) {
  specd_tensor t{};
  t.struct_size = sizeof t;
  t.dtype_code = DtypeOf<T>::kCode;
  t.dtype_bits = DtypeOf<T>::kBits;
  t.dtype_lanes = 1;
  t.device_type = device_type;
  t.device_index = device_index;
  t.rank = columns < 0 ? 1 : 2;
  t.data = data;
  t.shape[0] = rows;
  t.shape[1] = columns < 0 ? 0 : columns;
  t.stride[0] = columns < 0 ? 1 : columns;
  t.stride[1] = columns < 0 ? 0 : 1;
  t.byte_capacity =
      sizeof(T) * static_cast<uint64_t>(rows) * static_cast<uint64_t>(columns < 0 ? 1 : columns);
  return t;
}
// A view of a vector in host memory.
template <class T>
specd_tensor host_view(std::vector<T>& values, int64_t rows, int64_t columns = -1) {
  return tensor_at(values.data(), rows, columns, SPECD_DEV_CPU, 0);
}

// The first n rows, without the others.
inline specd_tensor first_rows(specd_tensor t, int64_t n) {
  t.shape[0] = n;
  return t;
}
// Rows from `first` on.
inline specd_tensor rows_from(specd_tensor t, int64_t first, int64_t n) {
  const uint64_t skipped =
      static_cast<uint64_t>(first * t.stride[0]) * (uint64_t{t.dtype_bits} / 8);
  t.data = static_cast<char*>(t.data) + skipped;
  t.byte_capacity -= skipped;
  t.shape[0] = n;
  return t;
}
// Columns [first, first + n) of every row; rows are then not dense.
inline specd_tensor columns_of(specd_tensor t, int64_t first, int64_t n) {
  const uint64_t skipped = static_cast<uint64_t>(first) * (uint64_t{t.dtype_bits} / 8);
  t.data = static_cast<char*>(t.data) + skipped;
  t.byte_capacity -= skipped;
  t.shape[1] = n;
  return t;
}
// A dense tensor with its elements in another shape: [rows, columns], or [rows] for -1.
inline specd_tensor shaped(specd_tensor t, int64_t rows, int64_t columns = -1) {
  t.rank = columns < 0 ? 1 : 2;
  t.shape[0] = rows;
  t.shape[1] = columns < 0 ? 0 : columns;
  t.stride[0] = columns < 0 ? 1 : columns;
  t.stride[1] = columns < 0 ? 0 : 1;
  return t;
}

// Where an activated drafter works.
struct Place {
  const Instance* instance;
  int32_t device_type, device_index;

  Place(const Instance& of, const specd_drafter_grant& grant)
      : instance(&of), device_type(grant.device_type), device_index(grant.device_index) {}
  bool is_host() const { return device_type == SPECD_DEV_CPU; }
};

// A dense tensor in memory of the instance, zero-filled, charged to its quota. Make it in
// activated().
class Owned {
 public:
  Owned() = default;
  template <class T>
  static Owned make(const Place& place, int64_t rows, int64_t columns = -1) {
    Owned owned;
    owned.instance_ = place.instance;
    owned.memory_ = require_service<specd_memory>(place.instance->host(), SPECD_SERVICE_MEMORY);
    owned.tensor_ = tensor_at<T>(nullptr, rows, columns, place.device_type, place.device_index);
    const uint64_t bytes = owned.tensor_.byte_capacity;
    const specd_status status =
        bytes == 0 ? SPECD_OK
                   : owned.memory_->alloc(place.instance->host(), place.instance->owner(),
                                          place.device_type, place.device_index, bytes, 64,
                                          &owned.tensor_.data);
    if (status != SPECD_OK) {
      throw Error(status, "the host refused " + std::to_string(bytes) +
                              " bytes: over the memory quota of this instance");
    }
    if (place.is_host() && bytes > 0) std::memset(owned.tensor_.data, 0, bytes);
    return owned;
  }
  ~Owned() {
    if (tensor_.data == nullptr) return;
    memory_->free(instance_->host(), instance_->owner(), tensor_.data);
  }
  Owned(Owned&& other) noexcept { swap(other); }
  Owned& operator=(Owned&& other) noexcept {
    swap(other);
    return *this;
  }

  const specd_tensor& operator*() const { return tensor_; }
  specd_tensor rows(int64_t n) const { return first_rows(tensor_, n); }

 private:
  void swap(Owned& other) {
    std::swap(instance_, other.instance_);
    std::swap(memory_, other.memory_);
    std::swap(tensor_, other.tensor_);
  }

  const Instance* instance_ = nullptr;
  const specd_memory* memory_ = nullptr;
  specd_tensor tensor_{};
};

}  // namespace specd::sdk

#endif
