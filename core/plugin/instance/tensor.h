// specd_tensor views of host memory.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "specd/plugin_api/types.h"

namespace specd {

// Row-major and contiguous; at most SPECD_MAX_RANK sizes.
inline specd_tensor host_tensor(void* data, uint8_t dtype_code, uint8_t dtype_bits,
                                std::initializer_list<int64_t> shape) {
  specd_tensor tensor{};
  tensor.struct_size = sizeof(specd_tensor);
  tensor.dtype_code = dtype_code;
  tensor.dtype_bits = dtype_bits;
  tensor.dtype_lanes = 1;
  tensor.device_type = SPECD_DEV_CPU;
  tensor.data = data;
  tensor.rank = static_cast<uint32_t>(shape.size());
  int64_t elements = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    tensor.shape[axis] = shape.begin()[axis];
    tensor.stride[axis] = elements;
    elements *= tensor.shape[axis];
  }
  tensor.byte_capacity = static_cast<uint64_t>(elements) * (dtype_bits / 8);
  return tensor;
}

inline specd_tensor host_i32(int32_t* data, std::initializer_list<int64_t> shape) {
  return host_tensor(data, SPECD_DT_INT, 32, shape);
}

}  // namespace specd
