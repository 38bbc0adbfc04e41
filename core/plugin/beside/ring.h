// A queue of messages in one block of memory that two threads, or two processes, share. One writes and one
// reads. A message is built and read where it lies: nothing is copied or allocated. The positions of the
// other end are checked before use, since it may be another process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace specd {

inline constexpr size_t kMessageAlign = 16;

// At the start of the block; the messages lie behind it.
struct alignas(64) RingHeader {      // NOLINT(clang-analyzer-optin.performance.Padding)
  std::atomic<uint64_t> written{0};  // bytes since the start, by the writer
  std::atomic<uint32_t> bell{0};     // changes with each message and each ring()
  std::atomic<uint32_t> sleeps{0};   // whether the reader waits for it
  // Of the writer: what has another number is not to be read any more, see RingWriter::drop_all().
  std::atomic<uint32_t> epoch{0};
  alignas(64) std::atomic<uint64_t> read{0};  // bytes since the start, by the reader
};

// Wakes the reader without a message.
void ring_bell(RingHeader& header);

// The smallest capacity in which every message of at most `bytes` finds room in an empty ring.
size_t ring_capacity(size_t bytes);

// Bytes of two rings with their headers.
constexpr size_t rings_bytes(size_t request_capacity, size_t reply_capacity) {
  return 2 * sizeof(RingHeader) + request_capacity + reply_capacity;
}

class RingWriter {
 public:
  // capacity: bytes behind the header, a power of two. REQUIRES a new header.
  RingWriter(RingHeader& header, size_t capacity) : header_(header), capacity_(capacity) {}

  // Room for a message, or null when there is none now. The next call takes it back.
  std::byte* reserve(size_t bytes);
  // Hands over what was reserved.
  void publish();
  // Whether the reader has read everything.
  bool is_empty() const { return backlog() == 0; }
  size_t backlog() const;  // bytes that are not read yet
  size_t capacity() const { return capacity_; }
  uint64_t written() const { return written_; }
  uint64_t read() const { return header_.read.load(std::memory_order_acquire); }
  // Numbers the messages that follow anew; the reader skips the others.
  uint32_t drop_all() { return header_.epoch.fetch_add(1) + 1; }

 private:
  RingHeader& header_;
  const size_t capacity_;
  uint64_t written_ = 0;   // what the header says
  uint64_t reserved_ = 0;  // what publish() makes it
};

class RingReader {
 public:
  RingReader(RingHeader& header, size_t capacity) : header_(header), capacity_(capacity) {}

  // The oldest message, or nothing. Valid until pop(). Also nothing, for good, once is_broken().
  std::span<const std::byte> front();
  void pop();
  // Read this, test what may end the wait besides a message, then wait.
  uint32_t bell() const { return header_.bell.load(); }
  // Waits for a message, or for ring_bell() after bell() was `seen`, until `until_ns` on the clock of
  // now_ns(). For the first spin_ns it stays awake, and lets other threads go first: to wake a thread takes
  // tens of microseconds where its processor sleeps.
  void wait(uint32_t seen, uint64_t until_ns, uint64_t spin_ns);
  uint32_t epoch() const { return header_.epoch.load(); }
  // Whether the writer has left what is no message.
  bool is_broken() const { return is_broken_; }

 private:
  RingHeader& header_;
  const size_t capacity_;
  uint64_t read_ = 0;
  uint64_t next_ = 0;  // behind the message of front()
  bool is_broken_ = false;
};

}  // namespace specd
