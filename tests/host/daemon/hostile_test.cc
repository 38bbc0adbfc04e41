// What would end, block or starve a daemon: plugins that crash, exit, hang or fail, files that are
// cut, descriptors and threads that run out. Whatever happens has a defined answer.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/sanitizer.h"
#include "tests/host/daemon/daemon_rig.h"
#include "tests/host/daemon/hang/failing_calls.h"
#include "tests/host/http/raw_http.h"
#include "tests/host/rpc/http2_frames.h"

namespace specd::host {
namespace {

constexpr bool kHasSanitizer = SPECD_ASAN;

const std::string kPluginFolders = std::string(SPECD_PLUGINS) + ", " + SPECD_HANG_PLUGINS;

std::string hang_route(const std::string& config, const std::string& more = "") {
  return "  hang:\n" + more + "    drafter: {plugin: specd.test.drafter_hang, config: {" + config +
         "}}\n    verifier: {plugin: specd.verifier.match}\n";
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

Status apply(Client& client, const std::string& name, const std::string& config) {
  v1::ApplyRouteRequest request;
  request.set_definition("{name: " + name +
                         ", drafter: {plugin: specd.test.drafter_hang, config: {" + config +
                         "}}, verifier: {plugin: specd.verifier.match}}");
  return client.apply_route(request).status();
}

Status apply_lookup(Client& client, const std::string& name) {
  v1::ApplyRouteRequest request;
  request.set_definition("{name: " + name +
                         ", drafter: {plugin: specd.drafter.prompt_lookup}, verifier: {plugin: "
                         "specd.verifier.match}}");
  return client.apply_route(request).status();
}

// Most of these cases wait for a limit, so they wait together.
void at_once(const std::vector<std::string>& calls,
             const std::function<void(const std::string&)>& check) {
  std::vector<std::thread> threads;
  for (const std::string& call : calls) threads.emplace_back([&check, &call] { check(call); });
  for (std::thread& each : threads) each.join();
}

// The tokens of a greedy continuation on `route`; empty when it fails.
std::vector<int32_t> tokens(Client& client, const std::string& route, int32_t n = 24) {
  const auto reply = client.generate(make_request(route, n), {});
  return reply.ok() ? reply.value().token_ids : std::vector<int32_t>();
}

TEST(Hostile, plugin_that_ends_the_process_is_named_and_the_end_is_not_a_success) {
  if (kHasSanitizer) GTEST_SKIP() << "a sanitizer has last words of its own";
  struct Case {
    std::string does, words;
    int end;  // as Daemon::wait()
    std::string more = "";
  };
  const std::vector<Case> cases = {
      {"crash", "SIGSEGV at address 0x10 in plugin", 1000 + SIGSEGV},
      {"crash on a thread", "SIGSEGV at address 0x10 on a thread of plugin", 1000 + SIGSEGV},
      {"overflow", "SIGSEGV at address ", 1000 + SIGSEGV},
      {"crash", "SIGSEGV at address 0x10 in plugin", 1000 + SIGSEGV, "    isolation: guarded\n"},
      {"abort", "SIGABRT in plugin", 1000 + SIGABRT},
      {"throw", "an exception that nothing catches in plugin", 1000 + SIGABRT},
      {"abort on a thread", "SIGABRT, with code of plugin", 1000 + SIGABRT},
      {"throw on a thread", "an exception that nothing catches, with code of plugin",
       1000 + SIGABRT},
      {"exit", "exit() was called in plugin", 1},
      {"_exit", "_exit() was called in plugin", 1},
      {"quick_exit", "quick_exit() was called in plugin", 1},
  };
  for (const Case& each : cases) {
    Daemon daemon;
    daemon.write_config(hang_route("does: " + each.does, each.more), kPluginFolders);
    ASSERT_TRUE(daemon.start()) << daemon.output();
    Client client = daemon.client();
    EXPECT_FALSE(client.generate(make_request("hang", 16), {}).ok());
    EXPECT_EQ(daemon.wait(), each.end) << each.does << daemon.output();
    const std::string output = daemon.output();
    EXPECT_NE(output.find("specd: " + each.words), std::string::npos) << each.does << output;
    EXPECT_NE(output.find("plugin specd.test.drafter_hang, version 0.0.1, sha256:"),
              std::string::npos)
        << each.does << output;
    const bool has_call = each.does.find(" on a thread") == std::string::npos;
    EXPECT_EQ(output.find(", for hang.drafter, in propose()") != std::string::npos, has_call)
        << each.does << output;
  }
}

TEST(Hostile, what_a_plugin_logged_before_it_exits_is_written) {
  if (kHasSanitizer) GTEST_SKIP() << "a sanitizer has last words of its own";
  Daemon daemon;
  daemon.write_config(hang_route("does: log and exit"), kPluginFolders);
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  EXPECT_FALSE(client.generate(make_request("hang", 16), {}).ok());
  EXPECT_EQ(daemon.wait(), 1) << daemon.output();
  EXPECT_NE(daemon.output().find("line 90"), std::string::npos) << daemon.output();
}

TEST(Hostile, plugin_that_hangs_outside_of_steps_is_refused_and_the_rest_goes_on) {
  at_once({"constructor", "init", "describe", "create", "activate"}, [](const std::string& call) {
    const bool is_early = call == "constructor" || call == "init";
    Daemon daemon;
    daemon.write_config("", kPluginFolders);
    std::string config = read_file(daemon.folder() / "c.yaml");
    config.replace(config.find("cache_directory"), 0, "control_seconds: 2, ");
    std::ofstream(daemon.folder() / "c.yaml") << config;
    daemon.spawn([&] {
      if (is_early) setenv("SPECD_TEST_HANG_IN", call.c_str(), 1);
    });
    ASSERT_TRUE(daemon.wait_ready()) << daemon.output();
    Client client = daemon.client();
    client.set_time_limit(std::chrono::seconds(600));  // as specctl does
    const std::vector<int32_t> expected = tokens(client, "off");
    ASSERT_FALSE(expected.empty());

    const Status refused = apply(client, "hang", is_early ? "" : "in: " + call);
    EXPECT_EQ(refused.code(), Code::kDeadlineExceeded) << call << refused.text();
    const std::string in = call == "constructor" ? "a constructor" : call + "()";
    for (const std::string& word : {std::string("plugin specd.test.drafter_hang"), in,
                                    std::string("2 s"), std::string("plugins.control_seconds")})
      EXPECT_NE(refused.text().find(word), std::string::npos) << call << ": " << refused.text();
    EXPECT_EQ(refused.text().find("did not answer"), std::string::npos) << refused.text();
    // It is not tried again, and that is told at once.
    const auto start = std::chrono::steady_clock::now();
    EXPECT_FALSE(apply(client, "again", "in: propose").ok()) << call;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2)) << call;
    const auto plugins = client.plugins();
    ASSERT_TRUE(plugins.ok());
    for (const v1::Plugin& plugin : plugins.value().plugins())
      EXPECT_EQ(plugin.state() == v1::PLUGIN_STATE_REFUSED,
                plugin.id() == "specd.test.drafter_hang")
          << call << plugin.id();
    // Everything else goes on.
    EXPECT_TRUE(apply_lookup(client, "other").ok()) << call;
    EXPECT_EQ(tokens(client, "other"), expected) << call;
    v1::DeleteRouteRequest request;
    request.set_name("other");
    EXPECT_TRUE(client.delete_route(request).ok()) << call;
    EXPECT_EQ(daemon.stop(), 4) << call << daemon.output();
  });
}

TEST(Hostile, default_route_whose_plugin_hangs_ends_the_start) {
  at_once({"constructor", "init"}, [](const std::string& call) {
    Daemon daemon;
    daemon.write_config_text(
        "model: {name: pico, path: ZOO/pico-target}\n"
        "plugins: {directories: [PLUGINS, HANG], cache_directory: cache, control_seconds: 2}\n"
        "default_route: hang\nroutes:\n" +
        hang_route(""));
    daemon.spawn([&] { setenv("SPECD_TEST_HANG_IN", call.c_str(), 1); });
    EXPECT_EQ(daemon.wait(), 1) << call << daemon.output();
    EXPECT_NE(daemon.output().find("has not returned within 2 s"), std::string::npos)
        << call << daemon.output();
  });
}

TEST(Hostile, plugin_that_hangs_at_the_end_of_a_route_is_refused_and_the_rest_goes_on) {
  at_once({"deactivate", "destroy"}, [](const std::string& call) {
    Daemon daemon;
    daemon.write_config_text(
        "model: {name: pico, path: ZOO/pico-target}\n"
        "plugins: {directories: [PLUGINS, HANG], cache_directory: cache, control_seconds: 2}\n"
        "routes:\n" +
        hang_route("in: " + call));
    ASSERT_TRUE(daemon.start()) << daemon.output();
    Client client = daemon.client();
    v1::DeleteRouteRequest request;
    request.set_name("hang");
    EXPECT_TRUE(client.delete_route(request).ok()) << call;
    EXPECT_TRUE(eventually([&] {
      return daemon.output().find(call + "() has not returned within 2 s") != std::string::npos;
    })) << call
        << daemon.output();
    EXPECT_TRUE(apply_lookup(client, "other").ok()) << call;
    EXPECT_FALSE(apply(client, "again", "").ok()) << call;
    EXPECT_FALSE(tokens(client, "other").empty()) << call;
    EXPECT_EQ(daemon.stop(), 4) << call << daemon.output();
  });
}

TEST(Hostile, deinit_is_left_out_while_a_late_call_has_left_an_instance) {
  at_once({"", "create", "activate"}, [](const std::string& call) {
    const bool is_late = !call.empty();
    Daemon daemon;
    daemon.write_config_text(
        "model: {name: pico, path: ZOO/pico-target}\n"
        "plugins: {directories: [PLUGINS, HANG], cache_directory: cache, control_seconds: 2}\n"
        "routes:\n" +
        hang_route(is_late ? "does: return late, in: " + call : "does: slow"));
    ASSERT_TRUE(daemon.start()) << daemon.output();
    if (is_late) sleep(4);
    EXPECT_EQ(daemon.stop(), 0) << call << daemon.output();
    const std::string output = daemon.output();
    EXPECT_EQ(output.find("deinit() beside 0 instances") != std::string::npos, !is_late) << output;
    EXPECT_EQ(output.find("deinit() is left out") != std::string::npos, is_late) << output;
    EXPECT_EQ(output.find("deinit() beside 1"), std::string::npos) << output;
  });
}

// The call becomes late while the engine is being destroyed: nothing that it uses may go.
TEST(Hostile, plugin_that_hangs_at_the_end_of_a_route_while_the_daemon_stops_is_left_behind) {
  Daemon daemon;
  daemon.write_config_text(
      "drain_seconds: 0\n"
      "model: {name: pico, path: ZOO/pico-target}\n"
      "plugins: {directories: [PLUGINS, HANG], cache_directory: cache, control_seconds: 5}\n"
      "routes:\n" +
      hang_route("in: deactivate"));
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  v1::DeleteRouteRequest request;
  request.set_name("hang");
  EXPECT_TRUE(client.delete_route(request).ok());
  ASSERT_TRUE(eventually([&] {
    return daemon.output().find("from here on it hangs") != std::string::npos;
  })) << daemon.output();
  EXPECT_EQ(daemon.stop(), 4) << daemon.output();
  EXPECT_EQ(daemon.output().find("specd: stopped"), std::string::npos) << daemon.output();
}

TEST(Hostile, check_ends_when_a_plugin_hangs_and_names_it) {
  at_once({"constructor", "create", "activate", "destroy"}, [](const std::string& call) {
    const bool is_early = call == "constructor";
    Daemon daemon;
    daemon.write_config_text(
        "model: {name: pico, path: ZOO/pico-target}\n"
        "plugins: {directories: [PLUGINS, HANG], cache_directory: cache, control_seconds: 2}\n"
        "routes:\n" +
        hang_route(is_early ? "" : "in: " + call));
    const auto [code, output] =
        run_command((is_early ? "SPECD_TEST_HANG_IN=" + call + " " : std::string()) +
                    "timeout -s KILL 60 " SPECD_BINARY " check --config " +
                    (daemon.folder() / "c.yaml").string());
    EXPECT_EQ(code, 3) << call << output;  // kExitConfig
    const std::string in = call == "constructor" ? "a constructor" : call + "()";
    for (const std::string& word :
         {std::string("routes.hang"), in, std::string("plugin specd.test.drafter_hang"),
          std::string("not returned within 2 s (plugins.control_seconds)")})
      EXPECT_NE(output.find(word), std::string::npos) << call << ": " << output;
  });
}

TEST(Hostile, socket_that_is_removed_is_told_by_the_probe) {
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, "http: {listen: '127.0.0.1:0'}\n");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const std::string endpoint = daemon.http_endpoint();
  EXPECT_EQ(http_body(http_get(endpoint, "/health/ready")), "ready\n");
  fs::remove(daemon.socket());
  const std::string answer = http_get(endpoint, "/health/ready");
  EXPECT_NE(answer.find(" 503 "), std::string::npos) << answer;
  EXPECT_NE(answer.find("was removed or replaced"), std::string::npos) << answer;
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(Hostile, limits_that_end_a_process_by_a_signal_do_not_end_the_daemon) {
  Daemon daemon;
  daemon.write_config();
  daemon.spawn([] {
    const rlimit small{.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    setrlimit(RLIMIT_FSIZE, &small);  // a library has more
  });
  ASSERT_TRUE(eventually([&] {
    int status = 0;
    return daemon.output().find(" ready on") != std::string::npos ||
           daemon.output().find("File too large") != std::string::npos ||
           waitpid(daemon.pid(), &status, WNOHANG | WNOWAIT) > 0;
  })) << daemon.output();
  kill(daemon.pid(), SIGTERM);
  EXPECT_LT(daemon.wait(), 1000) << "ended by a signal\n" << daemon.output();
}

TEST(Hostile, drafter_that_fails_or_is_late_again_and_again_is_suspended_and_changes_no_token) {
  for (const auto& [does, more, words] :
       {std::tuple("fail", "", "SPECD_E_INTERNAL"),
        std::tuple("fail sequences", "", "SPECD_E_INTERNAL"),
        std::tuple("slow", "    call_ms_max: 10\n", "call_ms_max is 10")}) {
    Daemon daemon;
    daemon.write_config(hang_route("does: " + std::string(does), more), kPluginFolders);
    ASSERT_TRUE(daemon.start()) << daemon.output();
    Client client = daemon.client();
    EXPECT_EQ(tokens(client, "hang"), tokens(client, "off")) << does;
    const auto routes = client.routes();
    ASSERT_TRUE(routes.ok());
    for (const v1::Route& route : routes.value().routes()) {
      if (route.name() != "hang") continue;
      EXPECT_EQ(route.lost(), 1) << does;
      EXPECT_NE(route.last_problem().find(words), std::string::npos) << route.last_problem();
    }
    EXPECT_EQ(count(daemon.output(), "the drafter is suspended"), 1U) << does << daemon.output();
    EXPECT_EQ(daemon.stop(), 0) << does << daemon.output();
  }
}

TEST(Hostile, drafter_that_declares_more_memory_than_there_is_is_refused) {
  Daemon daemon;
  daemon.write_config("", kPluginFolders);
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  const Status refused = apply(client, "hang", "bytes: 9000000000000000000");
  EXPECT_FALSE(refused.ok());
  EXPECT_NE(refused.text().find("bytes_fixed = 9000000000000000000"), std::string::npos)
      << refused.text();
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(Hostile, child_that_a_plugin_forks_keeps_neither_lock_nor_socket) {
  Daemon daemon;
  daemon.write_config(hang_route("does: fork"), kPluginFolders, "http: {listen: '127.0.0.1:0'}\n");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  EXPECT_FALSE(tokens(client, "hang", 4).empty());
  daemon.stop(SIGKILL);
  fs::remove(daemon.folder() / "log");
  EXPECT_TRUE(daemon.start()) << daemon.output();
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(Hostile, weights_that_are_cut_while_they_are_served_are_named) {
  if (kHasSanitizer) GTEST_SKIP() << "a sanitizer has last words of its own";
  Daemon daemon;
  const fs::path zoo = fs::path(SPECD_SOURCE_DIR) / "configs/zoo/pico-target";
  fs::copy(zoo, daemon.folder() / "model");
  daemon.write_config_text("model: {name: pico, path: model}\n");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  const std::vector<int32_t> expected = tokens(client, "off");
  const fs::path weights = daemon.folder() / "model/model.safetensors";
  fs::permissions(weights, fs::perms::owner_all);
  fs::resize_file(weights, 4096);
  const std::vector<int32_t> found = tokens(client, "off");
  if (found == expected) {  // nothing of the file is read any more
    EXPECT_EQ(daemon.stop(), 0) << daemon.output();
    return;
  }
  EXPECT_EQ(daemon.wait(), 1000 + SIGBUS) << daemon.output();
  EXPECT_NE(daemon.output().find("model.safetensors' was cut short"), std::string::npos)
      << daemon.output();
}

// A client of the socket that writes bytes of its own.
class RawUnixClient {
 public:
  explicit RawUnixClient(const std::string& path)
      : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    path.copy(to.sun_path, sizeof(to.sun_path) - 1);
    EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    const timeval limit{.tv_sec = 30, .tv_usec = 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  void send(const std::string& bytes) const {
    (void)!::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  bool is_closed_by_server() const {
    char block[4096];
    ssize_t n = 0;
    while ((n = recv(fd_.get(), block, sizeof(block), 0)) > 0) {
    }
    return n == 0 || errno == ECONNRESET;
  }

 private:
  FileDescriptor fd_;
};

// Connections that never say anything.
std::vector<RawUnixClient> idle_connections(const std::string& path, int n) {
  std::vector<RawUnixClient> crowd;
  for (int i = 0; i < n; ++i) crowd.emplace_back(path);
  return crowd;
}

TEST(Hostile, descriptors_used_up_once_are_used_again_when_they_are_free) {
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, "http: {listen: '127.0.0.1:0'}\n");
  daemon.spawn([] {
    const rlimit few{.rlim_cur = 240, .rlim_max = 240};
    setrlimit(RLIMIT_NOFILE, &few);
  });
  ASSERT_TRUE(daemon.wait_ready()) << daemon.output();
  {
    const auto crowd = idle_connections(daemon.socket(), 300);
    EXPECT_TRUE(eventually([&] {
      return daemon.output().find("connections, the limit of one process") != std::string::npos;
    })) << daemon.output();
    // Another process still finds a place.
    const auto [code, text] = run_specctl(daemon, "status");
    EXPECT_EQ(code, 0) << text << daemon.output();
  }
  Client client = daemon.client();
  EXPECT_FALSE(tokens(client, "off").empty());
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(Hostile, clients_see_the_end_of_a_killed_daemon_whose_plugin_has_forked_a_child) {
  Daemon daemon;
  daemon.write_config(hang_route("does: fork"), kPluginFolders);
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const RawUnixClient waiting(daemon.socket());
  Client client = daemon.client();
  EXPECT_FALSE(tokens(client, "hang", 4).empty());  // its child lives for 20 s
  const auto start = std::chrono::steady_clock::now();
  daemon.stop(SIGKILL);
  EXPECT_TRUE(waiting.is_closed_by_server());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(Hostile, clients_that_do_not_read_their_scrapes_do_not_keep_a_probe_out) {
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, "http: {listen: '127.0.0.1:0'}\n");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const std::string endpoint = daemon.http_endpoint();
  std::string scrapes;
  for (int i = 0; i < 1000; ++i) scrapes += "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
  std::vector<RawClient> lazy;
  for (int i = 0; i < 80; ++i) {  // more than there are places
    lazy.emplace_back(endpoint);
    lazy.back().send(scrapes);
    if (i % 8 != 0) continue;
    EXPECT_EQ(http_body(http_get(endpoint, "/health/ready")), "ready\n") << i;
  }
  EXPECT_EQ(http_body(http_get(endpoint, "/health/live")), "live\n");
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(Hostile, calls_that_are_opened_and_dropped_close_the_connection_and_hold_no_memory) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  const std::vector<int32_t> expected = tokens(client, "off");
  ASSERT_FALSE(expected.empty());
  const uint64_t before = resident_bytes(daemon.pid());
  // As an HTTP/2 client would write them, with its headers as literals (RFC 7541, section 6.2.2).
  const std::string path = "/specd.v1.Control/GetStatus";
  const std::string headers = "\x83\x86\x04" + std::string(1, static_cast<char>(path.size())) +
                              path + "\x01\x01x" + "\x0f\x10\x10" + "application/grpc" +
                              std::string("\x00\x02", 2) + "te\x08trailers";
  for (int i = 0; i < 10; ++i) {
    RawUnixClient dropper(daemon.socket());
    std::string calls = kHttp2Preface + http2_frame(kSettingsFrame, 0, 0, "");
    for (uint32_t stream = 1; stream < 40'000; stream += 2)
      calls += http2_frame(kHeadersFrame, 4, stream, headers) +
               http2_frame(kResetFrame, 0, stream, std::string("\0\0\0\x08", 4));
    dropper.send(calls);  // as far as it is taken
    EXPECT_TRUE(dropper.is_closed_by_server()) << i;
    EXPECT_EQ(tokens(client, "off"), expected) << i;
  }
  if (!kHasSanitizer) {  // it keeps freed memory
    EXPECT_LT(resident_bytes(daemon.pid()), before + (uint64_t{64} << 20));
  }
  const std::string words = "process " + std::to_string(getpid()) + " opens calls and drops";
  EXPECT_GE(count(daemon.output(), words), 1U) << daemon.output();
  EXPECT_LE(count(daemon.output(), words), 5U) << "one every ten seconds";
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(Hostile, soft_limit_of_descriptors_is_raised) {
  Daemon daemon;
  daemon.write_config();
  daemon.spawn([] {
    const rlimit few{.rlim_cur = 128, .rlim_max = 1024};
    setrlimit(RLIMIT_NOFILE, &few);
  });
  ASSERT_TRUE(daemon.wait_ready()) << daemon.output();
  rlimit now{};
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &now), 0);
  EXPECT_EQ(now.rlim_cur, 1024U);
  const auto crowd = idle_connections(daemon.socket(), 120);
  EXPECT_TRUE(daemon.client().generate(make_request("off", 2), {}).ok());
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(Hostile, prompt_that_cannot_fit_is_refused_before_it_is_tokenized) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  v1::GenerateRequest request = make_request("off", 4);
  request.set_text(std::string(4'000'000, ' '));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) {
    const auto reply = client.generate(request, {});
    EXPECT_EQ(reply.status().code(), Code::kInvalidArgument);
    EXPECT_NE(reply.status().text().find("4000000 bytes cannot fit into the context"),
              std::string::npos)
        << reply.status().text();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(Hostile, nth_failure_while_serving_is_an_answer_and_changes_nothing_afterwards) {
  if (kHasSanitizer) GTEST_SKIP() << "its runtime must come first";
  Daemon daemon;
  const fs::path file = daemon.folder() / "failing";
  std::ofstream(file) << std::string(sizeof(FailingCalls), '\0');
  const int fd = open(file.c_str(), O_RDWR | O_CLOEXEC);
  void* const mapped =
      mmap(nullptr, sizeof(FailingCalls), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  ASSERT_NE(mapped, MAP_FAILED);
  FailingCalls& failing = *static_cast<FailingCalls*>(mapped);
  daemon.write_config("", kPluginFolders);
  daemon.spawn([&] {
    setenv("LD_PRELOAD", SPECD_FAILING_CALLS, 1);
    setenv("SPECD_TEST_FAILING", file.c_str(), 1);
  });
  ASSERT_TRUE(daemon.wait_ready()) << daemon.output();
  Client client = daemon.client();
  const std::vector<int32_t> expected = tokens(client, "off");
  ASSERT_FALSE(expected.empty());
  const std::vector<std::string> drafters = {"suffix", "lookahead", "replay", "prompt_lookup"};
  const std::vector<std::pair<const char*, std::atomic<int> FailingCalls::*>> calls = {
      {"open", &FailingCalls::open},
      {"read", &FailingCalls::read},
      {"mmap", &FailingCalls::mmap},
      {"malloc", &FailingCalls::malloc}};
  int n_failed = 0;
  for (const auto& [name, call] : calls) {
    for (const int n : {1, 2, 3, 5, 8, 13, 21, 34, 55, 89}) {
      SCOPED_TRACE(std::string(name) + " " + std::to_string(n) + "\n" + daemon.output());
      failing.n_failed = 0;
      failing.*call = n;
      v1::ApplyRouteRequest request;
      request.set_definition("{name: r, drafter: {plugin: specd.drafter." +
                             drafters[static_cast<size_t>(n) % drafters.size()] +
                             "}, verifier: {plugin: specd.verifier.match}}");
      const Status applied = client.apply_route(request).status();
      v1::GenerateRequest long_prompt = make_request("r", 8);
      for (int i = 0; i < 12; ++i) long_prompt.set_text(long_prompt.text() + kPrompt);
      (void)client.generate(long_prompt, {});
      (void)client.render(make_request("", 1));
      failing.*call = 0;
      n_failed += failing.n_failed;
      EXPECT_EQ(applied.ok(), applied.text().empty());
      ASSERT_EQ(tokens(client, "off"), expected);
      ASSERT_EQ(tokens(client, "lookup"), expected);
    }
  }
  EXPECT_GT(n_failed, 10);
  const auto status = client.status();
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status.value().running() + status.value().waiting(), 0);
  const v1::GetStatusResponse& s = status.value();
  EXPECT_EQ(s.admitted(), s.completed() + s.failed() + s.cancelled());
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
  munmap(mapped, sizeof(FailingCalls));
}

TEST(Hostile, want_of_threads_ends_the_start_with_a_reason_or_lets_it_serve) {
  if (kHasSanitizer) GTEST_SKIP() << "its runtime must come first";
  int served = 0, refused = 0;
  for (const char* n : {"0", "1", "3", "6", "11", "1000"}) {
    Daemon daemon;
    daemon.write_config();
    daemon.spawn([&] {
      setenv("LD_PRELOAD", SPECD_FAILING_CALLS, 1);
      setenv("SPECD_TEST_THREADS", n, 1);
    });
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    int status = 0;
    bool has_ended = false, is_ready = false;
    while (!has_ended && !is_ready && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      has_ended = waitpid(daemon.pid(), &status, WNOHANG) == daemon.pid();
      is_ready = daemon.output().find(" ready on unix:") != std::string::npos;
    }
    ASSERT_TRUE(has_ended || is_ready) << n << daemon.output();
    if (is_ready) {
      ++served;
      Client client = daemon.client();
      EXPECT_FALSE(tokens(client, "off").empty()) << n;
      EXPECT_FALSE(tokens(client, "lookup").empty()) << n;
      EXPECT_EQ(daemon.stop(), 0) << n << daemon.output();
      continue;
    }
    ++refused;
    EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << n << daemon.output();
    EXPECT_NE(daemon.output().find("thread"), std::string::npos) << n << daemon.output();
    daemon.forget();
  }
  EXPECT_GT(refused, 2);
  EXPECT_GT(served, 0);
}

}  // namespace
}  // namespace specd::host
