// What no input reaches: errors, ends and waits at every place of core/base/failpoint.h, in a build that has them.
#include "core/base/failpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "core/engine/routes/journal.h"
#include "tests/core/engine/beside_rig.h"

namespace specd {
namespace {

class EngineFailpoints : public BesideRig {
 protected:
  using Kept = std::map<std::string, int32_t>;  // draft nodes by route

  ~EngineFailpoints() override { set(""); }
  static void set(const std::string& text) {
    const Status status = set_failpoints(text);
    ASSERT_TRUE(status.ok()) << status.text();
  }
  static std::vector<RouteOptions> configured(int32_t nodes_of_r = 4) {
    std::vector<RouteOptions> all{lookup("r", nodes_of_r), lookup("s", 3)};
    for (RouteOptions& each : all) each.model = options().model.name;
    return all;
  }
  std::string state() const { return folder_ + "/state"; }
  void start_here(const std::vector<RouteOptions>& routes) {
    engine_.reset();
    std::filesystem::create_directory(state());
    std::filesystem::permissions(state(), std::filesystem::perms::owner_all);
    EngineOptions o = options();
    o.state_directory = state();
    start_with(routes, o);
  }
  static Kept nodes_of(const std::vector<RouteOptions>& routes) {
    Kept found;
    for (const RouteOptions& each : routes) found[each.name] = each.draft_nodes_max;
    return found;
  }
  Kept live() const {
    Kept found;
    for (const RouteReport& each : engine_->routes()) {
      if (each.state == RouteState::kLive && each.name() != "off")
        found[each.name()] = each.options.draft_nodes_max;
    }
    return found;
  }
  // What a start would take now. The engine has the folder, so a copy is read.
  Kept kept(const std::vector<RouteOptions>& routes) const {
    const std::string copy = folder_ + "/copy";
    std::filesystem::remove_all(copy);
    std::filesystem::copy(state(), copy);
    std::filesystem::permissions(copy, std::filesystem::perms::owner_all);
    const auto opened = RouteJournal::open(copy, routes);
    EXPECT_TRUE(opened.ok()) << opened.status().text();
    return opened.ok() ? nodes_of(opened.value()->routes()) : Kept();
  }
  // "r: live 4, shadow 2; s: live 3": every version with its draft nodes.
  std::string all_versions() const {
    std::string text;
    for (const RouteReport& each : engine_->routes()) {
      if (each.name() == "off") continue;
      text += each.name() + " " + route_state_name(each.state) + " " +
              std::to_string(each.options.draft_nodes_max) + " at " +
              std::to_string(each.share_percent) + " %; ";
    }
    return text;
  }
  // A version that is gone may take a while to be destroyed.
  bool comes_to(const std::string& wanted) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (all_versions() != wanted && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return all_versions() == wanted;
  }
  bool told(EventKind kind, uint64_t after, const std::string& words) const {
    for (const EngineEvent& each : engine_->events(after, 1000)) {
      if (each.kind == kind && each.text.find(words) != std::string::npos) return true;
    }
    return false;
  }
  uint64_t last_event() const {
    const auto all = engine_->events(0, 1024);
    return all.empty() ? 0 : all.back().number;
  }

  // A change of a route, or of all, and what is so after it.
  struct Change {
    std::function<Status()> make;
    std::string versions;
    Kept kept;
    int32_t nodes_in_file = 4;  // of r in the configuration that a start reads
  };
  // From the configured routes through every kind of change, and back.
  std::vector<Change> changes() {
    const auto status = [](const Result<RouteChange>& done) { return as_status(done); };
    const std::string s = "s live 3 at 0 %; ";
    const Kept four{{"r", 4}, {"s", 3}}, three{{"r", 3}, {"s", 3}};
    const Kept more{{"more", 5}, {"r", 3}, {"s", 3}}, seven{{"r", 7}, {"s", 3}};
    return {
        {[=, this] { return status(engine_->stage_route(lookup("r", 2))); },
         "r live 4 at 0 %; r staged 2 at 0 %; " + s, four},
        {[=, this] { return status(engine_->set_traffic("r", {.share_percent = 30})); },
         "r live 4 at 0 %; r canary 2 at 30 %; " + s, four},
        {[=, this] { return status(engine_->promote_route("r")); },
         "r live 2 at 0 %; r draining 4 at 0 %; " + s, four},
        {[=, this] { return status(engine_->roll_back_route("r")); }, "r live 4 at 0 %; " + s,
         four},
        {[=, this] { return status(engine_->stage_route(lookup("r", 3, 0))); },
         "r live 4 at 0 %; r staged 3 at 0 %; " + s, four},
        {[=, this] { return status(engine_->set_traffic("r", {.is_shadow = true})); },
         "r live 4 at 0 %; r shadow 3 at 0 %; " + s, four},
        {[=, this] { return status(engine_->set_traffic("r", {})); },
         "r live 4 at 0 %; r staged 3 at 0 %; " + s, four},
        {[=, this] {
           return status(engine_->promote_route("r", {.running = RunningRequests::kAttach}));
         },
         "r live 3 at 0 %; " + s, three},
        {[=, this] { return status(engine_->apply_route(lookup("more", 5))); },
         "more live 5 at 0 %; r live 3 at 0 %; " + s, more},
        {[=, this] { return status(engine_->stage_route(lookup("r", 6))); },
         "more live 5 at 0 %; r live 3 at 0 %; r staged 6 at 0 %; " + s, more},
        {[=, this] { return status(engine_->abort_route("r")); },
         "more live 5 at 0 %; r live 3 at 0 %; " + s, more},
        {[=, this] { return status(engine_->delete_route("more")); }, "r live 3 at 0 %; " + s,
         three},
        {[=, this] { return as_status(engine_->configure_routes(configured(7), {})); },
         "r live 7 at 0 %; " + s, seven, 7},
        {[=, this] { return as_status(engine_->configure_routes(configured(), {})); },
         "r live 4 at 0 %; " + s, four},
    };
  }
  // The plugins that are loaded here are mapped in the children, too.
  void load_once() {
    start_here(configured());
    engine_.reset();
    std::filesystem::remove_all(state());
  }
};

// Each change is tried until it passes with the failpoint set for a later time.
TEST_F(EngineFailpoints, a_change_that_fails_anywhere_leaves_all_as_it_was_and_says_why) {
  struct Case {
    std::string first, then;  // "NAME=fail", which gets its number, and what else is set
    const char* why;
    bool must_fail;  // else it is done, and told that it is not recorded
    int n_failed = 0, n_unrecorded = 0;
  };
  Case cases[] = {
      {"journal.write=fail", "", "No space left on device", true},
      {"journal.sync=fail", "", "Input/output error", true},
      {"journal.sync=fail", ";journal.truncate=fail", "Input/output error", true},
      {"route.flip=fail", "", "no step ended within", true},
      {"journal.replace=fail", "", "No space left on device", false},
      {"journal.rename=fail", "", "Input/output error", false},
      {"journal.sync_folder=fail", "", "Input/output error", false},
  };
  const Request of_r = request(prompts()[3], "r", 24);
  for (Case& each : cases) {
    engine_.reset();
    std::filesystem::remove_all(state());
    start_here(configured());
    const Outcome plain = run(request(prompts()[3], "off", 24));
    std::string before = "r live 4 at 0 %; s live 3 at 0 %; ";
    Kept kept_before{{"r", 4}, {"s", 3}};
    int32_t in_file = 4;
    size_t number = 0;
    for (const Change& change : changes()) {
      const std::string where = each.first + each.then + ", change " + std::to_string(++number);
      bool is_unrecorded = false;
      for (int n = 1;; ++n) {
        ASSERT_LT(n, 20) << where;
        const uint64_t seen = last_event();
        set(each.first + "@" + std::to_string(n) + each.then);
        const std::string name = each.first.substr(0, each.first.find('='));
        const Status done = change.make();
        uint64_t reached = 0;
        for (int i = 0; i <= static_cast<int>(Failpoint::kSocketAccept); ++i) {
          if (name == failpoint_name(static_cast<Failpoint>(i)))
            reached = n_reached(static_cast<Failpoint>(i));
        }
        const bool fired = reached >= static_cast<uint64_t>(n);
        set("");
        if (!fired) {
          ASSERT_TRUE(done.ok()) << where << ": " << done.text();
          break;
        }
        if (done.ok()) {
          is_unrecorded = true;
          ++each.n_unrecorded;
          ASSERT_TRUE(told(EventKind::kNotRecorded, seen, each.why)) << where;
          break;
        }
        ++each.n_failed;
        ASSERT_NE(done.text().find(each.why), std::string::npos) << where << ": " << done.text();
        // A shadow ends before the change that ends it, and stays so.
        if (const size_t shadow = before.find("shadow"); shadow != std::string::npos)
          before.replace(shadow, std::string("shadow").size(), "staged");
        ASSERT_TRUE(comes_to(before)) << where << ": " << all_versions() << " was " << before;
        // What could not be cut off goes with the next line.
        if (each.then.empty()) ASSERT_EQ(kept(configured(in_file)), kept_before) << where;
      }
      ASSERT_TRUE(comes_to(change.versions)) << where << ": " << all_versions();
      in_file = change.nodes_in_file;
      // What could not be recorded may come back, as the event says.
      if (!is_unrecorded) ASSERT_EQ(kept(configured(in_file)), change.kept) << where;
      before = change.versions;
      kept_before = change.kept;
    }
    EXPECT_EQ(run(of_r).tokens, plain.tokens);
    EXPECT_EQ(each.n_failed > 0, each.must_fail) << each.first;
    EXPECT_GT(each.n_failed + each.n_unrecorded, 0) << each.first;
    audit();
  }
}

TEST_F(EngineFailpoints, a_change_that_was_not_made_and_cannot_be_taken_back_is_told) {
  start_here(configured());
  set("route.flip=fail;journal.write=fail@2");
  EXPECT_NE(refusal(engine_->apply_route(lookup("r", 2))).find("no step ended within"),
            std::string::npos);
  set("");
  EXPECT_EQ(live(), (Kept{{"r", 4}, {"s", 3}}));
  EXPECT_TRUE(has_event(EventKind::kNotRecorded, "No space left on device"));
}

// A change ends the process at each time that it reaches each place.
TEST_F(EngineFailpoints,
       a_process_that_ends_within_a_change_starts_with_the_routes_before_or_after_it) {
  load_once();
  // Whether the change that was under way is made by the next start.
  const std::pair<Failpoint, bool> places[] = {
      {Failpoint::kJournalWrite, false},    {Failpoint::kJournalSync, true},
      {Failpoint::kRouteFlip, true},        {Failpoint::kRouteFlipped, true},
      {Failpoint::kJournalReplace, true},   {Failpoint::kJournalRename, true},
      {Failpoint::kJournalSyncFolder, true}};
  void* const shared = mmap(nullptr, sizeof(std::atomic<size_t>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& n_begun = *new (shared) std::atomic<size_t>(0);
  // A version is staged, promoted, another route comes and goes, and the configuration is edited.
  const std::vector<Change> all = changes();
  const std::vector<Change> recorded{all[4], all[7], all[8], all[11], all[12]};
  size_t n_ended = 0;
  for (const auto& [place, is_made] : places) {
    const std::string name = failpoint_name(place);
    for (int n = 1;; ++n) {
      const std::string where = name + "=crash@" + std::to_string(n);
      n_begun = 0;
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        start_here(configured());
        set(where);
        for (const Change& change : recorded) {
          ++n_begun;
          if (!change.make().ok()) _exit(1);
        }
        _exit(0);
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      if (WIFEXITED(status)) {
        ASSERT_EQ(WEXITSTATUS(status), 0) << where << ", change " << n_begun;
        EXPECT_GT(n, 1) << name << " was never reached";
        std::filesystem::remove_all(state());
        break;
      }
      ASSERT_EQ(WTERMSIG(status), SIGKILL) << where;
      ++n_ended;
      const Change& last = recorded[n_begun - 1];
      // A configuration that was read again is the one that the next start reads.
      const bool is_new = is_made || last.nodes_in_file == 7;
      const Kept wanted = is_new         ? last.kept
                          : n_begun == 1 ? Kept{{"r", 4}, {"s", 3}}
                                         : recorded[n_begun - 2].kept;
      start_here(configured(last.nodes_in_file));
      EXPECT_EQ(live(), wanted) << where << ", change " << n_begun;
      EXPECT_EQ(engine_->status().state, EngineState::kReady);
      engine_.reset();
      std::filesystem::remove_all(state());
    }
  }
  EXPECT_EQ(n_ended, 4 * 4u + 1 + 3)
      << "four are recorded and flipped, one is flipped and rewrites";
  munmap(shared, sizeof(std::atomic<size_t>));
}

TEST_F(EngineFailpoints, a_bundle_that_is_replaced_while_it_is_copied_is_not_loaded) {
  start_here(configured());
  // Bytes that no test has loaded before.
  const std::string bytes = read_bytes(fixture("good")) + "replaced";
  const std::string library = tree_.add("a", bytes) + "/plugin.so";
  const RouteOptions wanted = with_log("x", folder_ + "/log");
  const std::string before = all_versions();
  struct Replacement {
    const char* what;
    std::function<void()> make;
    bool is_loaded;
  };
  const Replacement replacements[] = {
      {"other bytes in the same file",
       [&] {
         std::fstream file(library, std::ios::binary | std::ios::in | std::ios::out);
         file.seekp(static_cast<std::streamoff>(bytes.size()) - 1);
         file << "!";
       },
       false},
      {"a file that is cut", [&] { std::filesystem::resize_file(library, 100); }, false},
      // What was opened is what is read.
      {"another file", [&] { write_bytes(library, "another", 0755); }, true}};
  for (const Replacement& each : replacements) {
    write_bytes(library, bytes, 0755);
    set("plugin.copy=block");
    Result<RouteChange> done = Status(Code::kInternal, "not yet");
    std::thread applies([&] { done = engine_->apply_route(wanted); });
    wait_for([] { return n_blocked(Failpoint::kPluginCopy) == 1; });
    each.make();
    set("");
    applies.join();
    EXPECT_EQ(done.ok(), each.is_loaded) << each.what << ": " << done.status().text();
    if (each.is_loaded) continue;
    EXPECT_NE(done.status().text().find("plugin.so"), std::string::npos) << done.status().text();
    EXPECT_TRUE(comes_to(before)) << each.what;
  }
  EXPECT_GT(live()["x"], 0);
}

TEST_F(EngineFailpoints, a_plugin_that_cannot_be_copied_is_refused_and_loaded_when_it_can) {
  start_here(configured());
  const std::string before = all_versions();
  for (const auto& [place, why] : {std::pair("plugin.copy=fail", "No space left on device"),
                                   std::pair("plugin.rename=fail", "Input/output error")}) {
    (void)tree_.add("a", read_bytes(fixture("good")) + place);
    const RouteOptions wanted = with_log("x", folder_ + "/log");
    set(place);
    const std::string refused = refusal(engine_->apply_route(wanted));
    EXPECT_NE(refused.find(why), std::string::npos) << refused;
    set("");
    EXPECT_TRUE(comes_to(before));
    for (const auto& file : std::filesystem::directory_iterator(folder_ + "/cache"))
      EXPECT_NE(file.path().filename().string().front(), '.') << "a part is left";
    good(engine_->apply_route(wanted));
    good(engine_->delete_route("x"));
  }
}

TEST_F(EngineFailpoints, a_process_that_cannot_be_started_refuses_the_route_and_leaves_nothing) {
  start_here(configured());
  const std::string before = all_versions();
  const size_t descriptors = entries_of("/proc/self/fd");
  int n_answers = 0;
  for (const auto& [at, why] :
       {std::pair(Failpoint::kProcessStart, "posix_spawn: Resource temporarily unavailable"),
        std::pair(Failpoint::kProcessWatch, "pidfd_open: Too many open files"),
        std::pair(Failpoint::kProcessRings, "memfd_create: Too many open files in system"),
        std::pair(Failpoint::kProcessAnswer, "it has sent what is no message")}) {
    const std::string place = failpoint_name(at);
    for (uint64_t n = 1;; ++n) {
      ASSERT_LT(n, 20u) << place;
      set(place + "=fail@" + std::to_string(n));
      const auto done = engine_->apply_route(in_process(lookup("x", 2)));
      const bool was_reached = n_reached(at) >= n;
      set("");
      if (!was_reached) {
        EXPECT_TRUE(done.ok()) << done.status().text();
        break;
      }
      if (done.ok()) {
        // An answer that nobody needs, such as that of a process which has only described the drafter.
        good(engine_->delete_route("x"));
      } else {
        n_answers += at == Failpoint::kProcessAnswer ? 1 : 0;
        EXPECT_NE(done.status().text().find(why), std::string::npos) << done.status().text();
      }
      EXPECT_TRUE(comes_to(before)) << place;
      EXPECT_EQ(entries_of("/proc/self/fd"), descriptors) << place;
    }
    EXPECT_EQ(live()["x"], 2) << place;
    EXPECT_EQ(run(request(prompts()[3], "x", 16)).tokens,
              run(request(prompts()[3], "off", 16)).tokens);
    good(engine_->delete_route("x"));
    EXPECT_TRUE(comes_to(before)) << place;
  }
  EXPECT_GE(n_answers, 3) << "create, activate, serve";
}

TEST_F(EngineFailpoints, a_process_that_cannot_be_started_again_is_tried_until_it_can) {
  RouteOptions wanted = route(
      "x", plugin("specd.test.drafter_fatal", {{"mode", "aborts"}, {"while", hang_file()}}), 4);
  start_with({in_process(wanted)});
  const Request of_x = request(prompts()[3], "x", 24);
  const Outcome plain = run(request(prompts()[3], "off", 24));
  // Once its answer fails, which counts as a death, and once the system has no room.
  set("process.answer=fail@1;process.rings=fail@1");
  hang();
  wait_for([&] {
    EXPECT_EQ(run(of_x).tokens, plain.tokens);
    return n_reached(Failpoint::kProcessAnswer) > 0;
  });
  go_on();
  wait_for([&] {
    EXPECT_EQ(run(of_x).tokens, plain.tokens);
    return has_event(EventKind::kProcessRestarted, "");
  });
  EXPECT_GE(n_reached(Failpoint::kProcessRings), 2u);
  EXPECT_TRUE(has_event(EventKind::kProcessEnded, "it has sent what is no message"));
  const uint64_t drafted = report("x").counts.drafted;
  wait_for([&] {
    EXPECT_EQ(run(of_x).tokens, plain.tokens);
    return report("x").counts.drafted > drafted;
  });
  EXPECT_EQ(report("x").state, RouteState::kLive);
}

TEST_F(EngineFailpoints, a_pair_that_takes_long_to_destroy_holds_up_changes_and_no_request) {
  start_here(configured());
  const Request of_r = request(prompts()[3], "r", 24);
  const Outcome plain = run(of_r);
  set("route.retire=block@1");
  good(engine_->apply_route(lookup("r", 2)));
  wait_for([] { return n_blocked(Failpoint::kRouteRetire) == 1; });
  std::atomic<bool> is_done{false};
  std::thread changes([&] {
    good(engine_->apply_route(lookup("r", 5)));
    is_done = true;
  });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(of_r).tokens, plain.tokens);
  EXPECT_EQ(all_versions(), "r live 2 at 0 %; s live 3 at 0 %; r draining 4 at 0 %; ");
  EXPECT_FALSE(is_done);
  set("");
  changes.join();
  EXPECT_TRUE(comes_to("r live 5 at 0 %; s live 3 at 0 %; ")) << all_versions();
}

TEST_F(EngineFailpoints, a_row_that_is_no_number_ends_its_request_and_changes_no_other) {
  start_with({lookup("r", 4)});
  const std::vector<Request> all = all_requests("r", 12);
  const std::vector<Outcome> plain = run_all(all_requests("off", 12));
  for (const int n : {1, 2, 4}) {
    set("step.logits=fail@" + std::to_string(n));
    const std::vector<Outcome> outcomes = run_all(all);
    set("");
    size_t n_failed = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (outcomes[i].finish == FinishReason::kError) {
        ++n_failed;
        EXPECT_NE(outcomes[i].error.text().find("are not finite"), std::string::npos)
            << outcomes[i].error.text();
        const auto& tokens = outcomes[i].tokens;
        ASSERT_LE(tokens.size(), plain[i].tokens.size());
        EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), plain[i].tokens.begin()));
      } else {
        EXPECT_EQ(outcomes[i].tokens, plain[i].tokens) << n << ", request " << i;
      }
    }
    EXPECT_EQ(n_failed, 1u) << n;
    audit();
  }
}

TEST_F(EngineFailpoints, a_step_that_does_not_begin_is_seen_by_its_age_and_goes_on) {
  start_with({lookup("r", 4)});
  const Request r = request(prompts()[3], "r", 24);
  const Outcome plain = run(r);
  set("step.begin=block@2");
  Pending pending = submit(r);
  wait_for([] { return n_blocked(Failpoint::kStepBegin) == 1; });
  wait_for([&] { return engine_->status().step_age_ns > 50'000'000; });
  set("");
  EXPECT_EQ(pending.wait().tokens, plain.tokens);
  wait_for([&] { return engine_->status().step_age_ns == 0; });
}

}  // namespace
}  // namespace specd
