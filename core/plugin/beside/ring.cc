#include "core/plugin/beside/ring.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <thread>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/futex.h"

namespace specd {
namespace {

// In front of each message. A size of 0 means that the rest of the ring is not used, and the next message
// lies at its start.
struct alignas(kMessageAlign) Size {
  uint64_t bytes = 0;
};

std::byte* at(RingHeader& header, size_t capacity, uint64_t position) {
  return reinterpret_cast<std::byte*>(&header) + sizeof(RingHeader) + (position & (capacity - 1));
}

uint64_t with_size(size_t bytes) {
  return sizeof(Size) + (uint64_t{bytes} + kMessageAlign - 1) / kMessageAlign * kMessageAlign;
}

}  // namespace

void ring_bell(RingHeader& header) {
  header.bell.fetch_add(1);
  if (header.sleeps.load() != 0) futex_wake(header.bell);
}

size_t ring_capacity(size_t bytes) {
  // Up to one message less a byte may be lost at the end, when the next lies at the start.
  return std::bit_ceil(2 * static_cast<size_t>(with_size(bytes)));
}

size_t RingWriter::backlog() const {
  // What a reader says that has read more than was written is not true; then there is no room any more.
  return static_cast<size_t>(written_ - read());
}

std::byte* RingWriter::reserve(size_t bytes) {
  const uint64_t need = with_size(bytes);
  const size_t used = backlog();
  if (used > capacity_ || bytes > capacity_) return nullptr;
  const uint64_t to_end = capacity_ - (written_ & (capacity_ - 1));
  const uint64_t skipped = need > to_end ? to_end : 0;
  if (need + skipped > capacity_ - used) return nullptr;
  if (skipped > 0) new (at(header_, capacity_, written_)) Size{0};
  const uint64_t start = written_ + skipped;
  new (at(header_, capacity_, start)) Size{bytes};
  reserved_ = start + need;
  return at(header_, capacity_, start) + sizeof(Size);
}

void RingWriter::publish() {
  SPECD_CHECK(reserved_ > written_, "reserve() first");
  written_ = reserved_;
  header_.written.store(written_, std::memory_order_release);
  ring_bell(header_);
}

std::span<const std::byte> RingReader::front() {
  const uint64_t written = header_.written.load(std::memory_order_acquire);
  for (uint64_t position = read_; !is_broken_ && position != written;) {
    const uint64_t left = written - position;  // huge when `written` went back
    const uint64_t to_end = capacity_ - (position & (capacity_ - 1));
    if (left > capacity_ || left % kMessageAlign != 0) break;
    Size size;
    std::memcpy(&size, at(header_, capacity_, position), sizeof(size));
    if (size.bytes == 0) {
      if (to_end >= left) break;  // nothing would follow
      position += to_end;
      continue;
    }
    if (size.bytes > capacity_ || with_size(size.bytes) > left || with_size(size.bytes) > to_end)
      break;
    next_ = position + with_size(size.bytes);
    return {at(header_, capacity_, position) + sizeof(Size), size.bytes};
  }
  is_broken_ = is_broken_ || read_ != written;
  return {};
}

void RingReader::pop() {
  SPECD_CHECK(next_ > read_, "front() first");
  read_ = next_;
  header_.read.store(read_, std::memory_order_release);
}

void RingReader::wait(uint32_t seen, uint64_t until_ns, uint64_t spin_ns) {
  const uint64_t spin_until_ns = spin_ns == 0 ? 0 : std::min(until_ns, now_ns() + spin_ns);
  while (now_ns() < spin_until_ns) {
    if (header_.bell.load() != seen) return;
    std::this_thread::yield();
  }
  if (header_.written.load(std::memory_order_acquire) != read_ || is_broken_) return;
  header_.sleeps.store(1);
  // A writer that rings later sees that somebody sleeps; one that has rung before has changed the bell.
  if (header_.bell.load() == seen) futex_wait(header_.bell, seen, until_ns);
  header_.sleeps.store(0);
}

}  // namespace specd
