// The engine: models, routes, plugins and one step loop. The only core header that host includes,
// besides core/base.
//
//   SPECD_TRY(auto engine, Engine::create(options, progress));
//   engine->submit(request, sink);   // sink is called on the step thread until an event has `done`
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/metrics.h"
#include "core/base/status.h"
#include "core/plugin/bundle/plugin_state.h"
#include "core/request/request.h"
#include "core/spec/engine_event.h"
#include "core/spec/route_report.h"
#include "core/spec/watched_drafts.h"
#include "specd/kernels/attention.h"

namespace specd {

// ---- options: the configuration as data; the host reads it from YAML -------------------------

using kernels::KvDType;
// kStrict: the bits of a row do not depend on the rest of the batch, so drafts change no token.
// kBf16: like kStrict, but activations are rounded to bfloat16 where the weights are bfloat16.
// Faster. Its texts differ from those of kStrict and are the same only on the same processor model.
// Only on CPUs with AVX-512 BF16.
// kFast: the fastest arithmetic of the device; routes reach the guarantee `law` at most. Only on
// CUDA devices.
enum class Numerics { kStrict, kBf16, kFast };

struct ModelOptions {
  std::string name;  // "target"
  std::string path;  // a Hugging Face folder: config.json, model.safetensors, tokenizer.json
  KvDType kv_dtype = KvDType::kBF16;
  // The size of the KV cache; set at most one of the three. With none, it is enough for
  // max_sequences full contexts, but at most 1 GiB.
  uint64_t kv_bytes_max = 0;
  double kv_memory_share = 0;  // of the memory that the process may use, up to 1
  int32_t kv_pages = 0;
  bool prefix_cache = true;
  bool generation_config = true;  // take sampling defaults from generation_config.json
  std::string chat_template;      // a file to use instead of the folder's own; empty = none

  bool operator==(const ModelOptions&) const = default;
};

// A second model that drafters may ask for by name. Its KV lies in the pages of the target's, if it fits
// into them, else in as many pages of its own.
struct DraftModelOptions {
  std::string name;
  std::string path;  // as ModelOptions::path
  KvDType kv_dtype = KvDType::kBF16;
  // The target's: the ranks of the last stage share the model. 1: rank 0 has it alone. 0: shared if that
  // is possible, unless rank_bytes_max is set and more pages are left when it is not.
  int32_t tensor_parallel_size = 0;
  // Where it is, if that is not where the target is: on rank 0's machine, with pages of its own and memory of
  // no rank. What drafters exchange with it is copied, and waits for both devices. Empty = the target's.
  std::string device = {};

  bool operator==(const DraftModelOptions&) const = default;
};

// The largest values that are accepted.
struct EngineLimits {
  static constexpr int32_t kThreads = 256;
  static constexpr int32_t kSequences = 1024;
  static constexpr int32_t kStepTokens = 65536;
  static constexpr int32_t kQueue = 1 << 20;
  static constexpr int32_t kDraftNodes = 1024;  // the plugin boundary's own limit
  static constexpr size_t kRoutes = 256;
  static constexpr int32_t kPluginControlSeconds = 3600;
  static constexpr int32_t kCallMs = 3'600'000;
  static constexpr int32_t kStepBudgetUs = 60'000'000;
  static constexpr int32_t kProbationSeconds = 86'400;
  static constexpr int32_t kKvPages = 1 << 26;
  static constexpr int32_t kPriorityAgingMs = 3'600'000;
  static constexpr int32_t kPriority = 1000;  // from -kPriority to kPriority
  static constexpr int64_t kDeadlineMs = int64_t{7} * 86'400'000;
  static constexpr size_t kCacheSaltBytes = 256;
  static constexpr int32_t kStops = 16;         // stop strings of a request
  static constexpr size_t kStopBytes = 256;     // of one of them
  static constexpr int32_t kStopTokens = 1024;  // stop token ids of a request
  static constexpr int32_t kRanks = 8, kStages = 64;
  static constexpr int32_t kRankTimeoutSeconds = 3600;
  static constexpr int32_t kLogitBiases = 1024;  // entries of logit_bias of a request
  static constexpr int32_t kChoices = 128;       // of a request
  static constexpr size_t kEchoBytes = size_t{2} << 20;
  static constexpr uint64_t kBestOfBytes = uint64_t{1} << 20;  // of all choices of a request
  static constexpr int32_t kLogprobs = 20;  // most likely tokens that a request may ask for
};

// Plugins that may run: those whose plugin.json has one of these hashes (lower-case hex of SHA-256), or a
// signature by one of these Ed25519 public keys (PEM files). Without either none may.
struct ApprovedPlugins {
  std::vector<std::string> sha256, keys;

  bool operator==(const ApprovedPlugins&) const = default;
};

class RankProcess;

struct EngineOptions {
  ModelOptions model;
  std::vector<DraftModelOptions> draft_models;
  std::vector<RouteOptions> routes;
  std::string default_route = "off";  // "off" = plain decoding, always available
  std::vector<std::string> plugin_directories;
  std::string plugin_cache_directory;
  std::optional<ApprovedPlugins> approved_plugins;  // none = every plugin may run
  std::string config_directory;  // where relative paths in configurations of plugins start
  // A folder, of this engine alone, that keeps changes of routes over a restart; empty = they are not kept.
  std::string state_directory;
  int32_t plugin_control_seconds = 120;  // for loading, making or destroying the pair of a route
  // Where models run; see is_device_name(). One, or a CUDA device for each rank: of all ranks, under mpirun
  // of those of each machine.
  std::vector<std::string> devices{"cpu"};
  Numerics numerics = Numerics::kStrict;
  int32_t threads = 0;  // 0 = one per core; ranks share them, at least one each
  // Ranks that share the model: on the CPU, threads of this process with a part of the weights and the
  // KV each, or processes. Texts are those of one rank.
  int32_t tensor_parallel_size = 1;
  // Stages of layers, each with so many ranks. A step passes through one after the other.
  int32_t pipeline_parallel_size = 1;
  int32_t rank_timeout_seconds = 10;  // a rank that the others wait for so long is lost
  // Memory of a rank for weights, activations, first columns, scratch, on rank 0 what the drafters of
  // `routes` may take there, and KV, which has the rest unless ModelOptions says how much. 0 = what the
  // device has, for the ranks that are on it.
  uint64_t rank_bytes_max = 0;
  RankProcess* process = nullptr;    // null = ranks are threads. It must outlive the engine.
  std::string isa;                   // "" = best; "scalar", "avx2", "avx512"
  int32_t max_sequences = 64;        // in one step
  int32_t step_tokens_max = 512;     // rows of one forward, prefill and draft nodes together
  int32_t queue_max = 256;           // waiting requests, each choice counted; more are refused
  int32_t priority_aging_ms = 1000;  // waiting this long is worth one level of priority

  bool operator==(const EngineOptions&) const = default;
};

// ---- reports ---------------------------------------------------------------------------------

const char* plugin_state_name(PluginState state);

struct PluginReport {
  std::string id, version, license, directory, sha256;
  PluginState state = PluginState::kDiscovered;
  std::string reason;                                          // why it was refused
  std::vector<std::pair<std::string, std::string>> factories;  // id, kind
};

struct ModelReport {
  bool is_draft = false;
  Status refused;  // why a draft model could not be loaded
  std::string name, path, architecture, dtype, kv_dtype;
  int32_t vocab_size = 0, n_layers = 0, hidden_size = 0, max_positions = 0;
  uint64_t parameters = 0, weight_bytes = 0, kv_bytes = 0;
  std::string weight_format;  // of the layers' matrices: "bf16", "W8A8 int8", "W4A16 g128, mixed"
  double weight_bits = 0;  // of one of their weights in the file, with its scales; 0 = not loaded
  // Of the target: at rest free + cached = total. Of a draft model: its own pages, 0 = it has none.
  int32_t kv_pages_total = 0, kv_pages_free = 0, page_tokens = 0;
  int32_t kv_pages_cached = 0;       // held by the prefix cache alone; evicted when needed
  uint64_t prefix_query_tokens = 0;  // prompt tokens looked up in the prefix cache
  uint64_t prefix_hit_tokens = 0;    // of those, tokens found there and not computed
  // For draft models: the pages they hold, in the target's KV cache or their own, their forwards, the rows of
  // these forwards, and the time spent in forwards and draws.
  int32_t kv_pages_held = 0;
  uint64_t forwards = 0, rows = 0, forward_ns = 0;
  // For the target: the sampling defaults, and the settings of generation_config.json that are not
  // applied.
  SamplingParams sampling_defaults;
  std::vector<std::string> generation_config_ignored;
  std::vector<int32_t> eos_tokens;  // for the target: each ends a request
  // For the target: the file of its chat template, or "refused: " and why chats are refused.
  std::string chat_template;
};

// kFailed: the device, or a rank, has failed, see Engine::failure().
enum class EngineState { kReady, kDraining, kFailed };
const char* engine_state_name(EngineState state);

struct EngineReport {
  EngineState state = EngineState::kReady;
  std::string device;  // "cuda:0 (NVIDIA H200)", "cpu (cpu-avx2)"
  std::string isa;     // of the host
  int32_t threads = 0;
  int32_t running = 0, waiting = 0;
  // Choices of requests; refused are requests.
  uint64_t admitted = 0, completed = 0, failed = 0, cancelled = 0, refused = 0;
  uint64_t deadline_misses = 0;  // failed choices that were past their deadline
  uint64_t preemptions = 0;      // a choice may be preempted several times
  uint64_t steps = 0, rows = 0, tokens = 0, kv_moves = 0;
  uint64_t uptime_ns = 0;
  uint64_t step_age_ns = 0;  // since the current step began; 0 when idle
};

// A choice of a request that runs or waits.
struct RequestReport {
  std::string id;       // the request's
  uint64_t number = 0;  // unique in the engine
  int32_t index = 0;    // of the choice
  bool is_running = false;
  std::string route = "off";
  uint64_t generation = 0;   // of the route's version; 0 = off
  bool is_drafting = false;  // its drafter has begun it and has not failed
  int32_t priority = 0;
  int32_t prompt_tokens = 0, output_tokens = 0, max_tokens = 0, kv_pages = 0;
  int32_t preemptions = 0;
  uint64_t age_ns = 0;  // since it was submitted
  int64_t drafted = 0, accepted = 0;
};
struct RequestList {
  int32_t n_running = 0, n_waiting = 0;
  std::vector<RequestReport> requests;  // the running ones first, then by their turn
};

// What each rank will hold, from the configuration and the headers of the files alone. Not in it: what
// grows with a step, and the executable.
struct MemoryPlan {
  struct Line {
    std::string what;
    std::vector<uint64_t> bytes;  // [ranks]
    std::string elsewhere = {};   // the device, where it is not the rank's
    std::string detail = {};      // of weights: "W4A16 g128, 4.13 bits a weight"
  };
  // How many pages of the target's KV cache would fit with a draft model shared by the ranks, on rank 0
  // alone, or on none of them, and all other models where they are. -1 = not possible.
  struct Placements {
    std::string draft_model;
    int32_t pages_shared = -1, pages_alone = -1, pages_elsewhere = -1;
    bool is_shared = false;  // what was chosen of the first two
  };
  std::vector<Line> lines;
  int32_t kv_pages = 0;
  std::vector<Placements> placements;  // empty without EngineOptions::rank_bytes_max
};

// What each rank holds, beside what was planned.
struct MemoryLine {
  std::string what;
  std::vector<uint64_t> held;     // [ranks]
  std::vector<uint64_t> planned;  // [ranks]; empty = it is not planned
  std::string detail = {};        // as in the plan
};

// What becomes of requests that wait or run with another version of the route than the one that a change
// gives to new requests: they keep theirs, attach to that one, or go on without drafts (drop). A request that
// would attach keeps its version when the new drafter cannot begin in the middle of its text, or when the new
// version promises less about texts. One that is just being admitted is not reached. With Replace::kStopFirst they
// cannot keep the version that stops: they go on without drafts, those that are just being admitted, too.
enum class RunningRequests { kKeep, kAttach, kDrop };

// What a candidate gets.
struct Traffic {
  int32_t share_percent = 0;  // of the new requests
  bool is_shadow = false;     // instead of a share
};

struct ChangeOptions {
  // A repeated id gets the first reply, or kInvalidArgument if the change differs; the last 256 that are
  // not empty are remembered.
  std::string request_id = {};
  // Of the version that is meant: of roll_back_route() the one that is live, else the candidate.
  // kFailedPrecondition when it is another one. 0 = whichever it is. Not for routes that are applied,
  // staged or deleted.
  uint64_t generation = 0;
  RunningRequests running = RunningRequests::kKeep;  // not for staging and traffic
  // Makes all checks, and the pair, and changes nothing. When the version before would stop first there may be no
  // room for the pair, so it is not made.
  bool dry_run = false;
};

// What a change of routes did, or would do.
struct RouteChange {
  // Of the version that is now live or candidate, or was aborted; for delete_route() the number of the
  // change. A version has the number of the change that made it.
  uint64_t generation = 0;
  bool unchanged = false;         // it was so already
  uint64_t memory_bytes_max = 0;  // that the version's drafter may hold; 0 = there is no version
  // What is taken at most while the change is made, in the memory that then has least left, and what that has: by
  // plan, so with all that every drafter may hold.
  uint64_t memory_peak_bytes = 0, memory_limit_bytes = 0;
  // Requests with other versions of the route that got this one, that went on without drafts, and that
  // kept theirs. Counted with dry_run, and where they could not only keep it.
  int32_t n_attached = 0, n_dropped = 0, n_kept = 0;
};

// What configure_routes() did, by the names of routes.
struct ConfiguredRoutes {
  std::vector<std::string> added, changed, removed;
};

// Progress of loading: `what` and a fraction in [0, 1].
using ProgressFn = std::function<void(const std::string& what, double fraction)>;

// "cpu", "cuda:N" or "auto": cuda:0 if it is available, otherwise the CPU; the log says why.
bool is_device_name(const std::string& name);

// Checks the values only, without looking at files, plugins or devices. The field of an error is
// the key's path in the configuration: "engine.step_tokens_max", "routes.NAME.draft_nodes_max".
// Engine::create(), apply_route() and check_options() make these checks first and return the same
// fields.
Status check_limits(const EngineOptions& options);
// The same for one route of an engine with these options.
Status check_route(const RouteOptions& route, const EngineOptions& options);

// Checks everything that needs no weights: options, the model's files, plugin manifests, pairs.
// Loads the plugins of the routes and makes their instances, so plugin code runs. With
// `devices: [cpu]` it also activates them. Call shut_down_plugins() afterwards, unless a plugin did
// not return within plugin_control_seconds (n_late_works()): then the process must end by _exit().
// Returns what the ranks would hold.
Result<MemoryPlan> check_options(const EngineOptions& options);

// [control] Calls the deinit() of every plugin that has no instance left. Call it at process exit,
// after the last engine. The code stays mapped.
void shut_down_plugins();

// A prompt as the model reads it.
struct RenderedPrompt {
  std::string text;
  std::vector<int32_t> tokens;
};

// An admitted request.
struct Ticket {
  std::string id;           // the client's, or generated; may be reused after the end
  uint64_t number = 0;      // unique in the engine
  SamplingParams sampling;  // as applied, with the model's defaults
  std::vector<int32_t> prompt_tokens;
  // When asked for: the text as given, the chat as rendered, or what the ids say, special tokens
  // included.
  std::string prompt_text;
};

class Engine {
 public:
  // [control] Loads the models and every route. Fails when the default route cannot be served, when there
  // is too little memory for the models and for what the drafters of all routes may take, or when several
  // ranks have CUDA devices and a plugin's call has not returned. Otherwise a route that cannot be served is
  // reported as refused, as is a draft model that cannot be loaded, with the routes that need it.
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options,
                                                const ProgressFn& progress);
  ~Engine();  // cancels what is left, joins the step thread

  // [any] Admits a request. kInvalidArgument with the field of Request, kExhausted when the queue
  // is full, kDeadlineExceeded when the deadline has already passed, kUnavailable while draining.
  // After an error the sink is never called; otherwise it may be called before this returns.
  Result<Ticket> submit(const Request& request, Sink sink);
  // [any] The checks that submit() makes before it renders the prompt, for callers that queue
  // requests: an invalid one need not wait.
  Status check(const Request& request) const;
  // [any] Counts a request that was refused before it could be submitted.
  void count_refused();
  // [any] The prompt that submit() would give the model for the text or the chat of `request`.
  // Reads no other field. For clients that debug a template, or want to send the same prompt as
  // ids.
  Result<RenderedPrompt> render(const Request& request) const;
  // [any] The token ids of a text.
  Result<std::vector<int32_t>> encode(const std::string& prompt) const;
  // [any] The text of ids, special tokens included. Ids without a token say nothing.
  std::string decode(std::span<const int32_t> tokens) const;
  // [any] The bytes that a token adds to a text, often not whole characters. They live as long as the engine.
  std::string_view token_bytes(int32_t token) const;
  // [any] Takes effect within one step; false when the request has ended.
  bool cancel(uint64_t number);
  // [any] Cancels the live request that has this id.
  bool cancel(const std::string& request_id);
  // [any] Evicts every cached prefix that no request uses; false when no step ended in time.
  bool clear_prefix_cache();
  // [any] Adds a route, or replaces the one with its name, while requests run. Rescans the plugin
  // directories, loads, checks and activates the pair on this thread while steps go on, and swaps
  // it in between two steps. Requests that were admitted before finish on the old pair, unless `how` says
  // otherwise; later ones get the new pair. After an error nothing has changed; its field is "request_id",
  // "plugins", one of ChangeOptions, or begins with "routes.NAME". kUnavailable when the change cannot be
  // written to the state directory. An equal definition made of the same bundles leaves the live route
  // alone; files that a plugin's configuration names are not compared. kFailedPrecondition while the
  // route has a candidate, see stage_route(). Changes run one at a time. May block until a step ends, so
  // the step thread must not call it.
  Result<RouteChange> apply_route(const RouteOptions& route, const ChangeOptions& how = {});
  // [any] Removes a route for new requests; those that have it finish. kFailedPrecondition for
  // "off" and the default route, kNotFound for unknown names.
  Result<RouteChange> delete_route(const std::string& name, const ChangeOptions& how = {});
  // [any] A change in steps, with a way back. stage_route() makes a version beside the live one, its
  // candidate, which gets no request yet; the same errors as apply_route(), and kFailedPrecondition when
  // there is a candidate already. set_traffic() gives it so many of a hundred new requests, chosen by a
  // hash of their numbers; or makes it a shadow, which is shown what the requests of the live version do, on a
  // thread of its own, and whose drafts are only compared with their text. A change that ends a shadow does so first; that
  // stays done when the change then fails. promote_route() makes it live; for RouteOptions::probation_seconds of the new
  // version the one before is kept, and roll_back_route() makes that live again, as does the new one's
  // breaker when it opens. abort_route() gives up the candidate, as does its own breaker. Requests keep
  // the version that they were admitted with, unless `how` says otherwise. kNotFound for unknown routes,
  // kFailedPrecondition where there is no candidate or no version to go back to. What breakers do waits, as
  // all changes do, until no other change is being made. Going back and giving up are not refused when the
  // state directory cannot be written; an event and the log say so.
  Result<RouteChange> stage_route(const RouteOptions& route, const ChangeOptions& how = {});
  Result<RouteChange> set_traffic(const std::string& name, const Traffic& traffic,
                                  const ChangeOptions& how = {});
  Result<RouteChange> promote_route(const std::string& name, const ChangeOptions& how = {});
  Result<RouteChange> abort_route(const std::string& name, const ChangeOptions& how = {});
  Result<RouteChange> roll_back_route(const std::string& name, const ChangeOptions& how = {});
  // [any] Takes the routes of an edited configuration, all or none: those whose definition is another one than
  // in the configuration before are added, replaced at once, or removed. The others stay, also when they were
  // changed since. Errors as apply_route(). Of `how` only request_id and dry_run; a request_id that comes
  // again is no repetition here.
  Result<ConfiguredRoutes> configure_routes(const std::vector<RouteOptions>& routes,
                                            const ChangeOptions& how = {});
  // [any] Discovers plugins again and loads the library of this one now, before a route needs it; also one
  // that was retired. An id means the newest version, ID@VERSION that version. kNotFound, or why it is refused.
  Result<PluginReport> load_plugin(const std::string& plugin_id,
                                   const std::string& request_id = "");
  // [any] Refuses the plugin for new versions of routes until it is loaded again, its files change or the
  // engine ends. kFailedPrecondition while a live, candidate or previous version uses it, or when it is refused
  // for another reason.
  Status retire_plugin(const std::string& plugin_id, const std::string& request_id = "");
  // [any] At most n_max of the choices that run and wait. Waits for a step to end: kDeadlineExceeded if none
  // does.
  Result<RequestList> requests(size_t n_max) const;
  // [any] The last events with larger numbers than `after`, at most n_max, oldest first. The engine holds
  // some 1000; a reader who finds a gap in the numbers was too slow.
  std::vector<EngineEvent> events(uint64_t after, size_t n_max) const;
  // [any] Waits until there is an event with a larger number. The largest number, also at the timeout.
  uint64_t wait_event(uint64_t after, uint64_t timeout_ms) const;
  // [any] What the last steps did with drafts, for somebody who looks again and again: steps record it only until
  // two seconds after the last call, so the first call finds nothing. One text is followed for all callers: by
  // default the newest that drafts, until it ends or drafts no more while another does.
  WatchedDrafts watch_drafts() const;
  // [any] Follows the running text with this number until it ends; 0 = the default again.
  void follow_drafts(uint64_t number);
  // [any] The definition of a route, live or refused, else its candidate's. kNotFound for unknown names,
  // kFailedPrecondition for "off".
  Result<RouteOptions> route(const std::string& name) const;
  // [any] Refuses new requests and changes of routes from now on.
  void start_drain();
  // [any] An error once the device has failed or a rank is lost: every request ends with it, new ones are
  // refused, and this process can compute nothing more.
  Status failure() const;
  // [any] Waits until no request runs or waits; false at the timeout.
  bool wait_idle(uint64_t timeout_ms);

  // [any] Snapshots without side effects. plugins(): the versions that new routes get; a live route
  // may run an older one. routes(): "off", the table with live, candidate and previous versions, then the
  // draining ones.
  std::vector<PluginReport> plugins() const;
  std::vector<RouteReport> routes() const;
  ModelReport model() const;
  std::vector<ModelReport> draft_models() const;
  EngineReport status() const;
  std::vector<MemoryLine> memory() const;
  // The same as metrics, and histograms of times.
  std::vector<MetricFamily> metrics() const;

 private:
  Engine();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specd
