#include "tests/device/emulated/memory.h"

#include "core/base/sanitizer.h"

#include <sys/mman.h>
#if SPECD_ASAN
#include <sanitizer/asan_interface.h>
#endif

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace specd::emulated {
namespace {

constexpr size_t kAlign = 256;
constexpr size_t kPage = 4096;

size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

void* Memory::reserve(size_t bytes, int protection) {
  void* data = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw std::runtime_error("emulated CUDA: cannot reserve addresses");
  return data;
}

Memory::Memory(uint64_t device_bytes) : total_(device_bytes) {
  span_ = kSharedMax + up(2 * device_bytes, kPage);  // twice, for gaps
  base_ = static_cast<char*>(reserve(span_, PROT_NONE));
  mprotect(base_, kSharedMax, PROT_READ | PROT_WRITE);
  const size_t granules = span_ / kGranule;
  live_ = static_cast<uint8_t*>(reserve(granules, PROT_READ | PROT_WRITE));
  defined_ = static_cast<uint8_t*>(reserve(granules, PROT_READ | PROT_WRITE));
  written_ = static_cast<Cell*>(reserve(granules * sizeof(Cell), PROT_READ | PROT_WRITE));
  read_ = static_cast<Cell(*)[2]>(
      reserve(kSharedMax / kGranule * sizeof(*read_), PROT_READ | PROT_WRITE));
}

void Memory::set(size_t offset, size_t bytes, bool allocated) {
  std::memset(defined_ + offset / kGranule, 0, up(bytes, kGranule) / kGranule);
  std::memset(live_ + offset / kGranule, allocated ? 0xff : 0, up(bytes, kGranule) / kGranule);
  if (allocated && bytes % kGranule != 0) {
    live_[(offset + bytes) / kGranule] = static_cast<uint8_t>((1u << bytes % kGranule) - 1);
  }
#if SPECD_ASAN
  // There accesses are not checked here but by that sanitizer.
  if (allocated) {
    ASAN_UNPOISON_MEMORY_REGION(base_ + offset, bytes);
    ASAN_POISON_MEMORY_REGION(base_ + offset + bytes, up(bytes, kAlign) + kAlign - bytes);
  } else {
    ASAN_POISON_MEMORY_REGION(base_ + offset, bytes);
  }
#endif
}

void* Memory::allocate(size_t bytes) {
  if (bytes > free_bytes()) return nullptr;
  // First fit.
  size_t at = kSharedMax;
  for (const auto& [offset, size] : blocks_) {
    if (offset - at >= up(bytes, kAlign) + kAlign) break;
    at = offset + up(size, kAlign) + kAlign;
  }
  if (at + up(bytes, kAlign) + kAlign > span_) return nullptr;
  blocks_[at] = bytes;
  used_ += bytes;
  set(at, bytes, true);
  return base_ + at;
}

bool Memory::release(void* data) {
  const auto found = blocks_.find(offset_of(data));
  if (found == blocks_.end()) return false;
  const auto [offset, bytes] = *found;
  set(offset, bytes, false);
  // Gives whole pages back.
  const size_t begin = up(offset, kPage), end = (offset + bytes) / kPage * kPage;
  if (begin < end) madvise(base_ + begin, end - begin, MADV_DONTNEED);
  used_ -= bytes;
  blocks_.erase(found);
  return true;
}

void Memory::release_all() {
  while (!blocks_.empty()) release(base_ + blocks_.begin()->first);
}

bool Memory::is_live(const void* data, size_t bytes) const {
  const uintptr_t offset = offset_of(data);
  auto after = blocks_.upper_bound(offset);
  if (after == blocks_.begin()) return false;
  --after;
  return offset - after->first <= after->second && bytes <= after->second - (offset - after->first);
}

void Memory::zero(void* data, size_t bytes) {
  auto* at = static_cast<char*>(data);
  const auto begin = reinterpret_cast<uintptr_t>(at), end = begin + bytes;
  const uintptr_t first_page = up(begin, kPage), last_page = end / kPage * kPage;
  if (first_page >= last_page) {
    std::memset(at, 0, bytes);
  } else {
    std::memset(at, 0, first_page - begin);
    madvise(at + (first_page - begin), last_page - first_page, MADV_DONTNEED);
    std::memset(at + (last_page - begin), 0, end - last_page);
  }
  defined(data, bytes);
}

void Memory::open() { mprotect(base_ + kSharedMax, span_ - kSharedMax, PROT_READ | PROT_WRITE); }
void Memory::close() { mprotect(base_ + kSharedMax, span_ - kSharedMax, PROT_NONE); }

void Memory::defined(const void* data, size_t bytes) {
  size_t at = offset_of(data);
  const size_t end = at + bytes;
  for (; at < end && at % kGranule != 0; ++at) {
    defined_[at / kGranule] |= static_cast<uint8_t>(1u << at % kGranule);
  }
  if (at < end) {
    std::memset(defined_ + at / kGranule, 0xff, (end - at) / kGranule);
    at += (end - at) / kGranule * kGranule;
  }
  for (; at < end; ++at) defined_[at / kGranule] |= static_cast<uint8_t>(1u << at % kGranule);
}

void Memory::begin_block(uint64_t noise) {
  set(0, shared_used_, false);
  std::memset(written_, 0, shared_used_);
  std::memset(read_, 0, shared_used_ * 2);
  noise_.seed(static_cast<uint32_t>(noise));
  shared_.clear();
  shared_used_ = shared_bytes_ = 0;
}

void* Memory::shared_at(const char* key, size_t bytes, size_t align) {
  const auto [at, is_new] = shared_.try_emplace(key, 0);
  if (is_new) {
    at->second = up(shared_used_, std::max(align, kGranule));
    if (at->second + up(bytes, kGranule) + kGranule > kSharedMax) return nullptr;
    shared_used_ = at->second + up(bytes, kGranule) + kGranule;  // a gap after it
    shared_bytes_ += bytes;
    set(at->second, bytes, true);
    for (size_t i = 0; i < up(bytes, kGranule); i += sizeof(uint32_t)) {
      // Large numbers and NaN, so that a result made of them is not right by chance.
      const auto word = static_cast<uint32_t>(noise_()) | 0x7f000000u;
      std::memcpy(base_ + at->second + i, &word, sizeof(word));
    }
  }
  return base_ + at->second;
}

}  // namespace specd::emulated
