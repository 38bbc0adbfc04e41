// What the engine is made of. Shared by the files of this folder; nobody else includes it.
//
//   options.cc   what can be said about options without loading anything
//   load.cc      from options to a running engine
//   admit.cc     clients' side: requests are checked and queued
//   loop.cc      the step thread
//   reports.cc   snapshots
//   metrics.cc   the same as named numbers
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "core/base/clock.h"
#include "core/engine.h"
#include "core/exec/route_builder.h"
#include "core/exec/services.h"
#include "core/exec/step.h"
#include "core/kv/page_pool.h"
#include "core/model/transformer.h"
#include "core/request/request_metrics.h"

namespace specd {

kernels::DType kernel_dtype(KvDType dtype);
const char* dtype_name(kernels::DType dtype);
const char* guarantee_text(Guarantee guarantee);
RouteSpec route_spec(const RouteOptions& route, const EngineOptions& options);
Status out_of_range(const std::string& field, const std::string& expected,
                    const std::string& found);
Status check_limits(const EngineOptions& options);
Status check_vocabulary(const ModelOptions& model, const ModelConfig& config,
                        const Tokenizer& tokenizer);

// What plugins learn about the target; owns the strings that `info` points at.
struct TargetFacts {
  std::string model_id, architecture;
  Sha256Digest tokenizer_sha256{};
  specd_target_info info{};

  void fill(const ModelOptions& options, const ModelConfig& config, const Tokenizer& tokenizer);
};

struct Engine::Impl {
  EngineOptions options;
  uint64_t started_ns = now_ns();
  ModelConfig config;
  TargetFacts target;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<CpuDevice> device;
  std::unique_ptr<Services> services;
  std::unique_ptr<PluginRegistry> registry;
  std::unique_ptr<Transformer> model;
  std::unique_ptr<KvStore> kv;
  std::unique_ptr<PagePool> pages;
  std::map<std::string, std::unique_ptr<LiveRoute>> routes;  // fixed after create()
  std::map<std::string, std::string> refused_routes;         // name -> reason
  std::unique_ptr<StepRunner> runner;
  RequestMetrics request_metrics;

  struct Waiting {
    std::unique_ptr<Sequence> request;
    LiveRoute* route = nullptr;
    int32_t pages = 0;
  };

  // Between clients and the step thread.
  std::mutex mutex;
  std::condition_variable wake;  // of the step thread
  std::condition_variable idle;
  std::vector<Waiting> inbox;                // guarded by mutex
  std::unordered_set<std::string> cancels;   // guarded by mutex
  std::unordered_set<std::string> live_ids;  // guarded by mutex; admitted and not ended
  uint64_t next_number = 1;                  // guarded by mutex
  int32_t n_queued = 0;                      // guarded by mutex; inbox and waiting
  int32_t n_unfinished = 0;                  // guarded by mutex; whose last event is not out
  bool draining = false, stopping = false;   // guarded by mutex

  // Step thread only.
  std::deque<Waiting> waiting;
  std::vector<ActiveSequence> running;
  std::vector<int32_t> free_slots;
  std::thread thread;

  // Written by the step thread, read by reports.
  std::atomic<int32_t> n_running{0}, pages_free{0};
  std::atomic<uint64_t> n_admitted{0}, n_completed{0}, n_failed{0}, n_cancelled{0}, n_refused{0};
  std::atomic<uint64_t> n_steps{0}, n_rows{0}, n_tokens{0}, n_kv_moves{0};
  std::atomic<uint64_t> step_since_ns{0};  // the pulse of the step thread; 0 = it has no work

  Status load(const ProgressFn& progress);
  Status load_routes();
  Result<std::vector<int32_t>> encode(const std::string& prompt) const;
  Result<std::string> admit(const Request& request, Sink sink);
  int32_t pages_needed(int32_t n_prompt, int32_t max_tokens, const LiveRoute* route) const;

  void loop();
  void step();
  void start(Waiting next);
  void finish(Sequence& request);
  void cancel_listed(const std::unordered_set<std::string>& ids);
  void cancel_all();
  void retire(ActiveSequence& sequence);
};

}  // namespace specd
