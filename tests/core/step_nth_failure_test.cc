// An engine whose step thread finds no memory for its first, second, third .. allocation, until a run
// passes untouched: drafts are lost or requests end, and nothing else. See nth_failure_test.cc.
//
// Only the host's own allocations fail: what a plugin does without memory is its own matter.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <semaphore>
#include <utility>
#include <vector>

#include "core/base/last_words.h"
#include "core/base/log.h"
#include "tests/core/engine_rig.h"

namespace specd {
namespace {

thread_local long t_left = 0;  // allocations of this thread until one fails; 0 = none will
std::atomic<bool> g_failed{false};

bool allocation_fails() {
  if (t_left == 0 || current_activity().plugin != nullptr || --t_left > 0) return false;
  g_failed = true;
  return true;
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

  // The requests of one run, the n-th allocation after whose submission fails on the step thread;
  // n = 0: none.
  std::vector<Heard> run_with(long n) {
    g_failed = false;
    const uint64_t counted_before = engine_->status().tokens;
    uint64_t n_heard = 0;
    std::vector<Heard> heard(kRequests);
    std::atomic<size_t> n_open{kRequests};
    // Holds the step thread until both others are queued, so that nobody else allocates.
    std::binary_semaphore go(0);
    const auto gate = engine_->submit(request(prompts()[2], "off", 1), [&](const Event& event) {
      n_heard += event.tokens.size();
      if (!event.done) return;
      go.acquire();
      t_left = n;
    });
    EXPECT_TRUE(gate.ok());
    for (size_t i = 0; i < kRequests; ++i) {
      const auto id = engine_->submit(
          request(prompts()[i], i == 0 ? "taps" : "off", 6), [&, i](const Event& event) {
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
    }
    go.release();
    EXPECT_TRUE(engine_->wait_idle(60'000)) << "a request did not end, " << n;
    for (const Heard& each : heard) n_heard += each.tokens.size();
    EXPECT_EQ(engine_->status().tokens - counted_before, n_heard) << n;
    return heard;
  }
};

TEST_F(StepNthFailure, costs_drafts_or_ends_requests_and_the_engine_goes_on) {
  EngineOptions o = options();
  o.threads = 1;
  o.plugin_directories.push_back(SPECD_TEST_BAD_PLUGINS);
  o.routes = {route("taps", plugin("specd.test.drafter_taps", {{"file", folder_ + "/taps"}}), 2)};
  start(o);
  ASSERT_EQ(report("taps").state, RouteState::kLive) << report("taps").refused.to_string();
  set_log_level(LogLevel::kOff);
  const std::vector<Heard> untouched = run_with(0);
  int n_whole = 0, n_ended = 0;
  long n = 1;
  for (;; ++n) {
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
    EXPECT_EQ(report("taps").in_use, 0) << n;
    EXPECT_FALSE(report("taps").suspended) << "the drafter has not failed, " << n;
    if (!g_failed || HasFailure()) break;
  }
  set_log_level(LogLevel::kInfo);
  EXPECT_GT(n, 200);
  EXPECT_GT(n_whole, 10) << "shortages around the calls of a plugin cost drafts only";
  EXPECT_GT(n_ended, 10);
  EXPECT_GT(report("taps").counts.lost, 0u);
}

}  // namespace
}  // namespace specd
