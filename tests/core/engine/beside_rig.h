// Routes whose drafters work beside the step.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/core/engine/route_rig.h"

namespace specd {

class BesideRig : public RouteRig {
 protected:
  static RouteOptions guarded(RouteOptions wanted, int32_t budget_us = 4'000'000) {
    wanted.isolation = Isolation::kGuarded;
    wanted.step_budget_us = budget_us;
    return wanted;
  }
  static RouteOptions in_process(RouteOptions wanted, int32_t budget_us = 4'000'000) {
    wanted.isolation = Isolation::kProcess;
    wanted.step_budget_us = budget_us;
    return wanted;
  }
  // Drafts "token 1", which is wrong most of the time, and hangs while hang() holds.
  RouteOptions hanging(const std::string& name) {
    RouteOptions wanted = broken(name, "hangs");
    wanted.drafter.config["while"] = hang_file();
    wanted.call_ms_max = 200;
    return wanted;
  }
  std::string hang_file() const { return folder_ + "/hang"; }
  void hang() { std::ofstream(hang_file()) << "x"; }
  void go_on() { std::filesystem::remove(hang_file()); }
  uint64_t shadow(const std::string& name = "r") {
    return good(engine_->set_traffic(name, {.is_shadow = true}));
  }
  RouteReport version(RouteState state, const std::string& name = "r") const {
    for (const RouteReport& each : engine_->routes()) {
      if (each.name() == name && each.state == state) return each;
    }
    ADD_FAILURE() << "no version of " << name << " is " << route_state_name(state);
    return {};
  }
  // Waits for what a thread beside the step has still to count.
  template <typename Fn>
  void wait_for(Fn&& is_so) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    bool is = is_so();
    for (; !is && std::chrono::steady_clock::now() < end; is = is_so())
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_TRUE(is);
  }
  bool has_event(EventKind kind, const std::string& words) const {
    for (const EngineEvent& each : engine_->events(0, 1000)) {
      if (each.kind == kind && each.text.find(words) != std::string::npos) return true;
    }
    return false;
  }
  static std::vector<Request> all_requests(const std::string& route_name, int32_t n_tokens) {
    std::vector<Request> all;
    for (const std::string& prompt : prompts()) {
      all.push_back(request(prompt, route_name, n_tokens));
      all.push_back(request(prompt, route_name, n_tokens, 0.8f, 77));
    }
    return all;
  }
  // Serves the routes, and each as NAME_beside, too, as `beside` makes it.
  void start_both(const std::vector<RouteOptions>& in_step,
                  const std::function<RouteOptions(RouteOptions)>& beside) {
    std::vector<RouteOptions> routes = in_step;
    for (RouteOptions each : in_step) {
      each.name += "_beside";
      routes.push_back(beside(std::move(each)));
    }
    EngineOptions o = options("pico-target");
    o.max_sequences = 5;  // fewer than requests, so that some wait
    start_with(routes, o);
  }
  // After start_both(): no drafter changes a token, and beside the step it drafts what it drafts in it.
  void expect_the_same_beside(const std::vector<RouteOptions>& in_step) {
    const std::vector<Outcome> plain = run_all(all_requests("off", 16));
    for (const RouteOptions& each : in_step) {
      std::vector<uint64_t> counts;
      for (const std::string& name : {each.name, each.name + "_beside"}) {
        ASSERT_EQ(report(name).state, RouteState::kLive) << report(name).refused.to_string();
        engine_->clear_prefix_cache();
        expect_identical(run_all(all_requests(name, 16)), plain, name);
        const RouteReport seen = report(name);
        EXPECT_EQ(seen.counts.lost, 0u) << name << ": " << seen.last_problem;
        EXPECT_EQ(seen.counts.cut, 0u) << name << ": " << seen.last_problem;
        EXPECT_GT(seen.counts.propose.calls, 0u) << name;
        counts.push_back(seen.counts.drafted);
        counts.push_back(seen.counts.accepted);
      }
      EXPECT_GT(counts[0], 0u) << each.name;
      EXPECT_EQ(counts[2], counts[0]) << each.name;
      EXPECT_EQ(counts[3], counts[1]) << each.name;
    }
  }
};

}  // namespace specd
