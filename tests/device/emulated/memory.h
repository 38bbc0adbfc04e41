// Device memory, the shared memory of the block that runs, and what is known of every byte of both. One
// thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>

#include "tests/device/emulated/emulator.h"

namespace specd::emulated {

// Of the access that is checked. A stamp counts the barriers of a block; an access with a smaller
// stamp than the last barrier of both threads came before the other.
struct Accessor {
  uint32_t launch_begin = 0;  // blocks of this launch have this number or a later one
  uint32_t block = 0;         // counts all blocks ever run, from 1
  uint32_t thread = 0;
  uint32_t stamp = 0;
  uint32_t block_barrier = 0;  // the stamp since the last barrier of the block
  uint32_t warp_barrier = 0;   // and since the last one of this warp
  uint32_t settled = 0;        // what this block and earlier ones wrote is there for every launch
  bool early = false;          // this thread has no order with the blocks after `settled`
};

constexpr uint32_t kStampMax = (1u << 13) - 1;
constexpr size_t kSharedMax = size_t{256} << 10;
constexpr size_t kGranule = 8;  // bytes of which one access is remembered

class Memory {
 public:
  // Throws std::runtime_error when the addresses cannot be reserved.
  explicit Memory(uint64_t device_bytes);

  // Null when too little is left. Aligned to 256 bytes, with a gap of as much after it.
  void* allocate(size_t bytes);
  bool release(void* data);  // false: there is no such block
  void release_all();
  uint64_t free_bytes() const { return total_ - used_; }
  uint64_t total_bytes() const { return total_; }
  bool is_device(const void* data) const {
    return offset_of(data) - kSharedMax < span_ - kSharedMax;
  }
  // Whether all bytes are in one live block of device memory.
  bool is_live(const void* data, size_t bytes) const;

  // Between these device memory can be accessed; otherwise host code that does crashes.
  void open();
  void close();
  // A copy or a memset by a stream: REQUIRES is_live.
  void defined(const void* data, size_t bytes);
  bool is_shared(const void* data, size_t bytes) const {
    return offset_of(data) < kSharedMax && bytes <= kSharedMax - offset_of(data);
  }
  // Nobody has written them, again. REQUIRES whole granules.
  void undefined(const void* data, size_t bytes) {
    std::memset(defined_ + offset_of(data) / kGranule, 0, bytes / kGranule);
  }
  bool is_undefined(const void* data, size_t bytes) const {
    const uint8_t* first = defined_ + offset_of(data) / kGranule;
    return std::all_of(first, first + bytes / kGranule, [](uint8_t each) { return each == 0; });
  }
  // As defined(), and fills them with zeros; gives whole pages back to the system.
  void zero(void* data, size_t bytes);

  // Shared memory: forgets all variables. Each is filled with noise where it is first mentioned.
  void begin_block(uint64_t noise);
  // The address of a variable; null when it does not fit into kSharedMax.
  void* shared_at(const char* key, size_t bytes, size_t align);
  size_t shared_bytes() const { return shared_bytes_; }  // of the variables so far

  // Of addresses outside of both memories.
  static constexpr char kElsewhere[] = "host memory";

  // Checks and records an access of device code. Returns what is wrong, or null.
  const char* access(const void* data, size_t bytes, bool write, bool atomic, const Accessor& by) {
    const uintptr_t offset = offset_of(data);
    if (offset >= span_) [[unlikely]]
      return kElsewhere;
    size_t granule = offset / kGranule, skip = offset % kGranule;
    for (size_t left = bytes;;) {
      const size_t here = left < kGranule - skip ? left : kGranule - skip;
      const unsigned mask = ((1u << here) - 1) << skip;
      if (const char* wrong = access_granule(granule, mask, write, atomic, by)) return wrong;
      left -= here;
      if (left == 0) return nullptr;
      if (++granule >= span_ / kGranule) return kOutside;
      skip = 0;
    }
  }

 private:
  static constexpr char kOutside[] = "outside of what was allocated";

  // Who accessed which bytes of a granule: block, thread, bytes, atomic, stamp.
  using Cell = uint64_t;
  static Cell cell_of(const Accessor& by, unsigned mask, bool atomic) {
    return uint64_t{by.block} << 32 | uint64_t{by.thread} << 22 | uint64_t{mask} << 14 |
           uint64_t{atomic} << 13 | by.stamp;
  }
  static const char* conflict(Cell before, const Accessor& by, unsigned mask, bool atomic) {
    const auto block = static_cast<uint32_t>(before >> 32);
    if (block < by.launch_begin || (before >> 14 & mask) == 0) return nullptr;
    if (atomic && (before >> 13 & 1) != 0) return nullptr;
    if (block != by.block) return "two blocks of the launch, without an order";
    const auto thread = static_cast<uint32_t>(before >> 22 & 1023);
    const auto stamp = static_cast<uint32_t>(before & kStampMax);
    if (thread == by.thread || stamp < by.block_barrier) return nullptr;
    if (thread / kWarp == by.thread / kWarp && stamp < by.warp_barrier) return nullptr;
    return "two threads of the block, without a barrier in between";
  }
  const char* access_granule(size_t granule, unsigned mask, bool write, bool atomic,
                             const Accessor& by) {
    if ((live_[granule] & mask) != mask) return kOutside;
    if ((!write || atomic) && (defined_[granule] & mask) != mask) {
      return "reads what nobody has written";
    }
    Cell& written = written_[granule];
    if (by.early && granule >= kSharedMax / kGranule) {
      if (write) return "writes device memory before it waits for the kernels before it";
      if ((written >> 32) > by.settled) {
        return "reads what a kernel before it wrote, before it waits for that kernel";
      }
    }
    if (written != 0) {
      if (const char* wrong = conflict(written, by, mask, atomic)) return wrong;
    }
    const bool is_shared = granule < kSharedMax / kGranule;
    if (write) {
      if (is_shared) {
        for (const Cell read : read_[granule]) {
          if (const char* wrong = conflict(read, by, mask, atomic)) return wrong;
        }
      }
      written = cell_of(by, mask, atomic);
      defined_[granule] = static_cast<uint8_t>(defined_[granule] | mask);
    } else if (is_shared) {
      Cell(&read)[2] = read_[granule];
      const Cell mine = cell_of(by, mask, atomic);
      if (read[0] >> 22 != mine >> 22) read[1] = read[0];
      read[0] = mine;
    }
    return nullptr;
  }
  uintptr_t offset_of(const void* data) const {
    return reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(base_);
  }
  // allocated: to true, every byte is live and not written yet.
  void set(size_t offset, size_t bytes, bool allocated);
  void* reserve(size_t bytes, int protection);

  uint64_t total_ = 0, used_ = 0;
  uintptr_t span_ = 0;  // addresses from base_: shared memory, then device memory
  char* base_ = nullptr;
  uint8_t* live_ = nullptr;          // a bit for each byte
  uint8_t* defined_ = nullptr;       // a bit for each byte that was written
  Cell* written_ = nullptr;          // the last write
  Cell (*read_)[2] = nullptr;        // the last reads by two threads; shared memory only
  std::map<size_t, size_t> blocks_;  // offset, bytes
  std::map<const char*, size_t> shared_;
  size_t shared_used_ = 0, shared_bytes_ = 0;  // with and without gaps
  std::minstd_rand noise_;
};

}  // namespace specd::emulated
