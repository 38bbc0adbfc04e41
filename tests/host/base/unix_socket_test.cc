#include "host/base/unix_socket.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace specd::host {
namespace {

namespace fs = std::filesystem;

class UnixSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "specd-socket-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = (folder_ / "s.sock").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  // A socket whose owner is gone.
  void leave_socket() const { close(serve_socket()); }

  // A socket that another program listens on.
  int serve_socket(int type = SOCK_STREAM) const {
    const int fd = socket(AF_UNIX, type, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    if (type == SOCK_STREAM) {
      EXPECT_EQ(listen(fd, 8), 0);
    }
    return fd;
  }
  void expect_refused(const std::string& why) const {
    const auto claim = SocketClaim::take(path_);
    ASSERT_FALSE(claim.ok()) << why;
    EXPECT_EQ(claim.status().code(), Code::kFailedPrecondition);
    EXPECT_NE(claim.status().text().find(why), std::string::npos) << claim.status().text();
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(UnixSocketTest, socket_that_another_program_serves_is_left_alone) {
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    const int other = serve_socket(type);
    expect_refused("another program serves " + path_ + "; stop it");
    EXPECT_TRUE(fs::is_socket(path_));
    close(other);
    EXPECT_TRUE(SocketClaim::take(path_).ok());
  }
}

TEST_F(UnixSocketTest, folder_that_others_may_write_to_is_refused_unless_it_is_sticky) {
  for (const auto who : {fs::perms::group_write, fs::perms::others_write}) {
    fs::permissions(folder_, fs::perms::owner_all | who);
    expect_refused("could replace the socket; chmod go-w it");
    fs::permissions(folder_, fs::perms::owner_all | who | fs::perms::sticky_bit);
    EXPECT_TRUE(SocketClaim::take(path_).ok());
  }
}

TEST_F(UnixSocketTest, folder_of_another_user_is_refused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make a folder of another user";
  for (const auto more : {fs::perms::none, fs::perms::all | fs::perms::sticky_bit}) {
    fs::permissions(folder_, fs::perms::owner_all | more);
    ASSERT_EQ(chown(folder_.c_str(), 4711, 4711), 0);
    expect_refused(folder_.string() + " belongs to another user (id 4711), who could replace");
    ASSERT_EQ(chown(folder_.c_str(), 0, 0), 0);
    EXPECT_TRUE(SocketClaim::take(path_).ok());
  }
}

TEST_F(UnixSocketTest, lock_that_is_no_plain_file_of_this_user_is_named) {
  const std::string lock = path_ + ".lock";
  fs::create_directory(lock);
  expect_refused(lock);
  fs::remove(lock);
  ASSERT_EQ(mkfifo(lock.c_str(), 0600), 0);
  expect_refused(lock + " exists and is not a plain file; remove it");
  fs::remove(lock);
  fs::create_symlink(folder_ / "target", lock);
  expect_refused(lock + " is a symbolic link; remove it");
  fs::remove(lock);
  if (geteuid() != 0) GTEST_SKIP() << "only root can make a file of another user";
  std::ofstream(lock) << "1\n";
  ASSERT_EQ(chown(lock.c_str(), 4711, 4711), 0);
  expect_refused(lock + " belongs to another user (id 4711); remove it");
}

TEST_F(UnixSocketTest, what_another_user_left_at_the_path_is_told_with_the_way_around_it) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  fs::permissions(folder_, fs::perms::all | fs::perms::sticky_bit);
  const auto told_to_another_user = [&] {
    int text[2];
    EXPECT_EQ(pipe(text), 0);
    const pid_t child = fork();
    if (child == 0) {
      if (setuid(4711) != 0) _exit(1);
      const std::string told = SocketClaim::take(path_).status().text();
      _exit(write(text[1], told.data(), told.size()) < 0 ? 1 : 0);
    }
    close(text[1]);
    char buffer[1000];
    const ssize_t size = read(text[0], buffer, sizeof(buffer));
    close(text[0]);
    waitpid(child, nullptr, 0);
    return std::string(buffer, size > 0 ? static_cast<size_t>(size) : 0);
  };
  const std::string around =
      " belongs to another user (id 0); remove it or set another `listen`, which without a "
      "configuration is $SPECD_SOCKET";
  leave_socket();
  EXPECT_NE(told_to_another_user().find(path_ + around), std::string::npos)
      << told_to_another_user();
  fs::remove(path_ + ".lock");
  std::ofstream(path_ + ".lock") << "1\n";
  fs::permissions(path_ + ".lock", fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_NE(told_to_another_user().find(path_ + ".lock" + around), std::string::npos)
      << told_to_another_user();
}

TEST_F(UnixSocketTest, process_of_another_user_behind_the_socket_is_noticed) {
  EXPECT_TRUE(check_server_user(path_).ok()) << "nobody serves it";
  const int own = serve_socket();
  EXPECT_TRUE(check_server_user(path_).ok());
  close(own);
  fs::remove(path_);
  if (geteuid() != 0) GTEST_SKIP() << "only root can start a process of another user";
  fs::permissions(folder_, fs::perms::all);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(4711) != 0) _exit(1);
    serve_socket();
    (void)!write(ready[1], "x", 1);
    pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const Status status = check_server_user(path_);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_NE(status.text().find("belongs to another user (id 4711)"), std::string::npos)
      << status.text();
  EXPECT_NE(status.text().find("with --socket or $SPECD_SOCKET"), std::string::npos)
      << status.text();
  ASSERT_EQ(chown(folder_.c_str(), 4711, 4711), 0);
  EXPECT_FALSE(check_server_user(path_).ok()) << "others may write to its folder";
  fs::permissions(folder_, fs::perms::owner_all);
  EXPECT_FALSE(check_server_user(path_).ok()) << "that user may have made the folder in /tmp";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(UnixSocketTest, second_claim_is_refused_and_names_the_process) {
  const auto first = SocketClaim::take(path_);
  ASSERT_TRUE(first.ok()) << first.status().text();
  const auto second = SocketClaim::take(path_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kFailedPrecondition);
  EXPECT_NE(second.status().text().find("process " + std::to_string(getpid())), std::string::npos)
      << second.status().text();
}

TEST_F(UnixSocketTest, refused_claim_leaves_the_socket_of_the_holder) {
  const auto first = SocketClaim::take(path_);
  ASSERT_TRUE(first.ok());
  leave_socket();
  { EXPECT_FALSE(SocketClaim::take(path_).ok()); }
  EXPECT_TRUE(fs::exists(path_));
}

TEST_F(UnixSocketTest, stale_socket_is_removed_and_the_claim_ends_clean) {
  leave_socket();
  {
    const auto claim = SocketClaim::take(path_);
    ASSERT_TRUE(claim.ok()) << claim.status().text();
    EXPECT_FALSE(fs::exists(path_));
    leave_socket();
  }
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_TRUE(SocketClaim::take(path_).ok());
}

TEST_F(UnixSocketTest, something_else_in_the_place_is_never_removed) {
  std::ofstream(path_) << "keep";
  EXPECT_FALSE(SocketClaim::take(path_).ok());
  EXPECT_TRUE(fs::is_regular_file(path_));
}

TEST_F(UnixSocketTest, file_put_in_the_place_of_the_socket_outlives_the_claim) {
  {
    const auto claim = SocketClaim::take(path_);
    ASSERT_TRUE(claim.ok()) << claim.status().text();
    std::ofstream(path_) << "keep";
  }
  EXPECT_TRUE(fs::is_regular_file(path_));
}

TEST_F(UnixSocketTest, socket_of_a_daemon_that_holds_a_newer_lock_outlives_the_claim) {
  {
    auto first = SocketClaim::take(path_);
    ASSERT_TRUE(first.ok()) << first.status().text();
    leave_socket();
    fs::remove(path_);
    fs::remove(path_ + ".lock");
    const auto second = SocketClaim::take(path_);
    ASSERT_TRUE(second.ok()) << second.status().text();
    leave_socket();
    { const SocketClaim ended = std::move(first).value(); }
    EXPECT_TRUE(fs::is_socket(path_));
  }
  EXPECT_FALSE(fs::exists(path_)) << "its own daemon removes it";
}

TEST_F(UnixSocketTest, lock_file_is_private_and_not_followed) {
  ASSERT_TRUE(SocketClaim::take(path_).ok());
  struct stat info {};
  ASSERT_EQ(stat((path_ + ".lock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  fs::remove(path_ + ".lock");
  fs::create_symlink(folder_ / "target", path_ + ".lock");
  EXPECT_FALSE(SocketClaim::take(path_).ok());
  EXPECT_FALSE(fs::exists(folder_ / "target"));
}

TEST(SocketUri, escapes_what_a_uri_cannot_carry) {
  EXPECT_EQ(socket_uri("/run/specd/a-b_c.1~.sock"), "unix:/run/specd/a-b_c.1~.sock");
  EXPECT_EQ(socket_uri("/a b%\xc3\xa4"), "unix:/a%20b%25%C3%A4");
}

}  // namespace
}  // namespace specd::host
