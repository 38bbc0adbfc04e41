// The engine: models, routes, plugins and one step loop. The only core header that host includes,
// beside core/base.
//
//   SPECD_TRY(auto engine, Engine::create(options, progress));
//   engine->submit(request, sink);   // sink is called on the step thread until an event has `done`
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/metrics.h"
#include "core/base/status.h"
#include "core/request/request.h"
#include "core/spec/route.h"

namespace specd {

// ---- options: the configuration as data; the host reads it from YAML -------------------------

enum class KvDType { kF32, kF16, kBF16 };
// kStrict: a row has the same bits whatever stands beside it, so that drafts change no token.
// kBf16: the same, with activations rounded to bfloat16 where weights are: faster, other texts than
// strict's, the same ones on one model of processor only. CPUs with AVX-512 BF16 only.
// kFast: whatever the device does fastest; routes reach the guarantee `law` at most. CUDA devices
// only.
enum class Numerics { kStrict, kBf16, kFast };

struct ModelOptions {
  std::string name;  // "target"
  std::string path;  // a Hugging Face folder: config.json, model.safetensors, tokenizer.json
  KvDType kv_dtype = KvDType::kBF16;
  // The size of the KV cache, at most one of the three; none = enough for max_sequences full
  // contexts, at most 1 GiB.
  uint64_t kv_bytes_max = 0;
  double kv_memory_share = 0;  // of the machine's memory, up to 1
  int32_t kv_pages = 0;
  bool prefix_cache = true;
  bool generation_config = true;  // its sampling holds where a request does not say
  std::string chat_template;      // a file instead of the folder's own; empty = that

  bool operator==(const ModelOptions&) const = default;
};

// A second model that drafters may ask for by name; its KV lies in the pages of the target's.
struct DraftModelOptions {
  std::string name;
  std::string path;  // as of the target
  KvDType kv_dtype = KvDType::kBF16;

  bool operator==(const DraftModelOptions&) const = default;
};

// The largest values that are taken.
struct EngineLimits {
  static constexpr int32_t kThreads = 256;
  static constexpr int32_t kSequences = 1024;
  static constexpr int32_t kStepTokens = 65536;
  static constexpr int32_t kQueue = 1 << 20;
  static constexpr int32_t kDraftNodes = 1024;  // the plugin boundary's own limit
  static constexpr size_t kRoutes = 256;
  static constexpr int32_t kKvPages = 1 << 26;
  static constexpr int32_t kPriorityAgingMs = 3'600'000;
  static constexpr int32_t kPriority = 1000;  // either sign
  static constexpr int64_t kDeadlineMs = int64_t{7} * 86'400'000;
  static constexpr size_t kCacheSaltBytes = 256;
  static constexpr int32_t kStops = 16;         // strings of a request
  static constexpr int32_t kStopTokens = 1024;  // ids of a request
};

struct EngineOptions {
  ModelOptions model;
  std::vector<DraftModelOptions> draft_models;
  std::vector<RouteOptions> routes;
  std::string default_route = "off";  // "off" = plain decoding, always there
  std::vector<std::string> plugin_directories;
  std::string plugin_cache_directory;
  // Where models run, see is_device_name(). One, until several can share a model.
  std::vector<std::string> devices{"cpu"};
  Numerics numerics = Numerics::kStrict;
  int32_t threads = 0;               // 0 = one per core
  std::string isa;                   // "" = best; "scalar", "avx2", "avx512"
  int32_t max_sequences = 64;        // in one step
  int32_t step_tokens_max = 512;     // rows of one forward, prefill and draft nodes together
  int32_t queue_max = 256;           // waiting requests; more are refused
  int32_t priority_aging_ms = 1000;  // waiting this long is worth one level of priority

  bool operator==(const EngineOptions&) const = default;
};

// ---- reports ---------------------------------------------------------------------------------

struct PluginReport {
  std::string id, version, license, directory, sha256, state, reason;
  std::vector<std::pair<std::string, std::string>> factories;  // id, kind
};

struct PluginCallReport {
  std::string plugin, call;  // "specd.drafter.replay", "propose"
  uint64_t calls = 0, ns = 0, failures = 0;
};

// What a plugin counts through the metrics service.
struct PluginMetricReport {
  std::string plugin, kind;  // "specd.drafter.replay", "drafter"
  std::string name, help;    // [a-z][a-z0-9_]*
  bool counter = false;
  double value = 0;
};

struct RouteReport {
  std::string name, model, drafter, verifier, guarantee;
  std::string state;  // "live", "refused"; "draining": replaced or deleted, requests still run
  Status refused;     // why; its field is a key of the route: "drafter.config.max_nodes"
  bool is_default = false;
  uint64_t generation = 0;  // of the change of routes with which it came; 1 = the start
  int32_t in_use = 0;       // requests that wait or run with this generation
  std::string drafter_version, verifier_version;
  std::string drafter_sha256, verifier_sha256;  // of the libraries that it runs
  uint64_t memory_bytes = 0;                    // held by the drafter now, through memory/1
  uint64_t memory_bytes_max = 0;                // may be held from activation on
  int32_t draft_nodes_max = 0;
  int32_t disable_by_batch_size = 0;
  bool suspended = false;  // does not draft now: more than disable_by_batch_size sequences run
  // Counts of a live route include those of its earlier generations of the same plugins, so they
  // only grow.
  uint64_t requests = 0, steps = 0;
  uint64_t drafts = 0;  // with at least one node
  uint64_t drafted = 0, accepted = 0, rejected = 0, discarded = 0;
  std::vector<uint64_t> accepted_at;  // of accepted: by depth less one
  uint64_t forward_ns = 0;            // its share of the forwards, by rows
  uint64_t cut = 0;                   // proposals and verdicts in which validation found a defect
  std::string last_problem;           // the last defect or loss, in words
  uint64_t lost = 0;  // requests that the drafter failed; they went on without drafts
  uint64_t propose_calls = 0, propose_ns = 0, propose_failures = 0;
  uint64_t verify_calls = 0, verify_ns = 0, verify_failures = 0;
  std::vector<PluginCallReport> calls;  // every call that steps make
  std::vector<PluginMetricReport> plugin_metrics;
};

struct ModelReport {
  std::string role;           // "target", "draft"
  std::string state, reason;  // "loaded", "refused" and why
  std::string name, path, architecture, dtype, kv_dtype;
  int32_t vocab_size = 0, n_layers = 0, hidden_size = 0, max_positions = 0;
  uint64_t parameters = 0, weight_bytes = 0, kv_bytes = 0;
  // At rest free + cached = total.
  int32_t kv_pages_total = 0, kv_pages_free = 0, page_tokens = 0;
  int32_t kv_pages_cached = 0;       // held by the prefix cache alone: given up when needed
  uint64_t prefix_query_tokens = 0;  // of prompts that ran
  uint64_t prefix_hit_tokens = 0;    // of those, not computed but found in the prefix cache
  // Of draft models, whose KV lies in the target's pages: how many of those they hold, forwards and
  // their rows, the time they took with their draws.
  int32_t kv_pages_held = 0;
  uint64_t forwards = 0, rows = 0, forward_ns = 0;
  // Of the target: where a request does not say, and what generation_config.json asks for in vain.
  SamplingParams sampling_defaults;
  std::vector<std::string> generation_config_ignored;
  std::vector<int32_t> eos_tokens;  // of the target: each ends a text
  // Of the target: the file its chat template came from, or "refused: " and why chats are.
  std::string chat_template;
};

struct EngineReport {
  std::string state;   // "ready", "draining"
  std::string device;  // "cuda:0 (NVIDIA H200)", "cpu (cpu-avx2)"
  std::string isa;     // of the host
  int32_t threads = 0;
  int32_t running = 0, waiting = 0;
  uint64_t admitted = 0, completed = 0, failed = 0, cancelled = 0, refused = 0;
  uint64_t deadline_misses = 0;  // of the failed
  uint64_t preemptions = 0;      // a request may be preempted several times
  uint64_t steps = 0, rows = 0, tokens = 0, kv_moves = 0;
  uint64_t uptime_ns = 0;
  uint64_t step_age_ns = 0;  // since the present step began; 0 when there is nothing to do
};

// One line of the start-up memory table.
struct MemoryLine {
  std::string what;
  uint64_t bytes = 0;
};

// What a change of routes did.
struct RouteChange {
  uint64_t generation = 0;  // number of the change; when unchanged: that of the live route
  bool unchanged = false;   // the very same route was live already
};

// Progress of loading: `what` and a fraction in [0, 1].
using ProgressFn = std::function<void(const std::string& what, double fraction)>;

// "cpu", "cuda:N" or "auto": cuda:0 where it can be had, else the CPU, and a line in the log why.
bool is_device_name(const std::string& name);

// What the values say alone, without a look at files, plugins or devices. The field of an error is
// the key's path in the configuration: "engine.step_tokens_max", "routes.NAME.draft_nodes_max".
// Engine::create(), apply_route() and check_options() check this too, and their errors have such
// fields.
Status check_limits(const EngineOptions& options);
// The same for one route of an engine with these options.
Status check_route(const RouteOptions& route, const EngineOptions& options);

// Everything that can be checked without loading weights: options, the model's files, plugin
// manifests, pairs. Loads the plugins of the routes and makes their instances, so their code runs,
// and with `devices: [cpu]` activates them; afterwards call shut_down_plugins().
Status check_options(const EngineOptions& options);

// [control] At process exit, after the last engine: lets plugins say goodbye (their deinit()).
// Their code stays mapped.
void shut_down_plugins();

// What the model reads of a prompt.
struct RenderedPrompt {
  std::string text;
  std::vector<int32_t> tokens;
};

// An admitted request.
struct Ticket {
  std::string id;           // the client's, or made; may be used again after the end
  uint64_t number = 0;      // the engine's own, never used again
  SamplingParams sampling;  // what holds, the model's defaults included
  std::vector<int32_t> prompt_tokens;
};

class Engine {
 public:
  // [control] Loads the models and every route. A route that cannot be is reported and left out,
  // unless it is the default route; so is a draft model, and with it the routes that need it.
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options,
                                                const ProgressFn& progress);
  ~Engine();  // cancels what is left, joins the step thread

  // [any] The admitted request; kInvalidArgument with the field of Request, kExhausted when the
  // queue is full, kDeadlineExceeded when it is too late already, kUnavailable while draining. After
  // an error the sink is never called; else it may be called before this returns.
  Result<Ticket> submit(const Request& request, Sink sink);
  // [any] Counts a request that was refused before it could be submitted.
  void count_refused();
  // [any] What submit() gives the model for the text or the chat of this request, of which nothing
  // else is looked at: what a client needs to debug a template, or to send the same prompt as ids.
  Result<RenderedPrompt> render(const Request& request) const;
  // The ids of a text alone.
  Result<std::vector<int32_t>> encode(const std::string& prompt) const;
  // [any] Takes effect within one step; false, and nothing happens, when the request has ended.
  bool cancel(uint64_t number);
  // The same for the one that has this id now.
  bool cancel(const std::string& request_id);
  // [any] Drops every cached prefix that nobody uses now; false when no step ended in time.
  bool clear_prefix_cache();
  // [any] Puts a route into service or replaces the one of its name, while requests run. The plugin
  // directories are looked at again, the pair is loaded, checked and activated on this thread
  // beside the step, then flipped in between two steps: requests that were admitted before finish
  // on the pair they have, later ones get the new. After an error nothing has changed; its field is
  // "request_id" or begins with "routes.NAME". The same definition made of the same bundles leaves
  // the live route alone; files that a plugin's configuration names are not compared. One change at
  // a time; others wait. A request_id that was used before gives the first reply again, or
  // kInvalidArgument when the change is another one; the last 256 are remembered, empty never. May
  // block until a step ends: not for the step thread.
  Result<RouteChange> apply_route(const RouteOptions& route, const std::string& request_id);
  // [any] No new request gets it; those that have it finish. kFailedPrecondition for "off" and the
  // default route, kNotFound. request_id as above.
  Result<RouteChange> delete_route(const std::string& name, const std::string& request_id);
  // [any] The definition of a route of the table, live or refused; kNotFound.
  Result<RouteOptions> route(const std::string& name) const;
  // [any] Refuses new requests and changes of routes from now on.
  void start_drain();
  // [any] Not ok once the device has failed: every request has got this as its error, new ones are
  // refused, and nothing can be computed any more by this process.
  Status failure() const;
  // [any] True when nothing runs or waits any more; false at the timeout.
  bool wait_idle(uint64_t timeout_ms);

  // [any] Snapshots; free of side effects. Plugins: what new routes are made of; a route may still
  // run an older version. Routes: "off", the table, then what drains.
  std::vector<PluginReport> plugins() const;
  std::vector<RouteReport> routes() const;
  ModelReport model() const;
  std::vector<ModelReport> draft_models() const;
  EngineReport status() const;
  std::vector<MemoryLine> memory() const;
  // All of it as numbers with names, and the histograms of times.
  std::vector<MetricFamily> metrics() const;

 private:
  Engine();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specd
