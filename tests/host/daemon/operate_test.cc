// What operators do to a daemon that runs: reload, drain, plugins, the list of requests.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>

#include "tests/host/daemon/daemon_rig.h"

namespace specd::host {
namespace {

constexpr char kMore[] =
    "  more:\n    draft_nodes_max: 3\n    drafter: {plugin: specd.drafter.prompt_lookup}\n"
    "    verifier: {plugin: specd.verifier.match}\n";

TEST(Operate, sighup_takes_over_routes_and_settings_of_the_edited_file_or_nothing) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const auto logs = [&](const std::string& words) {
    return eventually([&] { return daemon.output().find(words) != std::string::npos; });
  };
  daemon.write_config(kMore, SPECD_PLUGINS, "drain_seconds: 7\nlog_level: debug\n");
  ASSERT_EQ(kill(daemon.pid(), SIGHUP), 0);
  EXPECT_TRUE(
      logs("specd: SIGHUP: the configuration was read again; added more; "
           "set drain_seconds: 7, was 30, log_level: debug, was info"))
      << daemon.output();
  EXPECT_TRUE(daemon.client().generate(make_request("more", 2), {}).ok());
  // A line that is logged at this level alone.
  v1::DeleteRouteRequest remove;
  remove.set_name("more");
  EXPECT_TRUE(daemon.client().delete_route(remove).ok());
  EXPECT_TRUE(logs(": retired")) << daemon.output();
  // All or nothing, with the place.
  daemon.write_config(
      "  bad:\n    drafter: {plugin: none}\n"
      "    verifier: {plugin: specd.verifier.match}\n");
  ASSERT_EQ(kill(daemon.pid(), SIGHUP), 0);
  EXPECT_TRUE(logs("specd: SIGHUP: the configuration was not taken over: " +
                   (daemon.folder() / "c.yaml").string() + ":11:15: routes.bad.drafter.plugin: "))
      << daemon.output();
  daemon.write_config(kMore, SPECD_PLUGINS,
                      "drain_seconds: 7\nlog_level: debug\ndevices: [auto]\n");
  ASSERT_EQ(kill(daemon.pid(), SIGHUP), 0);
  EXPECT_TRUE(
      logs("c.yaml:4:1: devices: it would be [auto] and was [cpu]; this needs a restart, "
           "so nothing was changed"))
      << daemon.output();
  daemon.write_config("  broken: {\n");
  ASSERT_EQ(kill(daemon.pid(), SIGHUP), 0);
  EXPECT_TRUE(logs("c.yaml:11:1: ")) << daemon.output();
  // A drain of no seconds cuts at once.
  daemon.write_config(kMore, SPECD_PLUGINS, "drain_seconds: 0\n");
  ASSERT_EQ(kill(daemon.pid(), SIGHUP), 0);
  EXPECT_TRUE(logs("set drain_seconds: 0, was 7, log_level: info, was debug")) << daemon.output();
  std::atomic<bool> begun{false};
  Status cut;
  std::thread stream([&] {
    Client own = daemon.client();
    cut =
        own.generate(make_request("off", 1900), [&](const v1::GenerateResponse&) { begun = true; })
            .status();
  });
  EXPECT_TRUE(eventually([&] { return begun.load(); }));
  EXPECT_EQ(daemon.stop(), 4) << daemon.output();
  stream.join();
  EXPECT_NE(cut.text().find("the drain limit of 0 s"), std::string::npos) << cut.text();
}

TEST(Operate, specctl_reloads_tries_and_shows_what_it_did) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  expect_specctl(daemon, "reload", 0, "nothing has changed");
  daemon.write_config(kMore);
  expect_specctl(daemon, "reload --dry-run", 0, "would be added");
  expect_specctl(daemon, "generate --prompt x --max-tokens 2 --route more", 1,
                 "no route is called 'more'");
  expect_specctl(daemon, "reload -o json --request-id me", 0, R"("added":["more"])");
  expect_specctl(daemon, "generate --prompt x --max-tokens 2 --route more", 0, "");
  expect_specctl(daemon, "events", 0,
                 "configured  the configuration was read again; added more (request me)");
  daemon.write_config("", SPECD_PLUGINS, "drain_seconds: 9\n");
  expect_specctl(daemon, "reload --dry-run", 0, "drain_seconds: 9, was 30, would be set");
  expect_specctl(daemon, "reload", 0, "removed");
  expect_specctl(daemon, "reload --request-id " + std::string(200, 'x'), 1,
                 "INVALID_ARGUMENT: request_id: expected at most 128 bytes");
  daemon.write_config("", "more");
  expect_specctl(daemon, "reload", 1, "c.yaml:4:");
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(Operate, drain_ends_the_daemon_when_its_requests_have_ended) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  std::atomic<bool> begun{false};
  Result<Generation> running = Status(Code::kInternal, "not run");
  std::thread stream([&] {
    Client own = daemon.client();
    running = own.generate(make_request("lookup", 600),
                           [&](const v1::GenerateResponse&) { begun = true; });
  });
  EXPECT_TRUE(eventually([&] { return begun.load(); }));
  expect_specctl(daemon, "drain", 0, "");
  EXPECT_EQ(daemon.wait(), 0) << daemon.output();
  stream.join();
  ASSERT_TRUE(running.ok()) << running.status().text();
  EXPECT_EQ(running.value().token_ids.size(), 600U);
  EXPECT_NE(daemon.output().find("specd: draining"), std::string::npos);
}

TEST(Operate, specctl_loads_and_retires_plugins_and_lists_requests_and_rates) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  expect_specctl(daemon, "plugin retire specd.drafter.prompt_lookup", 1,
                 "FAILED_PRECONDITION: plugin: it is used by lookup");
  expect_specctl(daemon, "plugin load specd.drafter.suffix", 0, "is loaded");
  expect_specctl(daemon, "plugin retire specd.drafter.suffix", 0, "");
  expect_specctl(daemon, "plugins", 0, "it was retired; load it to use it again");
  expect_specctl(daemon, "plugin load specd.drafter.suffix -o json", 0, R"("state":"loaded")");
  expect_specctl(daemon, "plugin load none", 1, "NOT_FOUND: plugin: plugin 'none' is not there");
  expect_specctl(daemon, "plugin keep x", 2, "plugin: expected load ID or retire ID");
  expect_specctl(daemon, "requests", 0, "0 run, 0 wait");
  std::atomic<bool> begun{false};
  Client client = daemon.client();
  for (const int32_t max : {-1, 10'001})
    EXPECT_EQ(client.requests(max).status().code(), Code::kInvalidArgument);
  v1::GenerateRequest wanted = make_request("off", 1900);
  wanted.set_request_id("long-one");
  std::thread stream([&] {
    Client own = daemon.client();
    EXPECT_TRUE(own.generate(wanted, [&](const v1::GenerateResponse&) { begun = true; }).ok());
  });
  EXPECT_TRUE(eventually([&] { return begun.load(); }));
  expect_specctl(daemon, "requests", 0, "1 run, 0 wait");
  expect_specctl(daemon, "requests -o json", 0, R"("request_id":"long-one")");
  expect_specctl(daemon, "top --count 1", 0, " tokens/s, ");
  stream.join();
  expect_specctl(daemon, "top --count 2 -o json", 0, R"("tokens_per_s":)");
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

}  // namespace
}  // namespace specd::host
