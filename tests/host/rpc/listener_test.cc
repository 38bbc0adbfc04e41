#include "host/rpc/listener.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/failpoint.h"
#include "tests/host/rpc/http2_frames.h"

namespace specd::host {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

std::string random_bytes(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(n, '\0');
  for (char& each : bytes) each = static_cast<char>(random());
  return bytes;
}

// Reads until the end of the stream, or until nothing comes for 10 s.
std::string read_all(int fd) {
  std::string all;
  std::vector<char> block(30'000);
  while (true) {
    pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&wait, 1, 10'000) <= 0) return all + " (and no end)";
    const ssize_t n = recv(fd, block.data(), block.size(), 0);
    if (n <= 0) return all;
    all.append(block.data(), static_cast<size_t>(n));
  }
}

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    pollfd wait{.fd = fd, .events = POLLOUT, .revents = 0};
    if (poll(&wait, 1, 10'000) <= 0) return false;
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// Sends until nothing is taken for 200 ms. Returns what was taken.
std::string send_until_full(int fd) {
  std::string all;
  pollfd wait{.fd = fd, .events = POLLOUT, .revents = 0};
  while (poll(&wait, 1, 200) > 0) {
    const std::string bytes = random_bytes(100'000, static_cast<unsigned>(all.size()));
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) break;
    all.append(bytes, 0, static_cast<size_t>(n));
  }
  return all;
}

class ListenerTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "specd-listener-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    n_descriptors_ = count_descriptors();
  }
  void TearDown() override {
    listener_.reset();
    taken_.clear();
    EXPECT_EQ(count_descriptors(), n_descriptors_);
    fs::remove_all(folder_);
  }
  void start(Listener::Limits limits = {64, 64, 64, 64}) {
    auto socket = ListenSocket::at_path(path(), false);
    ASSERT_TRUE(socket.ok()) << socket.status().text();
    const auto admit = [this](const Listener::Credentials& shown) -> Listener::Host {
      EXPECT_EQ(shown.user, geteuid());
      if (is_closed_) return {};
      return {&take_, "this user", true};
    };
    auto made = Listener::start(std::move(socket).value(), limits, admit);
    ASSERT_TRUE(made.ok()) << made.status().text();
    listener_ = std::move(made).value();
  }
  std::string path() const { return (folder_ / "s").string(); }
  bool try_connect(const FileDescriptor& client) const {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    path().copy(to.sun_path, sizeof(to.sun_path) - 1);
    return connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  FileDescriptor connect_client() const {
    FileDescriptor client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_TRUE(try_connect(client));
    return client;
  }
  // The n-th connection as the server holds it.
  int taken(size_t n) {
    for (int i = 0; i < 10'000; ++i) {
      {
        const std::lock_guard lock(mutex_);
        if (taken_.size() > n) return taken_[n].get();
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
    return -1;
  }
  void close_taken(size_t n) {
    const std::lock_guard lock(mutex_);
    taken_[n] = FileDescriptor();
  }
  static size_t count_descriptors() {
    size_t n = 0;
    for ([[maybe_unused]] const auto& each : fs::directory_iterator("/proc/self/fd")) ++n;
    return n;
  }

  fs::path folder_;
  size_t n_descriptors_ = 0;
  std::mutex mutex_;
  std::vector<FileDescriptor> taken_;
  std::atomic<bool> is_closed_{false};  // to every user
  const Listener::Take take_ = [this](int fd) {
    const std::lock_guard lock(mutex_);
    taken_.emplace_back(fd);
  };
  std::unique_ptr<Listener> listener_;
};

TEST_F(ListenerTest, bytes_arrive_unchanged_in_both_directions_at_once) {
  start();
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    const int client = connect_client().release();
    const int server = taken(i);
    ASSERT_GE(server, 0);
    const std::string request = random_bytes(3'000'000 + i, i), answer = random_bytes(5'000'000, 9);
    threads.emplace_back([client, request] {
      EXPECT_TRUE(send_all(client, request));
      shutdown(client, SHUT_WR);
    });
    threads.emplace_back([this, i, server, request, answer] {
      std::thread reader([&] { EXPECT_TRUE(read_all(server) == request); });
      EXPECT_TRUE(send_all(server, answer));
      reader.join();
      close_taken(i);
    });
    threads.emplace_back([client, answer] {
      std::this_thread::sleep_for(milliseconds(50));  // both sides fill up meanwhile
      EXPECT_TRUE(read_all(client) == answer);
      close(client);
    });
  }
  for (std::thread& each : threads) each.join();
}

#ifdef SPECD_FAILPOINTS
TEST_F(ListenerTest, a_client_that_cannot_be_accepted_waits_and_is_told_until_it_can) {
  start();
  ASSERT_TRUE(set_failpoints("socket.accept=fail").ok());
  const FileDescriptor client = connect_client();
  while (listener_->status().ok()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_NE(listener_->status().message().find("Too many open files"), std::string::npos)
      << listener_->status().message();
  ASSERT_TRUE(set_failpoints("").ok());
  const int server = taken(0);
  ASSERT_GE(server, 0);
  EXPECT_TRUE(listener_->status().ok()) << listener_->status().message();
  EXPECT_TRUE(send_all(client.get(), "hello"));
  shutdown(client.get(), SHUT_WR);
  EXPECT_EQ(read_all(server), "hello");
}
#endif

TEST_F(ListenerTest, what_the_server_sent_before_it_closed_is_delivered_at_the_end) {
  start();
  const FileDescriptor client = connect_client();
  const std::string answer = random_bytes(1'000'000, 3);
  const int server = taken(0);
  std::thread slow([&] {
    std::this_thread::sleep_for(milliseconds(200));
    EXPECT_TRUE(read_all(client.get()) == answer);
  });
  EXPECT_TRUE(send_all(server, answer));
  listener_->stop_accepting();
  close_taken(0);
  listener_->finish(std::chrono::seconds(10));
  slow.join();
}

TEST_F(ListenerTest, client_that_reads_nothing_holds_up_the_end_for_the_time_given) {
  start();
  const FileDescriptor client = connect_client();
  ASSERT_GE(taken(0), 0);
  (void)send_until_full(taken(0));
  close_taken(0);
  listener_->stop_accepting();
  const auto begin = std::chrono::steady_clock::now();
  listener_->finish(milliseconds(300));
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, milliseconds(290));
  EXPECT_LT(took, std::chrono::seconds(10));
}

TEST_F(ListenerTest, client_that_leaves_the_last_bytes_unread_loses_its_place) {
  start({1, 1, 1, 1, milliseconds(10'000), milliseconds(150)});
  const FileDescriptor client = connect_client();
  ASSERT_GE(taken(0), 0);
  (void)send_until_full(taken(0));
  pollfd end{.fd = client.get(), .events = 0, .revents = 0};
  EXPECT_EQ(poll(&end, 1, 200), 0);  // no limit while the server is there
  const auto begin = std::chrono::steady_clock::now();
  close_taken(0);
  EXPECT_EQ(poll(&end, 1, 10'000), 1);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(140));
  const FileDescriptor next = connect_client();
  EXPECT_GE(taken(1), 0);
}

TEST_F(ListenerTest, requests_of_a_client_that_closed_arrive_though_it_takes_no_answer) {
  start();
  std::string requests;
  {
    const FileDescriptor client = connect_client();
    ASSERT_GE(taken(0), 0);
    requests = send_until_full(client.get());
  }
  EXPECT_TRUE(send_all(taken(0), "an answer"));
  EXPECT_TRUE(read_all(taken(0)) == requests);
}

TEST_F(ListenerTest, client_that_hangs_up_is_told_to_the_server) {
  start();
  {
    const FileDescriptor client = connect_client();
    ASSERT_GE(taken(0), 0);
    EXPECT_TRUE(send_all(client.get(), "last words"));
  }
  EXPECT_EQ(read_all(taken(0)), "last words");
}

TEST_F(ListenerTest, more_clients_than_may_are_closed_until_one_leaves) {
  start({2, 2, 2, 2});
  FileDescriptor first = connect_client();
  const FileDescriptor second = connect_client();
  ASSERT_GE(taken(1), 0);
  EXPECT_TRUE(listener_->status().ok());
  EXPECT_EQ(read_all(connect_client().get()), "");
  EXPECT_NE(listener_->status().text().find("2 clients are connected, which is the limit"),
            std::string::npos)
      << listener_->status().text();
  first = FileDescriptor();
  EXPECT_EQ(read_all(taken(0)), "");
  close_taken(0);
  for (int i = 0; i < 10'000 && !listener_->status().ok(); ++i)
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(listener_->status().ok()) << listener_->status().text();
  const FileDescriptor third = connect_client();
  EXPECT_GE(taken(2), 0);
}

TEST_F(ListenerTest, one_process_has_no_more_than_its_share) {
  start({8, 2, 8, 8});
  const FileDescriptor first = connect_client(), second = connect_client();
  ASSERT_GE(taken(1), 0);
  EXPECT_EQ(read_all(connect_client().get()), "");
  EXPECT_TRUE(listener_->status().ok());  // others may connect
}

TEST_F(ListenerTest, users_that_nothing_serves_are_closed_and_take_no_place) {
  start({1, 1, 1, 1});
  is_closed_ = true;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(read_all(connect_client().get()), "");
  is_closed_ = false;
  const FileDescriptor served = connect_client();
  EXPECT_GE(taken(0), 0);
}

TEST_F(ListenerTest, client_that_drops_its_calls_is_closed_and_others_go_on) {
  start();
  const FileDescriptor bad = connect_client();
  const FileDescriptor good = connect_client();
  ASSERT_GE(taken(1), 0);
  std::string calls = kHttp2Preface;
  for (uint32_t stream = 1; stream < 3000; stream += 2)
    calls += http2_frame(kHeadersFrame, 4, stream, "h") +
             http2_frame(kResetFrame, 0, stream, std::string(4, '\0'));
  std::thread sender([&] { send_all(bad.get(), calls); });
  (void)read_all(taken(0));  // ends
  sender.join();
  EXPECT_EQ(read_all(bad.get()), "");
  EXPECT_TRUE(send_all(good.get(), "hello"));
  shutdown(good.get(), SHUT_WR);
  EXPECT_EQ(read_all(taken(1)), "hello");
}

TEST_F(ListenerTest, nobody_is_accepted_after_stop_accepting) {
  start();
  listener_->stop_accepting();
  EXPECT_FALSE(try_connect(FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0))));
  listener_->finish(milliseconds(0));
}

}  // namespace
}  // namespace specd::host
