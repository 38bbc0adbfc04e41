// An engine whose routes change, with plugins that fail and one that writes down what happens to it.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/core/engine_rig.h"
#include "tests/core/plugin/bundle_fixture.h"

namespace specd {

class RouteRig : public EngineTest {
 protected:
  void start_with(std::vector<RouteOptions> routes, EngineOptions o = options()) {
    o.plugin_directories.push_back(SPECD_TEST_BAD_PLUGINS);
    o.plugin_directories.push_back(tree_.plugins());
    tree_.add("a", read_bytes(fixture("good")));
    o.routes = std::move(routes);
    start(o);
  }
  static RouteOptions lookup(const std::string& name, int32_t k, int32_t probation = 60) {
    RouteOptions wanted = route(
        name,
        plugin("specd.drafter.prompt_lookup",
               {{"num_speculative_tokens", k}, {"prompt_lookup_min", 1}, {"prompt_lookup_max", 3}}),
        k);
    wanted.probation_seconds = probation;
    return wanted;
  }
  static RouteOptions broken(const std::string& name, const char* mode) {
    return route(name,
                 {.plugin = "specd.test.drafter_bad", .factory = "bad", .config = {{"mode", mode}}},
                 4);
  }
  static RouteOptions suffix(const std::string& name) {
    return route(name, plugin("specd.drafter.suffix"), 8);
  }
  RouteOptions with_log(const std::string& name, const std::string& log) {
    return route(name, plugin("org.example.fixture", {{"log", log}}), 4);
  }

  uint64_t good(const Result<RouteChange>& change) {
    EXPECT_TRUE(change.ok()) << change.status().to_string();
    return change.ok() ? change.value().generation : 0;
  }
  static std::string refusal(const Result<RouteChange>& change) {
    return change.ok() ? "was not refused" : change.status().to_string();
  }
  uint64_t stage(const RouteOptions& wanted) { return good(engine_->stage_route(wanted)); }
  uint64_t share(int32_t percent) { return good(engine_->set_traffic("r", {percent})); }
  uint64_t promote() { return good(engine_->promote_route("r")); }
  uint64_t abort() { return good(engine_->abort_route("r")); }
  uint64_t roll_back() { return good(engine_->roll_back_route("r")); }

  // "live 2, canary 3 at 25 %": the versions of a route in the order of reports.
  std::string versions(const std::string& name = "r") const {
    std::string all;
    for (const RouteReport& each : engine_->routes()) {
      if (each.name() != name) continue;
      all += (all.empty() ? "" : ", ") + std::string(route_state_name(each.state)) + " " +
             std::to_string(each.generation);
      if (each.share_percent > 0) all += " at " + std::to_string(each.share_percent) + " %";
    }
    return all;
  }
  void expect_versions(const std::string& wanted, const std::string& name = "r") {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (versions(name) != wanted && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    EXPECT_EQ(versions(name), wanted) << name;
  }
  // Runs at most so many requests, until the route has these versions, and one more. No token changes.
  void run_until(const std::string& wanted, int n_requests_max) {
    const Request r = request(prompts()[3], "r", 40);
    Request off = r;
    off.route = "off";
    const Outcome plain = run(off);
    for (int i = 0; i < n_requests_max && versions() != wanted; ++i) {
      EXPECT_EQ(run(r).tokens, plain.tokens);
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    expect_versions(wanted);
    EXPECT_EQ(run(r).tokens, plain.tokens);
  }
  // Runs `changes` while six clients ask route r all the time; no token changes.
  void under_load(const std::function<void()>& changes) {
    constexpr int32_t kTokens = 32;
    std::vector<std::vector<int32_t>> plain;
    for (const std::string& prompt : prompts())
      plain.push_back(run(request(prompt, "off", kTokens)).tokens);
    std::atomic<bool> done{false};
    std::atomic<uint64_t> ended{0}, wrong{0};
    std::vector<std::thread> clients;
    for (size_t c = 0; c < 6; ++c) {
      clients.emplace_back([&, c] {
        for (size_t i = c; !done; ++i) {
          const size_t at = i % prompts().size();
          if (run(request(prompts()[at], "r", kTokens)).tokens != plain[at]) ++wrong;
          ++ended;
        }
      });
    }
    changes();
    done = true;
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(wrong, 0u);
    EXPECT_GT(ended, 6u);
  }
  static int64_t count_lines(const std::string& file, const std::string& word) {
    std::ifstream in(file);
    int64_t n = 0;
    for (std::string line; std::getline(in, line);) n += line == word ? 1 : 0;
    return n;
  }
  uint64_t requests_of(uint64_t generation) const {
    for (const RouteReport& each : engine_->routes()) {
      if (each.name() == "r" && each.generation == generation) return each.counts.requests;
    }
    return 0;
  }

  BundleTree tree_;
};

}  // namespace specd
