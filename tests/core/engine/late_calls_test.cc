// Control calls of plugins that return after their time. What the plugins wrote down about themselves
// tells that a late call is the last one of its pair.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/heartbeat.h"
#include "core/base/run_within.h"
#include "core/engine/routes/board.h"
#include "tests/core/engine_rig.h"
#include "tests/core/plugin/bundle_fixture.h"

namespace specd {
namespace {

class LateCalls : public EngineTest {
 protected:
  EngineOptions with_limit() {
    EngineOptions o = options();
    o.plugin_directories = {tree_.plugins()};
    o.plugin_control_seconds = 1;
    return o;
  }
  // A route whose drafter and verifier write down their control calls; `slow` takes 2 s. Made of a
  // new library each time: the last one may have been set aside.
  RouteOptions pair(const std::string& slow, const std::string& mode = "plain") {
    ++n_pairs_;
    tree_.add("a", read_bytes(fixture("good")) + "late" + std::to_string(n_pairs_));
    calls_file_ = folder_ + "/calls" + std::to_string(n_pairs_);
    return route(
        "late",
        plugin("org.example.fixture", {{"slow", slow}, {"mode", mode}, {"calls", calls_file_}}), 4,
        plugin("org.example.fixture"));
  }
  static std::string last_line(const std::string& file) {
    std::ifstream in(file);
    std::string last;
    for (std::string line; std::getline(in, line);) last = line;
    return last;
  }
  std::string last_call() const { return last_line(calls_file_); }
  static void eventually(const std::function<bool()>& is_so) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!is_so() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ASSERT_TRUE(is_so());
  }
  // Deletes the route, and returns when the call has begun.
  void retire_into(const std::string& call) {
    ASSERT_TRUE(engine_->delete_route("late").ok());
    eventually([&] { return last_call() == call; });
  }

  BundleTree tree_;
  std::string calls_file_;
  int n_pairs_ = 0;
};

TEST_F(LateCalls, a_late_call_is_the_last_one_while_a_pair_is_made) {
  start(with_limit());
  const struct {
    const char *call, *mode;
  } cases[] = {{"describe", "plain"},
               {"create", "plain"},
               {"verifier create", "verifier_fails"},
               {"activate", "plain"},
               {"activate", "static_good"},
               {"static_tree", "static_bad"},
               {"verifier activate", "plain"}};
  for (const auto& each : cases) {
    const auto change = engine_->apply_route(pair(each.call, each.mode));
    ASSERT_FALSE(change.ok()) << each.call;
    EXPECT_EQ(change.status().code(), Code::kDeadlineExceeded) << change.status().text();
    wait_for_late_works();
    EXPECT_EQ(last_call(), each.call);
  }
}

TEST_F(LateCalls, a_late_call_is_the_last_one_while_a_pair_is_destroyed) {
  start(with_limit());
  for (const char* call : {"verifier deactivate", "verifier destroy", "deactivate"}) {
    ASSERT_TRUE(engine_->apply_route(pair(call)).ok()) << call;
    retire_into(call);
    while (n_late_works() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    wait_for_late_works();
    EXPECT_EQ(last_call(), call);
  }
}

TEST_F(LateCalls, a_version_whose_end_is_late_is_quarantined_and_its_plugin_is_set_aside) {
  start(with_limit());
  ASSERT_TRUE(engine_->apply_route(pair("deactivate")).ok());
  const uint64_t generation = report("late").generation;
  retire_into("deactivate");
  const auto find = [&](EventKind kind) {
    for (const EngineEvent& each : engine_->events(0, 1000)) {
      if (each.kind == kind) return each;
    }
    return EngineEvent();
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (find(EventKind::kSetAside).text.empty() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const EngineEvent quarantined = find(EventKind::kQuarantined);
  EXPECT_EQ(quarantined.route, "late");
  EXPECT_EQ(quarantined.generation, generation);
  EXPECT_NE(quarantined.text.find("deactivate() has not returned within 1 s"), std::string::npos)
      << quarantined.text;
  EXPECT_NE(find(EventKind::kSetAside).text.find("org.example.fixture"), std::string::npos);
  wait_for_late_works();
}

// One control call at a time per module, also when the first one is late.
TEST_F(LateCalls, another_route_of_the_version_ends_when_the_late_call_has_returned) {
  start(with_limit());
  const RouteOptions slow = pair("deactivate");
  RouteOptions other = slow;
  other.name = "other";
  ASSERT_TRUE(engine_->apply_route(slow).ok());
  ASSERT_TRUE(engine_->apply_route(other).ok());
  const auto n_deactivated = [&] {
    std::ifstream in(calls_file_);
    int n = 0;
    for (std::string line; std::getline(in, line);) n += line == "deactivate" ? 1 : 0;
    return n;
  };
  const auto begin = std::chrono::steady_clock::now();
  retire_into("deactivate");
  while (n_late_works() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_TRUE(engine_->delete_route("other").ok());
  while (n_deactivated() < 2 && std::chrono::steady_clock::now() < begin + std::chrono::minutes(1))
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(n_deactivated(), 2);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2))
      << "the first one takes that long";
  wait_for_late_works();
}

TEST_F(LateCalls, another_version_of_the_plugin_ends_beside_the_late_call) {
  start(with_limit());
  const std::string go_on = folder_ + "/go on", newer_calls = folder_ + "/newer";
  RouteOptions old = pair("deactivate");
  old.drafter.config["until"] = go_on;
  const std::shared_ptr<void> at_end(nullptr, [&](void*) { std::ofstream(go_on).flush(); });
  ASSERT_TRUE(engine_->apply_route(old).ok());
  const std::string newer = read_bytes(fixture("newer")), id = "org.example.fixture@2.0.0";
  tree_.add("newer", newer, BundleTree::manifest(newer, "2.0.0"));
  ASSERT_TRUE(
      engine_->apply_route(route("newer", plugin(id, {{"calls", newer_calls}}), 4, plugin(id)))
          .ok());
  retire_into("deactivate");
  eventually([] { return n_late_works() == 1; });
  ASSERT_TRUE(engine_->delete_route("newer").ok());
  eventually([&] { return last_line(newer_calls) == "destroy"; });
  EXPECT_EQ(n_late_works(), 1);
  EXPECT_EQ(last_line(calls_file_), "deactivate");
}

TEST_F(LateCalls, an_engine_is_not_destroyed_under_a_call_that_is_late) {
  start(with_limit());
  ASSERT_TRUE(engine_->apply_route(pair("destroy")).ok());
  retire_into("destroy");
  engine_.reset();
  EXPECT_EQ(n_late_works(), 0);
}

TEST_F(LateCalls, a_start_and_the_check_of_a_configuration_do_not_wait_for_a_plugin) {
  EngineOptions o = with_limit();
  o.plugin_cache_directory = folder_ + "/cache";
  for (const std::string call : {"describe", "create"}) {
    o.routes = {pair(call)};
    const Status status = check_options(o).status();
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.text();
    EXPECT_EQ(status.field(), "routes.late");
    for (const std::string& word :
         {std::string("plugin org.example.fixture"), call + "() has not returned within 1 s",
          std::string("plugins.control_seconds")})
      EXPECT_NE(status.message().find(word), std::string::npos) << status.text();
    wait_for_late_works();
    EXPECT_EQ(last_call(), call);
    start(o);
    EXPECT_EQ(report("late").state, RouteState::kRefused) << call;
    EXPECT_EQ(report("late").refused.code(), Code::kDeadlineExceeded);
    wait_for_late_works();
    engine_.reset();
  }
}

TEST(Retirer, that_cannot_go_on_is_stuck_and_says_so_until_it_can) {
  const auto retirer = [] {
    for (const ThreadReport& each : thread_reports()) {
      if (each.thread == "specd-retire") return each;
    }
    return ThreadReport();
  };
  const auto wait_for = [](auto is_so) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!is_so() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_TRUE(is_so());
  };
  Mutex control;
  {
    RouteBoard board(
        control, std::chrono::seconds(1),
        [](const std::string&, uint64_t, const std::string&, const Status& late) { return late; });
    EXPECT_EQ(retirer().busy_ns, 0u);
    {
      const MutexLock held(control);  // as by a change of routes that does not end
      board.share(std::make_unique<LiveRoute>()).reset();
      wait_for([&] { return retirer().busy_ns > 0; });
      EXPECT_EQ(retirer().limit_ns, 2'000'000'000u);
      wait_for([&] { return retirer().is_stuck(); });
      EXPECT_GT(retirer().busy_ns, 2'000'000'000u);
    }
    wait_for([&] { return retirer().busy_ns == 0; });
  }
  EXPECT_EQ(retirer().thread, "") << "it has ended";
}

}  // namespace
}  // namespace specd
