#include "core/services/arguments.h"

#include <algorithm>

namespace specd {

specd_status refuse(specd_call* call, specd_status status, const std::string& text) {
  report_text(call, -1, text);
  return status;
}

std::string quota_fault(const specd_owner& owner, uint64_t bytes, const char* function) {
  constexpr uint64_t kBytesMax = uint64_t{1} << 48;  // so that sums cannot wrap
  const uint64_t left =
      owner.quota_bytes > owner.used_bytes ? owner.quota_bytes - owner.used_bytes : 0;
  if (bytes <= left && bytes <= kBytesMax) return std::string();
  return std::string(function) + ": " + std::to_string(bytes) + " bytes requested, " +
         std::to_string(left) + " of the quota of " + std::to_string(owner.quota_bytes) +
         " are left; caps.bytes_fixed and bytes_per_seq set the quota";
}

specd_status check_active(const specd_owner* owner, const char* function) {
  if (owner != nullptr && owner->device_type != 0) return SPECD_OK;
  return refuse(nullptr, SPECD_E_PRECONDITION,
                std::string(function) + ": allowed from activate() on, with an owner");
}

specd_status check_target(const specd_owner* owner, bool is_loaded, const Device& device,
                          const char* function) {
  if (const specd_status status = check_active(owner, function); status != SPECD_OK) return status;
  if (!is_loaded)
    return refuse(nullptr, SPECD_E_PRECONDITION, std::string(function) + ": no model is loaded");
  if ((owner->device_type == SPECD_DEV_CUDA) == !device.is_host()) return SPECD_OK;
  return refuse(nullptr, SPECD_E_UNSUPPORTED,
                std::string(function) + ": the target is on " + device.name() +
                    ", where this instance does not work; offer that device in the caps");
}

namespace {

std::string describe_tensor(const specd_tensor& tensor) {
  std::string text = "dtype " + std::to_string(tensor.dtype_code) + "/" +
                     std::to_string(tensor.dtype_bits) + ", device " +
                     std::to_string(tensor.device_type) + ":" +
                     std::to_string(tensor.device_index) + ", shape [";
  for (uint32_t axis = 0; axis < std::min<uint32_t>(tensor.rank, SPECD_MAX_RANK); ++axis) {
    if (axis != 0) text += ", ";
    text += std::to_string(tensor.shape[axis]);
  }
  return text + "], capacity " + std::to_string(tensor.byte_capacity) + " bytes";
}

bool lies_on(const specd_tensor& tensor, const Device* device) {
  if (device == nullptr || device->is_host()) return tensor.device_type == SPECD_DEV_CPU;
  return tensor.device_type == SPECD_DEV_CUDA && tensor.device_index == device->index();
}

}  // namespace

std::string tensor_fault(const char* name, const specd_tensor* tensor, uint8_t dtype_code,
                         uint32_t rank, const Device* device) {
  const std::string what(name);
  if (tensor == nullptr) return what + " is null";
  if (tensor->struct_size != sizeof(specd_tensor)) {
    return what + ".struct_size is " + std::to_string(tensor->struct_size) + ", expected " +
           std::to_string(sizeof(specd_tensor));
  }
  const bool typed = tensor->dtype_code == dtype_code && tensor->dtype_bits == 32 &&
                     tensor->dtype_lanes == 1 && tensor->rank == rank && lies_on(*tensor, device);
  if (!typed) {
    return what + " has " + describe_tensor(*tensor) + ", expected " +
           (device == nullptr ? std::string("a CPU tensor") : "a tensor on " + device->name()) +
           " of " + (dtype_code == SPECD_DT_INT ? "int32" : "float32") + " and rank " +
           std::to_string(rank);
  }
  // At most 2^31 elements per axis keep every product below within 64 bits.
  constexpr int64_t kSizeMax = int64_t{1} << 31;
  uint64_t last = 0;
  for (uint32_t axis = 0; axis < rank; ++axis) {
    if (tensor->shape[axis] < 0 || tensor->shape[axis] > kSizeMax || tensor->stride[axis] < 0 ||
        tensor->stride[axis] > kSizeMax) {
      return what + " has a size or stride out of range: " + describe_tensor(*tensor);
    }
    if (tensor->shape[axis] == 0) return std::string();  // no element is accessed
    const auto steps = static_cast<uint64_t>(tensor->shape[axis] - 1);
    // At most 2^62 for one axis; the second is added only when the first fits its capacity.
    last += steps * static_cast<uint64_t>(tensor->stride[axis]);
    if (last >= tensor->byte_capacity / 4) {
      return what + " reaches beyond its capacity: " + describe_tensor(*tensor);
    }
  }
  if (rank == 2 && (tensor->stride[1] != 1 || tensor->stride[0] < tensor->shape[1])) {
    return what + " needs rows that are contiguous and do not overlap";
  }
  if (tensor->data == nullptr || reinterpret_cast<uintptr_t>(tensor->data) % 4 != 0) {
    return what + " has no data, or data that is not aligned to 4 bytes";
  }
  return std::string();
}

}  // namespace specd
