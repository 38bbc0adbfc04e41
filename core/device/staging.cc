#include "core/device/staging.h"

#include <bit>

namespace specd {

Result<Staging> Staging::create(Device& device, uint64_t bytes, const std::string& what) {
  Staging staging;
  staging.device_ = &device;
  staging.what_ = what;
  staging.capacity_ = bytes;
  SPECD_TRY(staging.host_, device.allocate_pinned(bytes, what));
  if (!device.is_host()) {
    SPECD_TRY(staging.memory_, device.allocate(bytes, what));
  }
  return staging;
}

Result<bool> Staging::reserve(uint64_t bytes) {
  clear();
  if (bytes <= capacity_) return false;
  SPECD_TRY(Staging larger, create(*device_, std::bit_ceil(bytes), what_));
  *this = std::move(larger);
  return true;
}

void Staging::upload_first(uint64_t bytes) {
  if (!device_->is_host()) device_->copy_in(device_memory(), host(), bytes);
  uploaded_ = used_;
}

void Staging::upload() {
  if (!device_->is_host()) {
    device_->copy_in(device_memory() + uploaded_, host() + uploaded_, used_ - uploaded_);
  }
  uploaded_ = used_;
}

}  // namespace specd
