#include "core/plugin/beside/ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"

namespace specd {
namespace {

constexpr size_t kCapacity = 1024;

// The block, and memory behind it that nobody may touch.
struct Block {
  std::vector<RingHeader> memory = std::vector<RingHeader>(2 + kCapacity / sizeof(RingHeader));
  RingHeader& header() { return memory[0]; }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(memory.data()) + sizeof(RingHeader); }
};

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
bool write(RingWriter& writer, const std::string& text) {
  std::byte* const to = writer.reserve(text.size());
  if (to == nullptr) return false;
  std::memcpy(to, text.data(), text.size());
  writer.publish();
  return true;
}

TEST(Ring, messages_of_any_length_come_whole_and_in_order) {
  Block block;
  RingWriter writer(block.header(), kCapacity);
  RingReader reader(block.header(), kCapacity);
  std::mt19937 random(1);
  std::deque<std::string> sent;
  size_t n_written = 0, n_refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 2 == 0) {
      const std::string text(1 + random() % 300, static_cast<char>(i));
      if (write(writer, text)) {
        sent.push_back(text);
        ++n_written;
      } else {
        ++n_refused;
        ASSERT_FALSE(sent.empty()) << "an empty ring of twice the size has room";
      }
      continue;
    }
    const std::span<const std::byte> found = reader.front();
    ASSERT_EQ(found.empty(), sent.empty());
    if (sent.empty()) continue;
    ASSERT_EQ(text_of(found), sent.front());
    sent.pop_front();
    reader.pop();
  }
  EXPECT_FALSE(reader.is_broken());
  EXPECT_GT(n_written, 5'000u);
  EXPECT_GT(n_refused, 500u);
}

TEST(Ring, what_was_reserved_and_not_handed_over_is_not_there) {
  Block block;
  RingWriter writer(block.header(), kCapacity);
  RingReader reader(block.header(), kCapacity);
  ASSERT_NE(writer.reserve(100), nullptr);
  EXPECT_TRUE(reader.front().empty());
  EXPECT_TRUE(write(writer, "b"));
  EXPECT_EQ(text_of(reader.front()), "b");
  EXPECT_EQ(writer.reserve(kCapacity), nullptr) << "larger than can ever be there";
}

TEST(Ring, a_message_of_the_planned_size_fits_wherever_the_last_one_ended) {
  for (const size_t bytes : {1u, 15u, 16u, 100u, 1000u}) {
    const size_t capacity = ring_capacity(bytes);
    std::vector<RingHeader> memory(2 + capacity / sizeof(RingHeader));
    RingWriter writer(memory[0], capacity);
    RingReader reader(memory[0], capacity);
    for (size_t i = 0; i < 200; ++i) {
      ASSERT_TRUE(write(writer, std::string(i % 3 == 0 ? bytes : 1, 'x'))) << bytes << ", " << i;
      ASSERT_FALSE(reader.front().empty());
      reader.pop();
    }
  }
}

TEST(Ring, two_threads_lose_nothing_and_wake_each_other) {
  Block block;
  RingWriter writer(block.header(), kCapacity);
  constexpr uint32_t kMessages = 20'000;
  uint64_t sum = 0;
  std::thread reads([&] {
    RingReader reader(block.header(), kCapacity);
    for (uint32_t next = 0; next < kMessages;) {
      const uint32_t bell = reader.bell();
      const std::span<const std::byte> found = reader.front();
      if (found.empty()) {
        reader.wait(bell, now_ns() + 60'000'000'000,
                    next % 2 * 1000);  // a lost wake-up would last so long
        continue;
      }
      uint32_t value = 0;
      std::memcpy(&value, found.data(), sizeof(value));
      ASSERT_EQ(value, next++);
      sum += value;
      reader.pop();
    }
  });
  std::mt19937 random(2);
  for (uint32_t i = 0; i < kMessages;) {
    std::byte* const to = writer.reserve(4 + random() % 100);
    if (to == nullptr) {
      std::this_thread::yield();
      continue;
    }
    std::memcpy(to, &i, sizeof(i));
    writer.publish();
    if (++i % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  reads.join();
  EXPECT_EQ(sum, uint64_t{kMessages} * (kMessages - 1) / 2);
  EXPECT_TRUE(writer.is_empty());
}

TEST(Ring, a_wait_ends_by_the_bell_or_by_its_time) {
  Block block;
  RingReader reader(block.header(), kCapacity);
  const uint64_t start = now_ns();
  reader.wait(reader.bell(), start + 20'000'000, 0);
  reader.wait(reader.bell(), start + 25'000'000, 60'000'000'000);
  EXPECT_GE(now_ns() - start, 25'000'000u);
  const uint32_t bell = reader.bell();
  ring_bell(block.header());
  reader.wait(bell, now_ns() + 60'000'000'000, 0);               // returns at once
  reader.wait(bell, now_ns() + 60'000'000'000, 60'000'000'000);  // so does this
  std::thread rings([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ring_bell(block.header());
  });
  reader.wait(reader.bell(), now_ns() + 60'000'000'000, 0);
  rings.join();
  EXPECT_LT(now_ns() - start, 50'000'000'000u);
}

TEST(Ring, a_hostile_writer_breaks_the_ring_and_nothing_else) {
  std::mt19937_64 random(3);
  int n_broken = 0, n_found = 0;
  for (int i = 0; i < 50'000; ++i) {
    Block block;
    RingWriter writer(block.header(), kCapacity);
    write(writer, std::string(1 + random() % 200, 'a'));
    write(writer, std::string(1 + random() % 200, 'b'));
    RingReader reader(block.header(), kCapacity);
    // One word of the header or of the messages becomes anything, or a likely number.
    const uint64_t any = random() % 3 == 0 ? random() : random() % (3 * kCapacity);
    if (random() % 2 == 0) {
      block.header().written = any;
    } else {
      std::memcpy(block.bytes() + random() % 24 * 16, &any, sizeof(any));
    }
    for (int n = 0; n < 100; ++n) {
      const std::span<const std::byte> found = reader.front();
      if (found.empty()) break;
      ASSERT_GE(found.data(), block.bytes());
      ASSERT_LE(found.data() + found.size(), block.bytes() + kCapacity);
      ++n_found;
      reader.pop();
    }
    n_broken += reader.is_broken();
    if (reader.is_broken()) {
      write(writer, "c");
      EXPECT_TRUE(reader.front().empty()) << "for good";
    }
  }
  EXPECT_GT(n_broken, 5'000);
  EXPECT_GT(n_found, 20'000);
}

TEST(Ring, a_hostile_reader_gets_no_more_messages_and_nothing_else) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 20'000; ++i) {
    Block block;
    RingWriter writer(block.header(), kCapacity);
    write(writer, std::string(100, 'a'));
    block.header().read = random() % 2 == 0 ? random() : random() % (2 * kCapacity);
    for (int n = 0; n < 20; ++n) {
      std::byte* const to = writer.reserve(64);
      if (to == nullptr) break;
      ASSERT_GE(to, block.bytes());
      ASSERT_LE(to + 64, block.bytes() + kCapacity);
      writer.publish();
    }
  }
}

}  // namespace
}  // namespace specd
