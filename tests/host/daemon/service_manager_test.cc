// What a service manager is told: the messages that come in at a socket of the test's own.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "tests/host/daemon/daemon_rig.h"

namespace specd::host {
namespace {

class Manager {
 public:
  // A path, or "@NAME" for an abstract one.
  explicit Manager(const std::string& name) : name_(name) {
    socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    EXPECT_EQ(bind(socket_, reinterpret_cast<const sockaddr*>(&address),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size())),
              0)
        << std::strerror(errno);
  }
  ~Manager() { close(socket_); }

  void start(Daemon& daemon, const char* watchdog_us = nullptr) {
    daemon.spawn([&] {
      setenv("NOTIFY_SOCKET", name_.c_str(), 1);
      if (watchdog_us == nullptr) return;
      setenv("WATCHDOG_USEC", watchdog_us, 1);
      setenv("WATCHDOG_PID", std::to_string(getpid()).c_str(), 1);
    });
    ASSERT_TRUE(daemon.wait_ready()) << daemon.output();
  }
  // Everything that came so far, a line each.
  const std::string& told() {
    char buffer[4096];
    for (ssize_t n = 0; (n = recv(socket_, buffer, sizeof(buffer), 0)) > 0;)
      told_ += std::string(buffer, static_cast<size_t>(n)) + "\n";
    return told_;
  }
  bool was_told(const std::string& words) {
    return eventually([&] { return told().find(words) != std::string::npos; });
  }
  size_t count(const std::string& words) {
    size_t n = 0;
    for (size_t at = told().find(words); at != std::string::npos; at = told_.find(words, at + 1))
      ++n;
    return n;
  }

 private:
  std::string name_, told_;
  int socket_ = -1;
};

TEST(ServiceManager, is_told_of_loading_serving_reloading_and_stopping) {
  Daemon daemon;
  daemon.write_config();
  Manager manager((daemon.folder() / "notify").string());
  manager.start(daemon);
  EXPECT_TRUE(manager.was_told("READY=1\nSTATUS=serving on unix:" + daemon.socket() + "\n"));
  const size_t loading = manager.told().find("STATUS=loading: ");
  EXPECT_LT(loading, manager.told().find("READY=1"));
  EXPECT_NE(manager.told().find("EXTEND_TIMEOUT_USEC=120000000\n"), std::string::npos);
  daemon.write_config("", "no such folder");
  ASSERT_EQ(kill(daemon.pid(), SIGHUP), 0);
  EXPECT_TRUE(manager.was_told("RELOADING=1\nMONOTONIC_USEC="));
  EXPECT_TRUE(manager.was_told("; the configuration was not taken over: "));
  EXPECT_EQ(manager.count("READY=1"), 2U);
  EXPECT_EQ(manager.count("WATCHDOG=1"), 0U) << "it has none";
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
  EXPECT_TRUE(manager.was_told("STOPPING=1\nSTATUS=draining\n"));
}

TEST(ServiceManager, hears_a_beat_until_a_step_hangs) {
  Daemon daemon;
  daemon.write_config(
      "  hang:\n    drafter: {plugin: specd.test.drafter_hang}\n"
      "    verifier: {plugin: specd.verifier.match}\n",
      std::string(SPECD_PLUGINS) + ", " + SPECD_HANG_PLUGINS, "drain_seconds: 0\n");
  Manager manager("@specd-test-" + std::to_string(getpid()));
  manager.start(daemon, "2000000");
  EXPECT_TRUE(eventually([&] { return manager.count("WATCHDOG=1") >= 3; }));
  const auto stub = v1::Inference::NewStub(daemon.channel());
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, make_request("hang", 16));
  // The manager's patience, and as long again.
  EXPECT_TRUE(eventually([&] {
    const size_t before = manager.count("WATCHDOG=1");
    std::this_thread::sleep_for(std::chrono::seconds(2));
    return manager.count("WATCHDOG=1") == before;
  }));
  EXPECT_EQ(daemon.stop(), 4) << daemon.output();
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

TEST(ServiceManager, that_cannot_be_reached_is_logged_and_holds_up_nothing) {
  Daemon daemon;
  daemon.write_config();
  daemon.spawn([] { setenv("NOTIFY_SOCKET", "relative", 1); });
  ASSERT_TRUE(daemon.wait_ready()) << daemon.output();
  EXPECT_NE(daemon.output().find("NOTIFY_SOCKET: cannot connect to 'relative': Invalid argument"),
            std::string::npos)
      << daemon.output();
  EXPECT_TRUE(daemon.client().generate(make_request("off", 2), {}).ok());
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

}  // namespace
}  // namespace specd::host
