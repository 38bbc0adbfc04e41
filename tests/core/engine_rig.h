// An engine on a model of the tree, requests that wait for their end, and the audit: after every
// test the counters must balance, and threads and descriptors must be back at the baseline.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/device/cuda_device.h"
#include "core/engine.h"
#include "tests/entries_of.h"

namespace specd {

// What one request produced, collected by its sink.
struct Outcome {
  std::string id;
  std::vector<int32_t> tokens;
  std::string text;
  Logprobs logprobs, prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  Status error;
  Usage usage;
  int events = 0;
};

// An emulated device takes minutes for what takes the CPU a second.
constexpr std::chrono::minutes kPatience(20);

class Pending {
 public:
  Sink sink() {
    return [state = state_](const Event& event) {
      if (state->is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      std::unique_lock lock(state->mutex);
      ASSERT_FALSE(state->done) << "an event after the last one";
      Outcome& out = state->outcome;
      ++out.events;
      out.tokens.insert(out.tokens.end(), event.tokens.begin(), event.tokens.end());
      out.text += event.text;
      out.logprobs.append(event.logprobs);
      out.prompt_logprobs.append(event.prompt_logprobs);
      const size_t n = out.logprobs.token.size();
      ASSERT_TRUE(n == 0 || n == out.tokens.size()) << "they come with their tokens";
      if (event.done) {
        out.finish = event.finish;
        out.error = event.error;
        out.usage = event.usage;
        state->done = true;
      }
      state->changed.notify_all();
      state->changed.wait_for(lock, kPatience, [&state] {
        return state->done || state->outcome.tokens.size() < state->hold_at;
      });
    };
  }
  // Once the request has `n` tokens, its sink blocks the step thread, as a long forward would. The
  // request cannot end before a call with a larger `n` lets it continue.
  void hold_at(size_t n) {
    const std::lock_guard lock(state_->mutex);
    state_->hold_at = n;
    state_->changed.notify_all();
  }
  void let_go() { hold_at(SIZE_MAX); }
  // Until slow(false) each step takes 20 ms longer for this request, so that it runs for some seconds, with
  // ends of steps.
  void slow(bool is_slow) { state_->is_slow = is_slow; }
  Outcome wait() {
    std::unique_lock lock(state_->mutex);
    const bool ended = state_->changed.wait_for(lock, kPatience, [this] { return state_->done; });
    EXPECT_TRUE(ended) << "a request did not end";
    return state_->outcome;
  }
  void wait_for_tokens(size_t n) {
    std::unique_lock lock(state_->mutex);
    const bool came = state_->changed.wait_for(
        lock, kPatience, [&] { return state_->done || state_->outcome.tokens.size() >= n; });
    EXPECT_TRUE(came) << "a request neither ended nor had " << n << " tokens";
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    Outcome outcome;
    size_t hold_at = SIZE_MAX;  // tokens
    std::atomic<bool> is_slow{false};
    bool done = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class EngineTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/specd-engine-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
    // Discovery refuses what others can write.
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
    std::thread([] {}).join();  // a sanitizer starts its own thread with the first one
    // So may the device's library.
    if (std::getenv("SPECD_TEST_DEVICE") != nullptr) (void)open_cuda_device(0, {});
    threads_ = entries_of("/proc/self/task");
    descriptors_ = entries_of("/proc/self/fd");
  }
  void TearDown() override {
    if (engine_ != nullptr) audit();
    engine_.reset();
    std::filesystem::remove_all(folder_);
    for (int i = 0; i < 100 && entries_of("/proc/self/task") > threads_; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_LE(entries_of("/proc/self/task"), threads_);
    EXPECT_LE(entries_of("/proc/self/fd"), descriptors_);
  }

  // The smaller model unless a test says otherwise: most of these tests do not depend on the model.
  static EngineOptions options(const std::string& model = "pico-draft") {
    EngineOptions o;
    o.model.name = model;
    o.model.path = std::string(SPECD_TEST_ZOO) + "/" + model;
    o.model.kv_dtype = KvDType::kF32;
    o.model.kv_bytes_max = 64 << 20;
    o.threads = 2;
    if (const char* device = std::getenv("SPECD_TEST_DEVICE")) o.devices = {device};
    o.plugin_directories = {SPECD_TEST_PLUGINS};
    return o;
  }
  static PluginUse plugin(const std::string& id, Json config = Json::object()) {
    return {.plugin = id, .factory = {}, .config = std::move(config)};
  }
  static RouteOptions route(const std::string& name, PluginUse drafter, int32_t draft_nodes_max,
                            PluginUse verifier = {.plugin = "specd.verifier.match",
                                                  .factory = {},
                                                  .config = Json::object()}) {
    return {.name = name,
            .model = {},
            .drafter = std::move(drafter),
            .verifier = std::move(verifier),
            .guarantee = Guarantee::kIdentical,
            .draft_nodes_max = draft_nodes_max};
  }

  // On devices each rank has its own.
  static EngineOptions spread(EngineOptions o) {
    const int32_t n_ranks = o.tensor_parallel_size * o.pipeline_parallel_size;
    if (o.devices != std::vector<std::string>{"cuda:0"} || n_ranks == 1) return o;
    o.devices.clear();
    for (int32_t i = 0; i < n_ranks; ++i) o.devices.push_back("cuda:" + std::to_string(i));
    return o;
  }
  // Whether the tests run on the CPU, or on devices of which there are so many.
  static bool has_devices(int32_t n) {
    return options().devices.front() == "cpu" || open_cuda_device(n - 1, {}).ok();
  }

  void start(EngineOptions o) {
    if (engine_ != nullptr) audit();
    o = spread(std::move(o));
    engine_.reset();
    o.plugin_cache_directory = folder_ + "/cache";
    auto made = Engine::create(o, {});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    engine_ = std::move(made).value();
  }
  Pending submit(const Request& request) {
    Pending pending;
    const auto id = engine_->submit(request, pending.sink());
    EXPECT_TRUE(id.ok()) << id.status().to_string();
    return pending;
  }
  // Runs slowly until slow(false), so what follows finds it running on any machine.
  Pending submit_slow(const Request& request) {
    Pending pending;
    pending.slow(true);
    const auto id = engine_->submit(request, pending.sink());
    EXPECT_TRUE(id.ok()) << id.status().to_string();
    return pending;
  }
  Outcome run(const Request& request) { return submit(request).wait(); }
  std::vector<Outcome> run_all(const std::vector<Request>& requests) {
    std::vector<Pending> pending;
    for (const Request& request : requests) pending.push_back(submit(request));
    std::vector<Outcome> outcomes;
    for (Pending& each : pending) outcomes.push_back(each.wait());
    return outcomes;
  }
  static void expect_identical(const std::vector<Outcome>& outcomes,
                               const std::vector<Outcome>& plain, const std::string& what) {
    ASSERT_EQ(outcomes.size(), plain.size());
    for (size_t i = 0; i < outcomes.size(); ++i) {
      ASSERT_EQ(outcomes[i].tokens, plain[i].tokens) << what << ", request " << i;
      ASSERT_EQ(outcomes[i].text, plain[i].text) << what << ", request " << i;
      ASSERT_EQ(outcomes[i].finish, plain[i].finish) << what << ", request " << i;
    }
  }
  RouteReport report(const std::string& name) {
    for (const RouteReport& each : engine_->routes()) {
      if (each.name() == name) return each;
    }
    ADD_FAILURE() << "no route " << name;
    return {};
  }

  // Waits until nothing runs, then checks that everything admitted is accounted for.
  void audit() {
    ASSERT_TRUE(engine_->wait_idle(60'000));
    const EngineReport status = engine_->status();
    EXPECT_EQ(status.running, 0);
    EXPECT_EQ(status.waiting, 0);
    EXPECT_EQ(status.admitted, status.completed + status.failed + status.cancelled);
    const ModelReport model = engine_->model();
    EXPECT_EQ(model.kv_pages_free + model.kv_pages_cached, model.kv_pages_total);
    engine_->clear_prefix_cache();
    EXPECT_EQ(engine_->model().kv_pages_free, model.kv_pages_total) << "somebody holds a page";
    for (const RouteReport& each : engine_->routes()) {
      EXPECT_EQ(each.counts.drafted,
                each.counts.accepted + each.counts.rejected + each.counts.discarded)
          << each.name();
    }
  }

  static std::vector<std::string> prompts() {
    return {
        "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n    if n < 2:\n        return n\n",
        "import os\nimport sys\n\n\nclass Reader:\n    def __init__(self, path):\n        self.path = path\n",
        "for i in range(10):\n    print(i)\n",
        "# Configuration of the server\nHOST = \"localhost\"\nPORT = 8080\n\ndef connect(host, port):\n",
        "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n",
        "class Stack(object):\n    def push(self, item):\n        self.items.append(item)\n\n    def pop(self):\n",
        "try:\n    import json\nexcept ImportError:\n    json = None\n",
        "x = [1, 2, 3]\ny = {\"a\": 1, \"b\": 2}\nassert len(x) == 3\n",
    };
  }
  // Longer than the rows of a step in most tests.
  static std::string long_prompt() {
    std::string text;
    for (const std::string& each : prompts()) text += each + "\n";
    return text;
  }
  static Request request(const std::string& prompt, const std::string& route_name,
                         int32_t max_tokens, float temperature = 0, uint64_t seed = 0) {
    Request r;
    r.prompt = prompt;
    r.route = route_name;
    r.max_tokens = max_tokens;
    r.sampling.temperature = temperature;
    r.sampling.seed = seed;
    r.ignore_eos = true;
    return r;
  }
  // Writes what drafter_replay reads; ids of prompts and outputs of finished requests.
  std::string record(const std::vector<Request>& requests, const std::vector<Outcome>& outcomes) {
    Json sequences = Json::array();
    for (size_t i = 0; i < requests.size(); ++i) {
      sequences.push_back({{"prompt", engine_->encode(requests[i].prompt).value()},
                           {"output", outcomes[i].tokens}});
    }
    const std::string path = folder_ + "/replay-" + std::to_string(++records_) + ".json";
    std::ofstream(path) << Json{{"sequences", sequences}}.dump();
    return path;
  }

  std::string folder_;
  std::unique_ptr<Engine> engine_;

 private:
  int records_ = 0;
  size_t threads_ = 0, descriptors_ = 0;
};

}  // namespace specd
