// Probes of an engine whose step thread stands still outside of any plugin.
#include "host/daemon/health.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "core/base/failpoint.h"
#include "tests/host/http/kept_reply.h"

namespace specd::host {
namespace {

bool comes(const std::function<bool()>& is_so) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!is_so() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return is_so();
}

TEST(Health, a_step_thread_that_stands_still_fails_liveness_by_name_until_it_goes_on) {
  std::string folder = (std::filesystem::temp_directory_path() / "specd-health-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  {
    EngineOptions options;
    options.model.name = "pico";
    options.model.path = std::string(SPECD_SOURCE_DIR) + "/configs/zoo/pico-draft";
    options.plugin_cache_directory = folder + "/cache";
    options.default_route = "off";
    auto engine = Engine::create(options, {});
    ASSERT_TRUE(engine.ok()) << engine.status().text();
    Config config;
    config.socket_path = folder + "/s";
    Sessions sessions(*engine.value(), "off");
    auto server = GrpcServer::start(*engine.value(), sessions, config, {});
    ASSERT_TRUE(server.ok()) << server.status().text();
    Health health(1);
    const auto get = [&](const std::string& path) {
      for (const HttpRoute& each : health.routes()) {
        if (each.path != path) continue;
        const auto reply = std::make_shared<KeptReply>();
        each.handler({}, reply);
        return reply->answered();
      }
      return HttpAnswer();
    };
    EXPECT_EQ(get("/health/ready").status, 503u);
    health.loaded(*engine.value(), *server.value());
    EXPECT_EQ(get("/health/live").body, "live\n");
    ASSERT_TRUE(set_failpoints("step.begin=block@2").ok());
    Request request;
    request.prompt = "def main():";
    request.max_tokens = 4;
    std::atomic<bool> has_ended{false};
    const auto ticket = engine.value()->submit(
        request, [&](const Event& event) { has_ended = has_ended || event.done; });
    ASSERT_TRUE(ticket.ok()) << ticket.status().text();
    EXPECT_TRUE(comes([&] { return get("/health/live").status == 503; }));
    const std::string why = get("/health/live").body;
    EXPECT_EQ(why.rfind("the present step has run for ", 0), 0u) << why;
    EXPECT_NE(why.find("http.stall_seconds is 1"), std::string::npos) << why;
    EXPECT_EQ(get("/health/ready").body, "ready\n");
    EXPECT_FALSE(has_ended);
    ASSERT_TRUE(set_failpoints("").ok());
    EXPECT_TRUE(comes([&] { return has_ended.load(); }));
    EXPECT_TRUE(comes([&] { return get("/health/live").body == "live\n"; }));
    server.value()->shutdown(std::chrono::milliseconds(0));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace specd::host
