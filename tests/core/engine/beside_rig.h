// Routes whose drafters work beside the step.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
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
};

}  // namespace specd
