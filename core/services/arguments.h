// Checks of the arguments that plugins pass to services.
#pragma once

#include <cstdint>
#include <string>

#include "core/device/device.h"
#include "core/plugin/instance/host_context.h"
#include "specd/plugin_api/types.h"

namespace specd {

// Reports `text` and returns `status`. `call` may be null.
specd_status refuse(specd_call* call, specd_status status, const std::string& text);

// Empty when `tensor` has `rank` axes of 32-bit `dtype_code`, is in host memory (in that of
// `device` if not null), has contiguous rows if `rank` is 2, and fits its capacity; else what is
// wrong.
std::string tensor_fault(const char* name, const specd_tensor* tensor, uint8_t dtype_code,
                         uint32_t rank, const Device* device = nullptr);

// Empty when the owner's quota has room for `bytes`, else the reason for a refusal.
std::string quota_fault(const specd_owner& owner, uint64_t bytes, const char* function)
    SPECD_REQUIRES(owner.mutex);

// An element of a valid tensor in host memory.
inline int32_t element(const specd_tensor& tensor, int64_t i) {
  return static_cast<const int32_t*>(tensor.data)[i * tensor.stride[0]];
}
// The address of a row of a valid tensor, also in device memory.
template <typename T>
T* row(const specd_tensor& tensor, int64_t i) {
  return static_cast<T*>(tensor.data) + i * tensor.stride[0];
}

}  // namespace specd
