// specd_tensor views of memory.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "specd/plugin_api/types.h"

namespace specd {

// Row-major and contiguous; at most SPECD_MAX_RANK sizes.
inline specd_tensor host_tensor(void* data, uint8_t dtype_code, uint8_t dtype_bits,
                                std::span<const int64_t> shape) {
  specd_tensor tensor{};
  tensor.struct_size = sizeof(specd_tensor);
  tensor.dtype_code = dtype_code;
  tensor.dtype_bits = dtype_bits;
  tensor.dtype_lanes = 1;
  tensor.device_type = SPECD_DEV_CPU;
  tensor.data = data;
  tensor.rank = static_cast<uint32_t>(shape.size());
  uint64_t elements = 1;  // unsigned: beside a size of 0 a file may have any other
  for (size_t axis = shape.size(); axis-- > 0;) {
    tensor.shape[axis] = shape[axis];
    tensor.stride[axis] = static_cast<int64_t>(elements);
    elements *= static_cast<uint64_t>(shape[axis]);
  }
  tensor.byte_capacity = elements * (dtype_bits / 8);
  return tensor;
}
inline specd_tensor host_tensor(void* data, uint8_t dtype_code, uint8_t dtype_bits,
                                std::initializer_list<int64_t> shape) {
  return host_tensor(data, dtype_code, dtype_bits, std::span(shape.begin(), shape.size()));
}

// The same tensor in the memory of a device.
inline specd_tensor in_device_memory(specd_tensor tensor, int32_t device_index) {
  tensor.device_type = SPECD_DEV_CUDA;
  tensor.device_index = device_index;
  return tensor;
}

inline specd_tensor host_i32(int32_t* data, std::initializer_list<int64_t> shape) {
  return host_tensor(data, SPECD_DT_INT, 32, shape);
}

}  // namespace specd
