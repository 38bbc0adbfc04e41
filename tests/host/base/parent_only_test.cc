#include "host/base/parent_only.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <vector>

namespace specd::host {
namespace {

using Pair = std::array<int, 2>;

Pair connection() {
  Pair pair{-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  return pair;
}

// Whether the other side is closed in every process.
bool has_ended(int fd) {
  pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
  char byte = 0;
  return poll(&wait, 1, 10'000) == 1 && read(fd, &byte, 1) == 0;
}

TEST(ParentOnly, clients_see_the_end_while_a_forked_child_lives) {
  std::vector<Pair> clients;
  for (int i = 0; i < 100; ++i) {
    clients.push_back(connection());
    keep_from_children(clients.back()[0]);
  }
  const Pair of_plugin = connection();
  const pid_t child = fork();
  if (child == 0) {
    // What its plugin made before the fork still works.
    (void)!write(of_plugin[1], "x", 1);
    pause();
    _exit(0);
  }
  char byte = 0;
  EXPECT_EQ(read(of_plugin[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  for (const Pair& client : clients) {
    forget_descriptor(client[0]);
    close(client[0]);
    EXPECT_TRUE(has_ended(client[1]));
    close(client[1]);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(of_plugin[0]);
  close(of_plugin[1]);
}

TEST(ParentOnly, a_descriptor_that_is_forgotten_stays_open_in_a_child) {
  const Pair pair = connection();
  const int far = fcntl(pair[1], F_DUPFD_CLOEXEC, 700);  // another word
  for (const int fd : {pair[1], far, -1, 1 << 20}) keep_from_children(fd);
  for (const int fd : {pair[1], -1, 1 << 20}) forget_descriptor(fd);
  const pid_t child = fork();
  if (child == 0) _exit((fcntl(pair[1], F_GETFD) >= 0 ? 1 : 0) + (fcntl(far, F_GETFD) < 0 ? 2 : 0));
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 3);
  forget_descriptor(far);
  for (const int fd : {pair[0], pair[1], far}) close(fd);
}

}  // namespace
}  // namespace specd::host
