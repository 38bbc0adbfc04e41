// What services check of the arguments that plugins give them.
#pragma once

#include <cstdint>
#include <string>

#include "core/device/device.h"
#include "core/plugin/instance/host_context.h"
#include "specd/plugin_api/types.h"

namespace specd {

// Reports `text` and returns `status`. `call` may be null.
specd_status refuse(specd_call* call, specd_status status, const std::string& text);

// Empty when `tensor` is a tensor of `rank` axes of 32-bit `dtype_code` in host memory, or in that
// of `device` when it is not null, whose last axis is contiguous if `rank` is 2, and whose elements
// all lie in its capacity; else what is wrong.
std::string tensor_fault(const char* name, const specd_tensor* tensor, uint8_t dtype_code,
                         uint32_t rank, const Device* device = nullptr);

// Of tensors in host memory without fault.
inline int32_t element(const specd_tensor& tensor, int64_t i) {
  return static_cast<const int32_t*>(tensor.data)[i * tensor.stride[0]];
}
template <typename T>  // also of device memory
T* row(const specd_tensor& tensor, int64_t i) {
  return static_cast<T*>(tensor.data) + i * tensor.stride[0];
}

}  // namespace specd
