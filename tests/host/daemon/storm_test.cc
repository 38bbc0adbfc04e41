// Two hundred clients at once: some read, some dawdle, some cancel, some vanish, some bring a
// deadline that cannot be met, while an operator replaces a route twice a second and five drafters
// misbehave. Every request ends exactly once, well-behaved clients notice nothing, and at the end the counters balance and
// the memory is free again.
//
// SPECD_STORM_SECONDS: minimum duration, 10 by default. On a slow machine the test goes on until
// routes have been replaced a few times.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/sanitizer.h"
#include "tests/host/daemon/daemon_rig.h"

namespace specd::host {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kClients = 200;
constexpr int32_t kTokens = 40;
constexpr uint64_t kChanges = 4;  // of routes, at least
// AddressSanitizer keeps what is freed for a while.
#if SPECD_ASAN
constexpr uint64_t kMemorySlack = uint64_t{512} << 20;
#else
constexpr uint64_t kMemorySlack = uint64_t{16} << 20;
#endif

const char kConfig[] = R"(
engine: {threads: 2, max_sequences: 32, queue_max: 1024}
draft_models: [{name: draft, path: ZOO/pico-draft}]
model:
  name: pico
  path: ZOO/pico-target
  kv: {pages: 160}
plugins: {directories: [PLUGINS, BAD, HANG], cache_directory: cache}
default_route: lookup
routes:
  lookup:
    drafter: {plugin: specd.drafter.prompt_lookup}
    verifier: {plugin: specd.verifier.match}
  few:
    drafter: {plugin: specd.drafter.prompt_lookup}
    verifier: {plugin: specd.verifier.match}
    disable_by_batch_size: 4
  draft:
    drafter: {plugin: specd.drafter.draft_target, config: {model: draft}}
    verifier: {plugin: specd.verifier.match}
  bad_fails:
    drafter: {plugin: specd.test.drafter_hang, config: {does: fail}}
    verifier: {plugin: specd.verifier.match}
  bad_late:
    drafter: {plugin: specd.test.drafter_hang, config: {does: slow}}
    verifier: {plugin: specd.verifier.match}
    call_ms_max: 10
  bad_garbage:
    drafter: {plugin: specd.test.drafter_bad, factory: bad, config: {mode: garbage}}
    verifier: {plugin: specd.verifier.match}
  bad_tree:
    drafter: {plugin: specd.test.drafter_bad, factory: bad_tree, config: {mode: parent_forward}}
    verifier: {plugin: specd.verifier.match}
  bad_update:
    drafter: {plugin: specd.test.drafter_bad, factory: bad, config: {mode: update_fails}}
    verifier: {plugin: specd.verifier.match}
)";

// Those of good drafters are drawn more often.
const char* const kRoutes[] = {"off",       "lookup",   "few",         "draft",    "lookup",
                               "bad_fails", "bad_late", "bad_garbage", "bad_tree", "bad_update"};
const char* const kPrompts[] = {
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n    if n < 2:\n",
    "import os\nimport sys\n\n\nclass Reader:\n    def __init__(self, path):\n        self.path",
    "for i in range(10):\n    print(i)\n\nfor j in range(20):\n    print(j)\n\nfor k in",
    "x = [1, 2, 3]\n",
};

v1::GenerateRequest request_of(size_t prompt, bool seeded, const std::string& route) {
  v1::GenerateRequest request;
  request.set_text(kPrompts[prompt]);
  request.set_route(route);
  request.set_max_tokens(kTokens);
  request.mutable_sampling()->set_temperature(seeded ? 0.9F : 0.0F);
  request.mutable_sampling()->set_seed(100 + prompt);
  request.set_ignore_eos(true);
  return request;
}

uint64_t held_by_drafters(Client& client) {
  uint64_t bytes = 0;
  const auto routes = client.routes();
  EXPECT_TRUE(routes.ok());
  if (routes.ok()) {
    for (const v1::Route& route : routes.value().routes()) bytes += route.memory_bytes();
  }
  return bytes;
}

class Storm {
 public:
  explicit Storm(const Daemon& daemon) : daemon_(daemon) {
    for (size_t prompt = 0; prompt < std::size(kPrompts); ++prompt) {
      for (const bool seeded : {false, true}) {
        const auto plain = daemon.client().generate(request_of(prompt, seeded, "off"), {});
        if (!plain.ok()) {
          ADD_FAILURE() << plain.status().to_string();
          continue;
        }
        expected_[{prompt, seeded}] = plain.value().token_ids;
      }
    }
  }

  void blow(std::chrono::seconds duration) {
    over_ = false;
    std::vector<std::thread> clients;
    for (int i = 0; i < kClients; ++i) clients.emplace_back([=, this] { client(i); });
    change_routes(Clock::now() + duration);
    over_ = true;
    for (std::thread& each : clients) each.join();
  }

  std::atomic<uint64_t> completed{0}, cancelled{0}, late{0}, applied{0};

 private:
  void client(int number) {
    std::minstd_rand random(static_cast<unsigned>(number) * 7919 + 1);
    const auto below = [&](unsigned n) { return static_cast<unsigned>(random()) % n; };
    const auto stub = v1::Inference::NewStub(daemon_.channel());
    while (!over_) {
      const size_t prompt = below(std::size(kPrompts));
      const bool seeded = below(2) == 1;
      v1::GenerateRequest request = request_of(prompt, seeded, kRoutes[below(std::size(kRoutes))]);
      request.set_priority(static_cast<int32_t>(below(3)) - 1);
      grpc::ClientContext context;
      enum {
        kReads,
        kDawdles,
        kCancels,
        kVanishes,
        kHurries
      } manner = below(10) < 5 ? kReads : static_cast<decltype(manner)>(1 + below(4));
      if (manner == kHurries) {
        if (below(2) == 0) {
          request.set_deadline_ms(1 + below(300));
        } else {
          context.set_deadline(std::chrono::system_clock::now() +
                               std::chrono::milliseconds(1 + below(300)));
        }
      }
      auto reader = stub->Generate(&context, request);
      const unsigned patience = below(20);
      std::vector<int32_t> tokens;
      v1::GenerateResponse message;
      unsigned n_read = 0;
      bool finished = false;
      if (manner != kVanishes || patience > 0) {
        while (reader->Read(&message)) {
          finished = finished || message.has_finished();
          const auto& ids = message.chunk().token_ids();
          tokens.insert(tokens.end(), ids.begin(), ids.end());
          if (manner == kDawdles) std::this_thread::sleep_for(std::chrono::milliseconds(below(20)));
          if ((manner == kCancels || manner == kVanishes) && ++n_read >= patience) {
            context.TryCancel();
            if (manner == kVanishes) break;
          }
        }
      } else {
        context.TryCancel();
      }
      const grpc::Status status = reader->Finish();
      if (status.ok()) {
        ++completed;
        if (manner == kVanishes) continue;  // not everything was read
        EXPECT_TRUE(finished);
        EXPECT_EQ(tokens, expected_.at({prompt, seeded})) << request.route();
      } else if (status.error_code() == grpc::StatusCode::CANCELLED) {
        EXPECT_TRUE(manner == kCancels || manner == kVanishes) << status.error_message();
        ++cancelled;
      } else {
        EXPECT_TRUE(manner == kHurries &&
                    status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
            << status.error_code() << " " << status.error_message();
        ++late;
      }
    }
  }

  // Twice a second another draft length for `lookup`, for ever new generations.
  void change_routes(Clock::time_point end) {
    const auto stub = v1::Control::NewStub(daemon_.channel());
    for (uint64_t n = 0; n < kChanges || Clock::now() < end; ++n) {
      const auto next = Clock::now() + std::chrono::milliseconds(500);
      v1::ApplyRouteRequest request;
      request.set_definition(
          "{name: lookup, drafter: {plugin: specd.drafter.prompt_lookup, "
          "config: {num_speculative_tokens: " +
          std::to_string(2 + n % 4) + "}}, verifier: {plugin: specd.verifier.match}}");
      grpc::ClientContext context;
      v1::ApplyRouteResponse response;
      const grpc::Status status = stub->ApplyRoute(&context, request, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      applied += status.ok() ? 1 : 0;
      std::this_thread::sleep_until(next);
    }
  }

  const Daemon& daemon_;
  std::atomic<bool> over_{false};
  std::map<std::pair<size_t, bool>, std::vector<int32_t>> expected_;
};

TEST(Storm, every_request_ends_once_and_nobody_else_notices) {
  const char* wanted = std::getenv("SPECD_STORM_SECONDS");
  const std::chrono::seconds duration(wanted == nullptr ? 10 : std::atoi(wanted));
  Daemon daemon;
  daemon.write_config_text(kConfig);
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  const auto rest = [&] {
    return eventually([&] {
      const auto status = client.status();
      const auto routes = client.routes();
      if (!status.ok() || !routes.ok()) return false;
      const auto drains = [](const v1::Route& route) {
        return route.state() == v1::ROUTE_STATE_DRAINING;
      };
      return status.value().running() == 0 && status.value().waiting() == 0 &&
             std::ranges::none_of(routes.value().routes(), drains);
    });
  };

  Storm storm(daemon);
  // What the allocator and gRPC keep of a storm is there after the first.
  storm.blow(std::max(duration / 3, std::chrono::seconds(3)));
  ASSERT_TRUE(rest());
  const uint64_t before = resident_bytes(daemon.pid());
  storm.blow(duration);
  ASSERT_TRUE(rest());
  const uint64_t after = resident_bytes(daemon.pid());
  EXPECT_EQ(held_by_drafters(client), 0u);

  EXPECT_GT(storm.completed, 0u);
  EXPECT_GT(storm.cancelled, 0u);
  EXPECT_GT(storm.late, 0u);
  const auto status = client.status();
  ASSERT_TRUE(status.ok());
  const v1::GetStatusResponse& s = status.value();
  EXPECT_EQ(s.admitted(), s.completed() + s.failed() + s.cancelled());
  EXPECT_EQ(s.failed(), s.deadline_misses()) << "only deadlines may end a request";
  EXPECT_GT(s.preemptions(), 0u) << "the cache was meant to be too small";
  const auto models = client.models();
  ASSERT_TRUE(models.ok());
  const v1::Model& model = models.value().models(0);
  EXPECT_EQ(model.kv_pages_free() + model.kv_pages_cached(), model.kv_pages_total());
  EXPECT_EQ(models.value().models(1).kv_pages_held(), 0) << "draft KV of sequences that are over";
  // Switched off while more than four ran, on again for one.
  const auto drafted_alone = client.generate(request_of(2, false, "few"), {});
  ASSERT_TRUE(drafted_alone.ok());
  EXPECT_GT(drafted_alone.value().finished.speculation().total_draft_tokens(), 0);
  const auto routes = client.routes();
  ASSERT_TRUE(routes.ok());
  for (const v1::Route& route : routes.value().routes()) {
    EXPECT_EQ(route.drafted(), route.accepted() + route.rejected() + route.discarded())
        << route.name();
    if (route.name() != "off" && !route.name().starts_with("bad_")) {
      EXPECT_GT(route.drafted(), 0u) << route.name();
    }
  }
  EXPECT_LE(after, before + kMemorySlack)
      << "resident memory grew from " << before << " to " << after << " bytes";
  std::printf("%lu completed, %lu cancelled, %lu late, %lu changes of routes; %lu MiB, then %lu\n",
              storm.completed.load(), storm.cancelled.load(), storm.late.load(),
              storm.applied.load(), before >> 20, after >> 20);
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
  EXPECT_EQ(daemon.output().find("destroy() left"), std::string::npos) << daemon.output();
}

}  // namespace
}  // namespace specd::host
