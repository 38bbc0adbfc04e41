// A sequence that grows without moving its elements.
#ifndef SPECD_SUFFIX_CHUNKS_H
#define SPECD_SUFFIX_CHUNKS_H

#include <specd/sdk/plugin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace specd::suffix {

using HostAllocator = sdk::HostAllocator<int32_t>;
template <class T>
using HostVector = std::vector<T, sdk::HostAllocator<T>>;

// A doubling vector would copy megabytes in one step and need room for both copies.
template <class T>
class Chunks {
 public:
  static_assert(std::is_trivially_copyable_v<T>, "elements are neither moved nor destroyed");

  explicit Chunks(const HostAllocator& memory) : memory_(memory), chunks_(memory) {}
  ~Chunks() {
    for (T* chunk : chunks_) memory_.deallocate(chunk, kSize);
  }
  Chunks(const Chunks&) = delete;
  Chunks& operator=(const Chunks&) = delete;

  void push_back(const T& value) {
    if (size_ % kSize == 0) {
      chunks_.push_back(nullptr);
      chunks_.back() = memory_.allocate(kSize);
    }
    (*this)[size_] = value;
    ++size_;
  }
  uint32_t size() const { return size_; }
  T& operator[](uint32_t i) { return chunks_[i / kSize][i % kSize]; }
  const T& operator[](uint32_t i) const { return chunks_[i / kSize][i % kSize]; }

 private:
  static constexpr uint32_t kSize = 512;

  sdk::HostAllocator<T> memory_;
  HostVector<T*> chunks_;
  uint32_t size_ = 0;
};

}  // namespace specd::suffix

#endif
