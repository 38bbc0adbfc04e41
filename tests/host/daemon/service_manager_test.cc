// What a service manager is told. daemon_life_test.cc has its watchdog.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "tests/host/daemon/daemon_rig.h"
#include "tests/host/daemon/notify_socket.h"

namespace specd::host {
namespace {

TEST(ServiceManager, is_told_of_loading_serving_reloading_and_stopping) {
  Daemon daemon;
  daemon.write_config();
  NotifySocket manager((daemon.folder() / "notify").string());
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

TEST(ServiceManager, gets_short_words_and_may_start_anew) {
  Daemon daemon;
  daemon.write_config();
  const std::string path = (daemon.folder() / "notify").string();
  {
    NotifySocket first(path);
    first.start(daemon);
  }
  fs::remove(path);
  NotifySocket second(path);
  std::string routes;
  for (int i = 0; i < 100; ++i) {
    routes += "  " + std::string(50, 'r') + std::to_string(i) +
              ":\n    drafter: {plugin: specd.drafter.prompt_lookup}\n"
              "    verifier: {plugin: specd.verifier.match}\n";
  }
  daemon.write_config(routes);
  ASSERT_EQ(kill(daemon.pid(), SIGHUP), 0);
  EXPECT_TRUE(second.was_told("READY=1\n"));
  EXPECT_LT(second.told().size(), 2000U);
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(ServiceManager, that_cannot_be_reached_is_logged_and_holds_up_nothing) {
  Daemon daemon;
  daemon.write_config();
  daemon.spawn([] { setenv("NOTIFY_SOCKET", "relative", 1); });
  ASSERT_TRUE(daemon.wait_ready()) << daemon.output();
  EXPECT_NE(daemon.output().find("NOTIFY_SOCKET: expected a path or @NAME, found 'relative'"),
            std::string::npos)
      << daemon.output();
  EXPECT_TRUE(daemon.client().generate(make_request("off", 2), {}).ok());
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

}  // namespace
}  // namespace specd::host
