#include "core/plugin/process/control_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>

#include "core/base/clock.h"

namespace specd {
namespace {

constexpr uint64_t kSoonNs = 20'000'000;

struct Pair {
  std::pair<FileDescriptor, FileDescriptor> ends = ControlSocket::pair().value();
  ControlSocket ours{std::move(ends.first), 16 << 20};
  int theirs() const { return ends.second.get(); }
  void write(const std::string& bytes) const {
    ASSERT_EQ(::write(theirs(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  static std::string framed(const std::string& text) {
    const auto size = static_cast<uint32_t>(text.size());
    return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text;
  }
};

TEST(ControlSocket, messages_come_whole_and_in_order_however_they_are_cut) {
  const Pair pair;
  ControlSocket ours = ControlSocket(FileDescriptor(dup(pair.ours.fd())), 1000);
  const std::string bytes = Pair::framed(R"({"a": 1})") + Pair::framed(R"([2, "three"])");
  std::string taken;
  for (const char byte : bytes) {
    pair.write(std::string(1, byte));
    auto message = ours.take();
    ASSERT_TRUE(message.ok()) << message.status().text();
    if (message.value().has_value()) taken += message.value()->json.dump() + ";";
  }
  EXPECT_EQ(taken, R"({"a":1};[2,"three"];)");
}

TEST(ControlSocket, a_large_message_and_a_descriptor_arrive) {
  Pair pair;
  ControlSocket other(FileDescriptor(dup(pair.theirs())), 16 << 20);
  const std::string text(3 << 20, 'x');
  const FileDescriptor null(open("/dev/null", O_RDONLY));
  std::thread sender([&] {
    EXPECT_TRUE(pair.ours.send({{"text", text}}, UINT64_MAX, null.get()).ok());
  });
  while (true) {
    auto message = other.take(true);
    ASSERT_TRUE(message.ok()) << message.status().text();
    if (!message.value().has_value()) {
      std::this_thread::yield();
      continue;
    }
    EXPECT_EQ(message.value()->json["text"], text);
    EXPECT_GE(message.value()->descriptor.get(), 0);
    break;
  }
  sender.join();
}

TEST(ControlSocket, what_is_no_message_is_refused_with_the_reason) {
  const std::pair<std::string, std::string> cases[] = {
      {Pair::framed("{"), "message of the control socket"},
      {Pair::framed(R"({"a": 1, "a": 2})"), "message of the control socket"},
      {Pair::framed(std::string(200, '[')), "message of the control socket"},
      {std::string("\xff\xff\xff\xff", 4), "4294967295 bytes"}};
  for (const auto& [bytes, words] : cases) {
    Pair pair;
    pair.write(bytes);
    const auto message = pair.ours.take();
    ASSERT_FALSE(message.ok());
    EXPECT_EQ(message.status().code(), Code::kDataLoss);
    EXPECT_NE(message.status().message().find(words), std::string::npos) << message.status().text();
  }
}

TEST(ControlSocket, nobody_waits_for_an_end_that_is_closed_or_does_not_read) {
  Pair pair;
  const uint64_t start = now_ns();
  const std::string text(8 << 20, 'x');
  EXPECT_EQ(pair.ours.send({{"text", text}}, now_ns() + kSoonNs).code(), Code::kDeadlineExceeded);
  EXPECT_LT(now_ns() - start, 60'000'000'000u);
  Pair closed;
  closed.ends.second = FileDescriptor();
  EXPECT_EQ(closed.ours.take().status().code(), Code::kUnavailable);
  EXPECT_EQ(closed.ours.send({{"a", 1}}, now_ns() + kSoonNs).code(), Code::kUnavailable);
}

TEST(ControlSocket, a_descriptor_that_nobody_wants_is_not_kept) {
  Pair pair;
  ControlSocket other(FileDescriptor(dup(pair.theirs())), 16 << 20);
  const FileDescriptor null(open("/dev/null", O_RDONLY));
  ASSERT_TRUE(other.send({{"a", 1}}, UINT64_MAX, null.get()).ok());
  const auto message = pair.ours.take();
  ASSERT_TRUE(message.ok() && message.value().has_value());
  EXPECT_EQ(message.value()->descriptor.get(), -1);
}

}  // namespace
}  // namespace specd
