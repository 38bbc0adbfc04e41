#include "host/base/unix_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
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
  void leave_socket() const {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
    ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    close(fd);
  }

  fs::path folder_;
  std::string path_;
};

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
