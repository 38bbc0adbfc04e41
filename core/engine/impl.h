// What the engine is made of. Shared by the files of this folder; nobody else includes it.
//
//   options.cc   what can be said about options without loading anything
//   load.cc      from options to a running engine
//   admit.cc     clients' side: requests are checked and queued
//   prompt.cc    text or messages to ids
//   loop.cc      the step thread
//   control.cc   changes of routes
//   route_table  what can be asked for, what drains
//   reports.cc   snapshots
//   metrics.cc   the same as named numbers
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/base/clock.h"
#include "core/engine.h"
#include "core/engine/route_table.h"
#include "core/services/model.h"
#include "core/exec/route_builder.h"
#include "core/services/directory.h"
#include "core/engine/batch.h"
#include "core/ranks/worker.h"
#include "core/step/runner.h"
#include "core/kv/page_pool.h"
#include "core/kv/prefix_cache.h"
#include "core/model/generation_config.h"
#include "core/model/model_facts.h"
#include "core/model/transformer.h"
#include "core/request/request_metrics.h"
#include "core/chat/chat_template.h"

namespace specd {

kernels::DType kernel_dtype(KvDType dtype);
// The template that chats get; what is wrong with it is logged and in its status.
ChatTemplate load_chat_template(const ModelOptions& model);
const char* dtype_name(kernels::DType dtype);
const char* guarantee_text(Guarantee guarantee);
RouteSpec route_spec(const RouteOptions& route, const EngineOptions& options);
Status out_of_range(const std::string& field, const std::string& expected,
                    const std::string& found);
// Fields of errors, as the configuration names them: "routes.NAME", "draft_models[0]".
std::string route_field(const std::string& name);
std::string draft_model_field(size_t index);
inline constexpr char kModelPath[] = "model.path";
// How many pages the options ask for. `useful`: full contexts for all sequences.
Result<int32_t> kv_pages_of(const ModelOptions& model, const Device& device, uint64_t page_bytes,
                            uint64_t useful);
// What logs and terminals can show: printable ASCII without spaces, at most 128 bytes.
Status check_name(const std::string& field, const std::string& name);
Status no_route(const RouteTable& table, const std::string& name);

struct Engine::Impl {
  // What is still in the stream uses memory that goes now.
  ~Impl() {
    if (cuda != nullptr) (void)cuda->synchronize();
  }

  EngineOptions options;
  uint64_t started_ns = now_ns();
  ModelConfig config;
  SamplingParams sampling_defaults;                    // of the target
  std::vector<std::string> generation_config_ignored;  // what it asks for in vain
  ModelFacts target;
  std::shared_ptr<const Tokenizer> tokenizer;
  ChatTemplate chat_template;
  std::unique_ptr<CpuDevice> cpu;  // plugins work there, whatever the models run on
  std::unique_ptr<Device> cuda;    // null = the models run on the CPU too
  Device* device = nullptr;        // of the models
  std::unique_ptr<Services> services;
  std::unique_ptr<PluginRegistry> registry;
  std::unique_ptr<Transformer> model;
  std::unique_ptr<KvStore> kv;
  std::unique_ptr<PagePool> pages;
  std::unique_ptr<PrefixCache> cache;  // null = off
  std::unique_ptr<ModelService> draft_models;
  int32_t logits_rows_max = 0;  // of the model

  // Whoever changes routes, makes or destroys instances holds it; the step thread never does.
  std::mutex control;
  std::unique_ptr<RouteBoard> board;
  std::vector<uint32_t> tap_points;  // the model's taps in their order; guarded by control
  uint64_t generation = 0;           // changes of the routes so far; guarded by control
  struct Reply {
    std::string request_id;
    RouteOptions wanted;
    bool is_delete;
    Result<RouteChange> reply;
  };
  std::deque<Reply> replies;  // guarded by control; the last ones

  std::unique_ptr<Worker> worker;
  std::unique_ptr<StepRunner> runner;
  RequestMetrics request_metrics;

  // Between clients and the step thread.
  std::mutex mutex;
  std::condition_variable wake;  // of the step thread
  std::condition_variable idle;
  std::vector<ActiveSequence> inbox;                    // guarded by mutex
  std::unordered_map<uint64_t, Sequence*> live;         // guarded by mutex; admitted, not ended
  std::unordered_map<std::string, uint64_t> number_of;  // guarded by mutex; of the live ids
  uint64_t next_number = 1;                             // guarded by mutex
  int32_t n_queued = 0;                                 // guarded by mutex; inbox and waiting
  int32_t n_unfinished = 0;                             // guarded by mutex; last event not out
  bool draining = false, stopping = false;              // guarded by mutex
  Status failure;                                       // guarded by mutex; of the device
  std::function<void()> boundary_task;                  // guarded by mutex; for between two steps
  bool boundary_passed = false;                         // guarded by mutex; it has run
  std::condition_variable boundary;

  std::unique_ptr<Batch> batch;  // step thread only, but for its counters
  std::thread thread;

  // Written by the step thread, read by reports.
  std::atomic<uint64_t> n_admitted{0}, n_completed{0}, n_failed{0}, n_cancelled{0}, n_refused{0};
  std::atomic<uint64_t> n_steps{0}, n_rows{0}, n_tokens{0}, n_kv_moves{0};
  std::atomic<uint64_t> step_since_ns{0};  // the pulse of the step thread; 0 = it has no work
  std::atomic<uint64_t> n_deadline_misses{0};

  Status load(const ProgressFn& progress);
  using DraftModels = std::vector<std::unique_ptr<DraftModel>>;
  Status load_sampling_defaults();
  Status open_device(const DraftModels& drafts);
  void load_draft_models(DraftModels drafts, const ProgressFn& progress);
  Status load_routes();
  struct StagedRoute {
    std::unique_ptr<LiveRoute> route;
    std::vector<Transformer::Tap> taps;  // that the model does not have yet
  };
  // These five with `control` held.
  Result<StagedRoute> stage_route(const RouteOptions& wanted);
  void add_taps(std::vector<Transformer::Tap> taps);  // and between steps
  bool is_current(const LiveRoute& route) const;      // what it was made of is what would be loaded
  Result<RouteChange> apply_route(const RouteOptions& wanted);
  Result<RouteChange> delete_route(const std::string& name);
  Result<RouteChange> change_routes(const std::string& request_id, const RouteOptions& wanted,
                                    bool is_delete);
  // False when no boundary came in time; then `task` does not run any more.
  bool at_step_boundary(std::function<void()> task);
  void pass_boundary(const std::function<void()>& task);
  Result<RenderedPrompt> make_prompt(const Request& request) const;  // of text or chat
  Result<std::vector<int32_t>> encode_chat(const RenderedChat& chat,
                                           bool parse_special_tokens) const;
  Status may_admit() const;
  Result<Ticket> admit(const Request& request, Sink sink);

  void loop();
  Status step();
  void fail_all(const Status& why);
  void count_queued();
  void finish(Sequence& sequence);
};

}  // namespace specd
