// Thirty-two streams and new requests that come whatever the load, while an operator stages, shadows, shares, promotes
// and takes back ten times a second: six routes, through which six strategies go round. No request fails, no text
// differs from that without changes, and at the end the books balance.
//
// SPECD_STORM_SECONDS: how long the storm is, 4 by default. When it is set, the growth of resident memory and the gaps
// between tokens are bounded too, beside runs without changes of 20 s at most.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/sanitizer.h"
#include "tests/host/daemon/daemon_rig.h"

namespace specd::host {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kStreams = 32;
constexpr milliseconds kBetweenChanges(100);
// A daemon under a sanitizer cannot keep up with more.
constexpr milliseconds kBetweenArrivals(SPECD_HAS_SANITIZER ? 2000 : 100);
// Until each strategy was staged, and each way to end a candidate was gone.
constexpr size_t kSwapsMin = 10;
constexpr double kP99Max = 2;  // times that of a quiet run
constexpr uint64_t kDriftMax = uint64_t{16} << 20;

struct Strategy {
  std::string keys;
  std::string no_shadow_because;  // words of the refusal
};

// Drafts are short, since steps of so many streams are long enough. Waits are long: on a slow machine a drafter that is
// late would be suspended, and its version taken back.
const Strategy kStrategies[] = {
    {"drafter: {plugin: specd.drafter.prompt_lookup}, draft_nodes_max: 3", ""},
    {"drafter: {plugin: specd.drafter.draft_target, config: {model: draft}}, draft_nodes_max: 2",
     "model/1"},
    {"drafter: {plugin: specd.drafter.lookahead, config: {window: 3, ngram: 3, guesses: 2}}, "
     "draft_nodes_max: 10",
     "probes"},
    {"drafter: {plugin: specd.drafter.suffix}, draft_nodes_max: 4", ""},
    {"drafter: {plugin: specd.drafter.prompt_lookup}, draft_nodes_max: 4, isolation: guarded, "
     "step_budget_us: 1000000, call_ms_max: 60000",
     ""},
    {"drafter: {plugin: specd.drafter.suffix}, draft_nodes_max: 3, isolation: process, "
     "step_budget_us: 1000000, call_ms_max: 60000",
     ""},
};
constexpr size_t kSwapRoutes = std::size(kStrategies);

std::string name_of(size_t route) { return "r" + std::to_string(route); }
std::string definition(size_t route, const std::string& keys) {
  return "{name: " + name_of(route) + ", " + keys + ", verifier: {plugin: specd.verifier.match}}";
}

std::string config() {
  std::string text = R"(
engine: {threads: 1, max_sequences: 48, queue_max: 1024}
draft_models: [{name: draft, path: ZOO/pico-draft}]
model: {name: pico, path: ZOO/pico-target}
plugins: {directories: [PLUGINS, BAD], cache_directory: cache}
default_route: off
routes:
)";
  for (size_t i = 0; i < kSwapRoutes; ++i)
    text += "  " + name_of(i) + ": {" + kStrategies[i].keys +
            ", verifier: {plugin: specd.verifier.match}}\n";
  return text;
}

const char* const kTexts[] = {
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n    if n < 2:\n",
    "import os\nimport sys\n\n\nclass Reader:\n    def __init__(self, path):\n        self.path",
    "for i in range(10):\n    print(i)\n\nfor j in range(20):\n    print(j)\n\nfor k in",
    "x = [1, 2, 3]\n",
};
// Greedy and seeded.
constexpr size_t kKinds = 2 * std::size(kTexts);
v1::GenerateRequest request_of_kind(size_t kind, int32_t n_tokens, const std::string& route) {
  v1::GenerateRequest request;
  request.set_text(kTexts[kind / 2]);
  request.set_route(route);
  request.set_max_tokens(n_tokens);
  request.mutable_sampling()->set_temperature(kind % 2 == 0 ? 0.0F : 0.9F);
  request.mutable_sampling()->set_seed(200 + kind);
  request.set_ignore_eos(true);
  return request;
}
constexpr int32_t kStreamTokens = 48, kArrivalTokens = 16;

// Descriptors, threads that specd has named, and processes of drafters.
struct Held {
  int64_t descriptors = 0, threads = 0, processes = 0;
  bool is_within(const Held& other) const {
    return descriptors <= other.descriptors && threads <= other.threads &&
           processes <= other.processes;
  }
};
Held held_by(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  const fs::directory_iterator descriptors(process + "/fd");
  Held held{.descriptors = std::distance(begin(descriptors), end(descriptors))};
  for (const auto& task : fs::directory_iterator(process + "/task")) {
    held.threads += read_file(task.path() / "comm").starts_with("specd-") ? 1 : 0;
    std::ifstream children(task.path() / "children");
    for (pid_t child = 0; children >> child;) ++held.processes;
  }
  return held;
}
std::ostream& operator<<(std::ostream& out, const Held& held) {
  return out << held.descriptors << " descriptors, " << held.threads << " threads, "
             << held.processes << " processes";
}

// Between two messages with tokens of a stream.
struct Gap {
  steady_clock::time_point end;
  double ms = 0;
};

double ms_between(steady_clock::time_point begin, steady_clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}
std::vector<double> ms_of(const std::vector<Gap>& gaps) {
  std::vector<double> all;
  for (const Gap& each : gaps) all.push_back(each.ms);
  return all;
}
double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

class SwapStorm : public testing::Test {
 protected:
  void SetUp() override {
    daemon_.write_config_text(config());
    ASSERT_TRUE(daemon_.start()) << daemon_.output();
    channel_ = daemon_.channel();
    client_.emplace(daemon_.client());
    const auto routes = client_->routes();
    ASSERT_TRUE(routes.ok());
    for (const v1::Route& route : routes.value().routes())
      memory_[route.name()] = route.memory_bytes();
    for (size_t kind = 0; kind < kKinds; ++kind)
      plain_.push_back(tokens_of(request_of_kind(kind, kStreamTokens, "off"), nullptr));
    held_ = held_by(daemon_.pid());  // what only the start had is closed
  }

  // Streams and arrivals while `meanwhile` runs.
  template <typename Fn>
  std::vector<Gap> under_load(size_t n_streams, Fn&& meanwhile) {
    std::atomic<bool> over{false};
    std::mutex mutex;
    std::vector<Gap> gaps;
    std::vector<std::thread> threads;
    for (size_t s = 0; s < n_streams; ++s) {
      threads.emplace_back([&, s] {
        std::vector<Gap> own;
        for (size_t n = s; !over; ++n)
          expect_plain(n % kKinds, kStreamTokens, s % kSwapRoutes, &own);
        const std::lock_guard lock(mutex);
        gaps.insert(gaps.end(), own.begin(), own.end());
      });
    }
    threads.emplace_back([&] {
      std::deque<std::future<void>> open;
      steady_clock::time_point next = steady_clock::now();
      for (size_t n = 0; !over; ++n, next += kBetweenArrivals) {
        std::this_thread::sleep_until(next);
        open.push_back(std::async(std::launch::async, [this, n] {
          expect_plain(n % kKinds, kArrivalTokens, n % kSwapRoutes, nullptr);
        }));
        while (!open.empty() && open.front().wait_for(milliseconds(0)) == std::future_status::ready)
          open.pop_front();
      }
    });
    meanwhile();
    over = true;
    for (std::thread& each : threads) each.join();
    return gaps;
  }

  // For so long, and at least so many swaps.
  void swap_for(milliseconds duration, size_t n_min = 1) {
    const auto end = steady_clock::now() + duration;
    next_change_ = steady_clock::now();
    for (size_t n = 0; n < n_min || steady_clock::now() < end; ++n) swap(n_swaps_++);
  }

  // Each route is made anew as it was at the start, and has one version.
  void come_to_rest() {
    for (size_t route = 0; route < kSwapRoutes; ++route) {
      v1::DeleteRouteRequest remove;
      remove.set_name(name_of(route));
      good("delete", client_->delete_route(remove));
      v1::ApplyRouteRequest request;
      request.set_definition(definition(route, kStrategies[route].keys));
      good("apply", client_->apply_route(request));
      strategy_of_[route] = route;
    }
    EXPECT_TRUE(eventually([&] {
      const auto status = client_->status();
      const auto routes = client_->routes();
      return status.ok() && status.value().running() == 0 && status.value().waiting() == 0 &&
             routes.ok() && routes.value().routes_size() == kSwapRoutes + 1;  // and off
    }));
  }

  void expect_balanced_books() {
    EXPECT_TRUE(eventually([&] { return held_by(daemon_.pid()).is_within(held_); }))
        << held_ << ", and then " << held_by(daemon_.pid());
    const auto status = client_->status();
    ASSERT_TRUE(status.ok());
    const v1::GetStatusResponse& s = status.value();
    EXPECT_EQ(s.admitted(), s.completed());
    EXPECT_EQ(s.admitted(), n_requests_);
    EXPECT_EQ(s.failed() + s.refused() + s.cancelled(), 0u);
    const auto models = client_->models();
    ASSERT_TRUE(models.ok());
    const v1::Model& target = models.value().models(0);
    EXPECT_EQ(target.kv_pages_free() + target.kv_pages_cached(), target.kv_pages_total());
    EXPECT_EQ(models.value().models(1).kv_pages_held(), 0) << "draft KV of requests that are over";
    const auto routes = client_->routes();
    ASSERT_TRUE(routes.ok());
    for (const v1::Route& route : routes.value().routes()) {
      EXPECT_EQ(route.drafted(), route.accepted() + route.rejected() + route.discarded())
          << route.name();
      EXPECT_EQ(route.in_use(), 0) << route.name();
      EXPECT_EQ(route.state(), v1::ROUTE_STATE_LIVE) << route.name();
      EXPECT_EQ(route.memory_bytes(), memory_.at(route.name())) << route.name();
    }
  }

  Daemon daemon_;
  std::shared_ptr<grpc::Channel> channel_;
  std::optional<Client> client_;
  std::atomic<uint64_t> n_requests_{0};
  size_t n_swaps_ = 0, n_changes_ = 0, n_refused_ = 0;
  int n_versions_max_ = 0, n_attached_ = 0, n_dropped_ = 0, n_kept_ = 0;

 private:
  std::vector<int32_t> tokens_of(const v1::GenerateRequest& request, std::vector<Gap>* gaps) {
    ++n_requests_;
    grpc::ClientContext context;
    const auto reader = v1::Inference::NewStub(channel_)->Generate(&context, request);
    v1::GenerateResponse message;
    std::vector<int32_t> tokens;
    bool is_finished = false;
    steady_clock::time_point last;
    while (reader->Read(&message)) {
      EXPECT_FALSE(is_finished) << "a message behind the last one";
      is_finished = message.has_finished();
      const auto& ids = message.chunk().token_ids();
      if (ids.empty()) continue;
      const auto now = steady_clock::now();
      if (gaps != nullptr && !tokens.empty()) gaps->push_back({now, ms_between(last, now)});
      last = now;
      tokens.insert(tokens.end(), ids.begin(), ids.end());
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << request.route() << ": " << status.error_message();
    EXPECT_TRUE(is_finished) << request.route();
    return tokens;
  }

  void expect_plain(size_t kind, int32_t n_tokens, size_t route, std::vector<Gap>* gaps) {
    std::vector<int32_t> wanted = plain_[kind];
    wanted.resize(static_cast<size_t>(n_tokens));
    EXPECT_EQ(tokens_of(request_of_kind(kind, n_tokens, name_of(route)), gaps), wanted)
        << "text " << kind << ", " << name_of(route);
  }

  // At the rate of changes; what each does to running requests is counted.
  template <typename Response>
  void good(const std::string& change, const Result<Response>& response) {
    EXPECT_TRUE(response.ok()) << change << ", swap " << n_swaps_ << ": "
                               << response.status().to_string();
    if (response.ok()) {
      EXPECT_FALSE(change == "stage" && response.value().generation() == 0) << change;
      n_attached_ += response.value().effect().attached();
      n_dropped_ += response.value().effect().dropped();
      n_kept_ += response.value().effect().kept();
    }
    pace();
  }
  void refused(const std::string& words, const Status& status) {
    EXPECT_NE(status.to_string().find(words), std::string::npos) << status.to_string();
    ++n_refused_;
    pace();
  }
  void pace() {
    ++n_changes_;
    next_change_ += kBetweenChanges;
    std::this_thread::sleep_until(next_change_);
  }

  // A route gets the next strategy: staged, as a shadow, with a share, live, and sometimes back.
  void swap(size_t n) {
    const size_t route = n % kSwapRoutes, next = (strategy_of_[route] + 1) % kSwapRoutes;
    const Strategy& strategy = kStrategies[next];
    v1::StageRouteRequest stage;
    if (n % 7 == 6) {
      stage.set_definition(definition(
          route, "drafter: {plugin: specd.test.drafter_bad, factory: bad, config: {mode: none}}"));
      refused("INVALID_ARGUMENT", client_->stage_route(stage).status());
    }
    stage.set_definition(definition(route, strategy.keys));
    good("stage", client_->stage_route(stage));
    v1::SetTrafficRequest traffic;
    traffic.set_name(name_of(route));
    traffic.set_shadow(true);
    const auto shadow = client_->set_traffic(traffic);
    if (strategy.no_shadow_because.empty()) {
      good("shadow", shadow);
    } else {
      refused(strategy.no_shadow_because, shadow.status());
    }
    traffic.set_shadow(false);
    traffic.set_share_percent(static_cast<int32_t>(10 + n % 90));
    good("share", client_->set_traffic(traffic));
    const auto running = static_cast<v1::RunningRequests>(
        v1::RUNNING_REQUESTS_KEEP + static_cast<int>(n / kSwapRoutes + n) % 3);
    if (n % 5 == 4) {
      v1::AbortRouteRequest abort;
      abort.set_name(name_of(route));
      abort.set_running(running);
      good("abort", client_->abort_route(abort));
    } else {
      v1::PromoteRouteRequest promote;
      promote.set_name(name_of(route));
      promote.set_running(running);
      good("promote", client_->promote_route(promote));
    }
    if (n % 5 < 3) {
      strategy_of_[route] = next;
    } else if (n % 5 == 3) {
      v1::RollbackRouteRequest back;
      back.set_name(name_of(route));
      back.set_running(running);
      good("rollback", client_->roll_back_route(back));
    }
    const auto routes = client_->routes();
    if (routes.ok()) n_versions_max_ = std::max(n_versions_max_, routes.value().routes_size());
  }

  std::vector<std::vector<int32_t>> plain_;
  // At the start.
  std::map<std::string, uint64_t> memory_;  // of each route's drafter
  Held held_;
  std::array<size_t, kSwapRoutes> strategy_of_{0, 1, 2, 3, 4, 5};
  steady_clock::time_point next_change_;
};

TEST_F(SwapStorm, strategies_change_under_load_and_no_request_notices) {
  const char* const wanted = std::getenv("SPECD_STORM_SECONDS");
  const milliseconds duration(wanted == nullptr ? 4000 : 1000 * std::atoi(wanted));
  const auto storm = [&](milliseconds time, size_t n_min) {
    const std::vector<double> gaps = ms_of(under_load(kStreams, [&] { swap_for(time, n_min); }));
    come_to_rest();
    return gaps;
  };
  if (wanted == nullptr) {
    storm(duration, kSwapsMin);
  } else {
    // What allocators and gRPC keep of a storm is there after the first.
    const milliseconds part = std::min(duration / 3, milliseconds(20'000));
    storm(part, kSwapsMin);
    const uint64_t before = resident_bytes(daemon_.pid());
    std::vector<double> ratios;
    for (int pair = 0; pair < 3; ++pair) {
      const std::vector<double> quiet =
          ms_of(under_load(kStreams, [&] { std::this_thread::sleep_for(part); }));
      const std::vector<double> with_swaps = storm(duration / 3, 1);
      ratios.push_back(quantile(with_swaps, 0.99) / quantile(quiet, 0.99));
      std::printf(
          "ms between tokens, median, p99, largest: %.1f, %.1f, %.1f; with swaps %.1f, %.1f, %.1f; "
          "p99 %.2f times\n",
          quantile(quiet, 0.5), quantile(quiet, 0.99), quantile(quiet, 1),
          quantile(with_swaps, 0.5), quantile(with_swaps, 0.99), quantile(with_swaps, 1),
          ratios.back());
    }
    const uint64_t after = resident_bytes(daemon_.pid());
    std::printf("%lu MiB resident, then %lu\n", before >> 20, after >> 20);
    if (!SPECD_HAS_SANITIZER) {
      EXPECT_LE(after, before + kDriftMax);
      EXPECT_LE(quantile(ratios, 0.5), kP99Max);
    }
  }
  expect_balanced_books();
  std::printf(
      "%lu requests, %zu swaps, %zu changes, of which %zu refused; requests that ran at one: %d "
      "attached, %d dropped, %d kept; at most %d versions\n",
      n_requests_.load(), n_swaps_, n_changes_, n_refused_, n_attached_, n_dropped_, n_kept_,
      n_versions_max_);
  EXPECT_GT(n_attached_, 0);
  EXPECT_GT(n_dropped_, 0);
  EXPECT_GT(n_kept_, 0);
  EXPECT_GE(n_refused_, n_swaps_ / 7);
  // Each route has a live one, a candidate and one to go back to; each request may keep one more.
  EXPECT_LE(n_versions_max_, static_cast<int>(1 + 3 * kSwapRoutes + kStreams));
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
  EXPECT_EQ(daemon_.output().find("destroy() left"), std::string::npos) << daemon_.output();
}

// Only with SPECD_NIGHTLY, since it measures: eight streams, while one of their routes gets other versions.
TEST_F(SwapStorm, what_an_apply_and_a_flip_take) {
  if (std::getenv("SPECD_NIGHTLY") == nullptr) GTEST_SKIP() << "SPECD_NIGHTLY is not set";
  using Window = std::pair<steady_clock::time_point, steady_clock::time_point>;
  for (const size_t kind : {0, 4, 5}) {
    std::vector<double> apply_ms, first_ms, stage_ms, promote_ms;
    std::vector<Window> flips;
    const std::vector<Gap> gaps = under_load(8, [&] {
      for (int n = 0; n < 30; ++n) {
        // A new version each time.
        const std::string wanted = definition(
            0, kStrategies[kind].keys + ", probation_seconds: " + std::to_string(60 + n));
        v1::ApplyRouteRequest apply;
        apply.set_definition(wanted);
        const auto start = steady_clock::now();
        EXPECT_TRUE(client_->apply_route(apply).ok());
        const auto applied = steady_clock::now();
        std::optional<steady_clock::time_point> first;
        ++n_requests_;
        EXPECT_TRUE(client_
                        ->generate(request_of_kind(0, 1, name_of(0)),
                                   [&](const v1::GenerateResponse& message) {
                                     if (message.has_chunk() && !first) first = steady_clock::now();
                                   })
                        .ok());
        apply_ms.push_back(ms_between(start, applied));
        first_ms.push_back(ms_between(start, first.value_or(start)));
        v1::StageRouteRequest stage;
        stage.set_definition(definition(0, kStrategies[kind].keys + ", probation_seconds: 50"));
        const auto before_stage = steady_clock::now();
        EXPECT_TRUE(client_->stage_route(stage).ok());
        stage_ms.push_back(ms_between(before_stage, steady_clock::now()));
        std::this_thread::sleep_for(milliseconds(100));
        v1::PromoteRouteRequest promote;
        promote.set_name(name_of(0));
        promote.set_running(v1::RUNNING_REQUESTS_ATTACH);
        const auto flip = steady_clock::now();
        EXPECT_TRUE(client_->promote_route(promote).ok());
        flips.emplace_back(flip, steady_clock::now());
        promote_ms.push_back(ms_between(flip, flips.back().second));
        std::this_thread::sleep_for(milliseconds(200));
      }
    });
    // The largest gap that reaches into the time of a flip; and into as long a time, 100 ms after it.
    const auto stall = [&](const Window& window) {
      double largest = 0;
      for (const Gap& each : gaps) {
        const auto begin = each.end - std::chrono::duration<double, std::milli>(each.ms);
        if (begin < window.second && each.end > window.first) largest = std::max(largest, each.ms);
      }
      return largest;
    };
    std::vector<double> at_flip, otherwise;
    for (const auto& [begin, end] : flips) {
      at_flip.push_back(stall({begin, end}));
      otherwise.push_back(stall({begin + milliseconds(100), end + milliseconds(100)}));
    }
    std::printf("ms, medians and largest, of \"%s\":\n", kStrategies[kind].keys.c_str());
    for (const auto& [what, values] : {std::pair("ApplyRoute", apply_ms),
                                       {"ApplyRoute and the first token on it", first_ms},
                                       {"StageRoute", stage_ms},
                                       {"PromoteRoute, with attach", promote_ms},
                                       {"largest gap of a stream at a flip", at_flip},
                                       {"the same without one", otherwise}})
      std::printf("  %-38s %7.2f %7.2f\n", what, quantile(values, 0.5), quantile(values, 1));
  }
  come_to_rest();
  expect_balanced_books();
}

}  // namespace
}  // namespace specd::host
