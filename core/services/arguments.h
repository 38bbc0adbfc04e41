// Checks of the arguments that plugins pass to services.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/mutex.h"
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

// Refuses a call that needs an instance which has been activated.
specd_status check_active(const specd_owner* owner, const char* function);
// Refuses one that works elsewhere than the target, too. `device`: the target's.
specd_status check_target(const specd_owner* owner, bool is_loaded, const Device& device,
                          const char* function);

// Bytes that an owner pays before memory is taken, and gets back unless it keeps that.
class Charge {
 public:
  Charge(specd_owner& owner, uint64_t bytes, const char* function) : owner_(owner), bytes_(bytes) {
    const MutexLock lock(owner.mutex);
    why_ = quota_fault(owner, bytes, function);
    if (is_paid()) owner.used_bytes += bytes;
  }
  ~Charge() {
    if (!is_paid() || is_kept_) return;
    const MutexLock lock(owner_.mutex);
    owner_.used_bytes -= bytes_;
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

  bool is_paid() const { return why_.empty(); }
  const std::string& why() const { return why_; }
  void keep() { is_kept_ = true; }

 private:
  specd_owner& owner_;
  const uint64_t bytes_;
  bool is_kept_ = false;
  std::string why_;
};

// Whether two valid tensors share memory, the gaps between rows included.
inline bool overlap(const specd_tensor& a, const specd_tensor& b) {
  const auto begin = [](const specd_tensor& t) { return reinterpret_cast<uintptr_t>(t.data); };
  const auto end = [&](const specd_tensor& t) {
    if (t.shape[0] == 0) return begin(t);
    const int64_t last = (t.shape[0] - 1) * t.stride[0] + (t.rank == 2 ? t.shape[1] : 1);
    return begin(t) + static_cast<uintptr_t>(last) * 4;
  };
  return begin(a) < end(b) && begin(b) < end(a);
}

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
