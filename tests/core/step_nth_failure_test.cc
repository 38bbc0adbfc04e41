// An engine whose step thread finds no memory for its first, second, third .. allocation, until a run
// passes untouched: drafts are lost or requests end, and nothing else. The same for the threads that
// retire routes. See nth_failure_test.cc.
//
// Only what the host allocates outside of plugins' calls fails: what a plugin does without memory is
// its own matter, and the services that it calls are in services_nth_failure_test.cc.
#include <gtest/gtest.h>

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <new>
#include <semaphore>
#include <string>
#include <utility>
#include <vector>

#include "core/base/last_words.h"
#include "core/base/log.h"
#include "core/engine/routes/journal.h"
#include "tests/core/engine_rig.h"
#include "tests/core/family_models.h"
#include "tests/core/plugin/bundle_fixture.h"
#include "tests/destroys_json.h"

namespace specd {
namespace {

// Allocations until one fails; 0 = none will. Of this thread, of the retirement of a route, and of ranks
// that follow.
thread_local long t_left = 0;
std::atomic<long> g_retirement_left{0}, g_rank_left{0};
std::atomic<bool> g_retires{false};
std::atomic<bool> g_failed{false};

bool is_called(const char* wanted) {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return std::strcmp(name, wanted) == 0;
}

// Whether this thread retires a route: the retirer, or, from the retirer's first allocation on, one
// that runs the plugins' calls for it.
bool retires() {
  if (is_called("specd-retire")) return g_retires = true;
  return g_retires && is_called("specd-control");
}

bool allocation_fails() {
  if (current_activity().plugin != nullptr) return false;
  if (t_left == 1 && destroys_json()) t_left = 2;
  bool fails = t_left > 0 && --t_left == 0;
  if (g_retirement_left > 0 && retires()) {
    if (g_retirement_left == 1 && destroys_json()) g_retirement_left = 2;
    fails = --g_retirement_left == 0;
  }
  if (g_rank_left > 0 && is_called("specd-rank")) fails = --g_rank_left == 0;
  if (fails) g_failed = true;
  return fails;
}

}  // namespace
}  // namespace specd

#include "tests/new_operators.h"

namespace specd {
namespace {

struct Heard {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kNone;
  Code code = Code::kOk;
};

class StepNthFailure : public EngineTest {
 protected:
  static constexpr size_t kRequests = 2;

  // Calls `queue` while the step thread is held, so that nobody else allocates and the first step of
  // what it submits meets shortages too: the n-th allocation after it fails; n = 0: none. Returns the
  // tokens of the request that held the thread.
  template <typename Fn>
  uint64_t while_held(long n, Fn&& queue, const Request& gate_request) {
    g_failed = false;
    uint64_t n_heard = 0;
    std::binary_semaphore held(0), go(0);
    const auto gate = engine_->submit(gate_request, [&](const Event& event) {
      n_heard += event.tokens.size();
      if (!event.done) return;
      held.release();
      go.acquire();
      t_left = n;
    });
    EXPECT_TRUE(gate.ok());
    held.acquire();
    queue();
    go.release();
    EXPECT_TRUE(engine_->wait_idle(60'000)) << "a request did not end, " << n;
    return n_heard;
  }
  template <typename Fn>
  uint64_t while_held(long n, Fn&& queue) {
    return while_held(n, std::forward<Fn>(queue), request(prompts()[2], "off", 1));
  }

  // The requests of one run, the n-th allocation after whose submission fails on the step thread;
  // n = 0: none. The first request drafts by `route_name`.
  std::vector<Heard> run_with(long n, const std::string& route_name = "drafting") {
    (void)engine_->watch_drafts();  // so that steps record them, which may cost nobody else
    const uint64_t counted_before = engine_->status().tokens;
    std::vector<Heard> heard(kRequests);
    std::atomic<size_t> n_open{kRequests};
    const auto queue = [&](size_t i) {
      const auto id = engine_->submit(
          request(prompts()[i], i == 0 ? route_name : "off", 6), [&, i](const Event& event) {
            const long left = std::exchange(t_left, 0);
            heard[i].tokens.insert(heard[i].tokens.end(), event.tokens.begin(), event.tokens.end());
            if (event.done) {
              heard[i].finish = event.finish;
              heard[i].code = event.error.code();
              if (--n_open == 0) return;
            }
            t_left = left;
          });
      EXPECT_TRUE(id.ok());
    };
    uint64_t n_heard = while_held(n, [&] {
      for (size_t i = 0; i < kRequests; ++i) queue(i);
    });
    for (const Heard& each : heard) n_heard += each.tokens.size();
    EXPECT_EQ(engine_->status().tokens - counted_before, n_heard) << n;
    return heard;
  }

  // Runs on `model` with the route `drafting`, failing every stride-th allocation in turn, until none is
  // left to fail; there are at least n_min. keeps_state: the drafter keeps so much for a sequence that a
  // shortage loses it.
  void expect_costs_drafts_or_ends_requests(const std::string& model, RouteOptions drafting,
                                            long n_min, bool keeps_state, long stride = 1) {
    EngineOptions o = options(model);
    o.threads = 1;
    o.plugin_directories.push_back(SPECD_TEST_BAD_PLUGINS);
    o.draft_models = {{.name = "self", .path = o.model.path, .kv_dtype = KvDType::kF32}};
    o.routes = {std::move(drafting)};
    start(o);
    const RouteReport begun = report("drafting");
    ASSERT_EQ(begun.state, RouteState::kLive) << begun.refused.to_string();
    set_log_level(LogLevel::kOff);
    // By `off`, so that the route's first call also meets shortages.
    const std::vector<Heard> untouched = run_with(0, "off");
    int n_whole = 0, n_ended = 0;
    long n = 1;
    for (;; n += stride) {
      const std::vector<Heard> heard = run_with(n);
      audit();
      for (size_t i = 0; i < heard.size(); ++i) {
        if (heard[i].finish == FinishReason::kError) {
          EXPECT_EQ(heard[i].code, Code::kExhausted) << n;
          ++n_ended;
        } else {
          EXPECT_EQ(heard[i].finish, FinishReason::kLength) << n;
          EXPECT_EQ(heard[i].tokens, untouched[i].tokens) << n;
          ++n_whole;
        }
      }
      EXPECT_EQ(report("drafting").in_use, 0) << n;
      EXPECT_FALSE(report("drafting").suspended) << "the drafter has not failed, " << n;
      if (!g_failed || HasFailure()) break;
    }
    set_log_level(LogLevel::kInfo);
    EXPECT_GT(n, n_min);
    EXPECT_GT(n_whole, 10) << "shortages around the calls of a plugin cost drafts only";
    EXPECT_GT(n_ended, 10);
    const RouteCounts counts = report("drafting").counts;
    EXPECT_GT(counts.drafted, 0u);
    if (keeps_state) {
      EXPECT_GT(counts.lost, 0u);
    }
  }
};

// With ranks a shortage may end the engine, because the KV of all would differ: with the reason, once for
// each request, and with nobody left waiting.
TEST_F(StepNthFailure, of_a_rank_ends_requests_with_the_reason_and_leaves_nobody_waiting) {
  EngineOptions o = options();
  o.model.path = family_folder(folder_, "llama31");
  o.threads = 1;
  o.tensor_parallel_size = 2;
  const auto of_length = [](size_t n, int32_t max_tokens) {
    Request r = request("", "off", max_tokens);
    r.prompt_tokens.emplace(n, 65);
    r.ignore_eos = true;
    return r;
  };
  set_log_level(LogLevel::kOff);
  for (const bool is_lead : {true, false}) {
    int n_whole = 0, n_ended = 0;
    start(o);
    for (long n = 1;; n += is_lead ? 2 : 1) {
      std::vector<Heard> heard(kRequests);
      std::vector<int> n_last(kRequests, 0);
      const auto queue = [&] {
        for (size_t i = 0; i < kRequests; ++i) {
          const auto id = engine_->submit(of_length(20 + i, 6), [&, i](const Event& event) {
            const long left = std::exchange(t_left, 0);
            if (event.done) {
              heard[i].finish = event.finish;
              heard[i].code = event.error.code();
              ++n_last[i];
            }
            t_left = left;
          });
          ASSERT_TRUE(id.ok());
        }
        if (!is_lead) g_rank_left = n;
      };
      while_held(is_lead ? n : 0, queue, of_length(10, 1));
      g_rank_left = 0;
      for (size_t i = 0; i < kRequests; ++i) {
        EXPECT_EQ(n_last[i], 1) << n;
        if (heard[i].finish == FinishReason::kError) {
          EXPECT_TRUE(heard[i].code == Code::kExhausted || heard[i].code == Code::kUnavailable)
              << n << ": " << code_name(heard[i].code);
          ++n_ended;
        } else {
          EXPECT_EQ(heard[i].finish, FinishReason::kLength) << n;
          ++n_whole;
        }
      }
      if (!g_failed || HasFailure()) break;
      if (engine_->status().state == EngineState::kFailed) start(o);
    }
    EXPECT_GT(n_whole, 1) << is_lead;
    EXPECT_GT(n_ended, 4) << is_lead;
  }
  set_log_level(LogLevel::kInfo);
}

TEST_F(StepNthFailure, costs_drafts_or_ends_requests_and_the_engine_goes_on) {
  PluginUse taps = plugin("specd.test.drafter_taps", {{"file", folder_ + "/taps"}});
  expect_costs_drafts_or_ends_requests("pico-draft", route("drafting", std::move(taps), 2), 200,
                                       true);
}

TEST_F(StepNthFailure, of_drafts_that_are_handed_on_with_their_distribution_costs_the_same) {
  const Json tree = {{"branches", 2}, {"nodes", 4}};
  RouteOptions drafting =
      route("drafting",
            plugin("specd.drafter.draft_target",
                   {{"model", "self"}, {"draft_tokens", 2}, {"draw", "own"}, {"tree", tree}}),
            4, plugin("specd.verifier.tree_rejection"));
  drafting.guarantee = Guarantee::kLaw;
  expect_costs_drafts_or_ends_requests("pico-draft", std::move(drafting), 100, false);
}

TEST_F(StepNthFailure, of_a_trained_head_costs_the_same) {
  const long stride = std::getenv("SPECD_NIGHTLY") != nullptr ? 1 : 3;
  for (const std::string head : {"eagle3", "eagle2", "medusa", "redrafter"}) {
    SCOPED_TRACE(head);
    Json config = {{"weights", std::string(SPECD_TEST_ZOO) + "/pico-" + head}};
    if (head == "eagle3") config["mode"] = "chain";
    expect_costs_drafts_or_ends_requests(
        "pico-target",
        route("drafting",
              plugin("specd.drafter." + (head == "eagle2" ? "eagle" : head), std::move(config)),
              20),
        100, true, stride);
  }
}

// Two texts and the better of three, with log-probabilities: whole, or the request ends with the
// reason, once.
TEST_F(StepNthFailure, of_several_texts_with_log_probabilities_ends_a_request_or_leaves_it_whole) {
  EngineOptions o = options();
  o.threads = 1;
  start(o);
  set_log_level(LogLevel::kOff);
  for (const int32_t best_of : {2, 3}) {
    struct Reply {
      std::vector<int32_t> tokens;
      Logprobs logprobs, prompt;
      FinishReason finish = FinishReason::kNone;
      Code code = Code::kOk;
      int n_last = 0;
    };
    const auto run_with = [&](long n) {
      Reply reply;
      Request r = request(prompts()[0], "off", 5, 0.8f, 3);
      r.n = 2;
      r.best_of = best_of;
      r.logprobs = 2;
      r.prompt_logprobs = 1;
      const Sink sink = [&](const Event& event) {
        const long left = std::exchange(t_left, 0);
        reply.tokens.insert(reply.tokens.end(), event.tokens.begin(), event.tokens.end());
        reply.logprobs.append(event.logprobs);
        reply.prompt.append(event.prompt_logprobs);
        if (event.done) {
          ++reply.n_last;
          reply.finish = event.finish;
          reply.code = event.error.code();
        } else {
          t_left = left;
        }
      };
      while_held(n, [&] { EXPECT_TRUE(engine_->submit(r, sink).ok()); });
      return reply;
    };
    const Reply untouched = run_with(0);
    ASSERT_EQ(untouched.tokens.size(), 10u);
    ASSERT_EQ(untouched.logprobs.top.size(), 20u);
    int n_ended = 0;
    long n = 1;
    for (;; ++n) {
      const Reply reply = run_with(n);
      audit();
      EXPECT_EQ(reply.n_last, 1) << n;
      if (reply.finish == FinishReason::kError) {
        EXPECT_EQ(reply.code, Code::kExhausted) << n;
        ++n_ended;
      } else {
        EXPECT_EQ(reply.finish, FinishReason::kLength) << n;
        EXPECT_EQ(reply.tokens, untouched.tokens) << n;
        EXPECT_EQ(reply.logprobs.token, untouched.logprobs.token) << n;
        EXPECT_EQ(reply.logprobs.top_token, untouched.logprobs.top_token) << n;
        EXPECT_EQ(reply.prompt.token, untouched.prompt.token) << n;
      }
      if (!g_failed || HasFailure()) break;
    }
    EXPECT_GT(n, 200) << best_of;
    EXPECT_GT(n_ended, 50) << best_of;
  }
  set_log_level(LogLevel::kInfo);
}

TEST_F(StepNthFailure, of_retirement_calls_and_destroys_every_pair_once_all_the_same) {
  BundleTree tree;
  tree.add("a", read_bytes(fixture("good")));
  const std::string life = folder_ + "/life";
  const auto wanted = [&](long n) {
    return route("r", plugin("org.example.fixture", {{"log", life}, {"depth", 1 + n % 2}}), 4);
  };
  const auto n_times = [&](const std::string& call) {
    std::ifstream in(life);
    long n = 0;
    for (std::string line; std::getline(in, line);) n += line == call ? 1 : 0;
    return n;
  };
  EngineOptions o = options();
  o.plugin_directories.push_back(tree.plugins());
  o.routes = {wanted(0)};
  start(o);
  ASSERT_EQ(report("r").state, RouteState::kLive) << report("r").refused.to_string();
  const size_t routes = engine_->routes().size();
  set_log_level(LogLevel::kOff);
  long n = 1;
  for (;; ++n) {
    g_failed = g_retires = false;
    g_retirement_left = n;
    const auto changed = engine_->apply_route(wanted(n));
    EXPECT_TRUE(changed.ok()) << changed.status().to_string();
    for (int i = 0; i < 6000 && engine_->routes().size() > routes; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    g_retirement_left = 0;
    EXPECT_EQ(engine_->routes().size(), routes) << "one still drains, " << n;
    EXPECT_EQ(n_times("deactivate"), n);
    EXPECT_EQ(n_times("destroy"), n);
    if (!g_failed || HasFailure()) break;
  }
  engine_.reset();
  set_log_level(LogLevel::kInfo);
  EXPECT_GT(n, 8);
  EXPECT_EQ(n_times("create"), n + 1);
  EXPECT_EQ(n_times("destroy"), n + 1);
}

// Of the thread that changes routes. The next start, of which a copy of the journal tells, takes what is live.
TEST_F(StepNthFailure, of_a_change_of_routes_leaves_the_same_here_and_on_disk) {
  const auto lookup = [](int32_t k) {
    RouteOptions wanted =
        route("r", plugin("specd.drafter.prompt_lookup", {{"num_speculative_tokens", k}}), k);
    wanted.model = "pico-draft";
    wanted.probation_seconds = 0;
    return wanted;
  };
  const std::string copy = folder_ + "/copy", state = folder_ + "/state";
  for (const std::string& each : {copy, state}) {
    std::filesystem::create_directory(each);
    std::filesystem::permissions(each, std::filesystem::perms::owner_all);
  }
  EngineOptions o = options();
  o.state_directory = state;
  o.routes = {lookup(1)};
  start(o);
  set_log_level(LogLevel::kOff);
  std::vector<RouteOptions> configured = o.routes;
  const auto on_disk = [&](const std::vector<RouteOptions>& by) {
    std::filesystem::copy_file(state + "/routes.journal", copy + "/routes.journal",
                               std::filesystem::copy_options::overwrite_existing);
    const auto journal = RouteJournal::open(copy, by);
    EXPECT_TRUE(journal.ok()) << journal.status().to_string();
    return journal.value()->kept("r");
  };
  using Change = std::function<Status(int32_t k)>;
  const std::vector<std::pair<std::string, Change>> changes{
      {"apply", [&](int32_t k) { return engine_->apply_route(lookup(k)).status(); }},
      {"promote",
       [&](int32_t) {
         return engine_->promote_route("r", {.running = RunningRequests::kAttach}).status();
       }},
      {"configure", [&](int32_t k) { return engine_->configure_routes({lookup(k)}).status(); }}};
  const bool is_long = std::getenv("SPECD_NIGHTLY") != nullptr;
  for (const auto& [name, change] : changes) {
    long n = 1;
    int n_made = 0, n_refused = 0;
    for (;; n += is_long ? 1 : name == "promote" ? 3 : 17) {
      const int32_t before = engine_->route("r").value().draft_nodes_max, k = before % 8 + 1;
      if (name == "promote") {
        ASSERT_TRUE(engine_->stage_route(lookup(k)).ok());
      }
      g_failed = false;
      Status done(Code::kExhausted, "thrown");
      t_left = n;
      try {
        done = change(k);
      } catch (const std::bad_alloc&) {
      }
      t_left = 0;
      const RouteOptions live = engine_->route("r").value();
      EXPECT_TRUE(live == lookup(before) || live == lookup(k)) << name << ' ' << n;
      EXPECT_TRUE(!done.ok() || live == lookup(k)) << name << ' ' << n;
      // Whoever changes routes has edited the file.
      if (name == "configure" && live == lookup(k)) configured = {live};
      EXPECT_EQ(on_disk(configured), route_to_json(live)) << name << ' ' << n;
      ++(done.ok() ? n_made : n_refused);
      (void)engine_->abort_route("r");
      if (!g_failed || HasFailure()) break;
    }
    EXPECT_GT(n, 30) << name;
    EXPECT_GT(n_refused, 10) << name;
    EXPECT_GT(n_made, 0) << name;
  }
  set_log_level(LogLevel::kInfo);
}

}  // namespace
}  // namespace specd
