#include "core/engine.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_set>

#include "core/base/clock.h"
#include "core/exec/route_builder.h"
#include "core/exec/services.h"
#include "core/exec/step.h"
#include "core/kv/page_pool.h"
#include "core/model/transformer.h"
#include "core/spec/budget.h"
#include "core/text/utf8.h"

namespace specd {
namespace {

constexpr uint64_t kDefaultKvBytesMax = uint64_t{1} << 30;
constexpr size_t kStopsMax = 16;
constexpr size_t kStopBytesMax = 256;
constexpr size_t kRequestIdBytesMax = 128;

kernels::DType kernel_dtype(KvDType dtype) {
  switch (dtype) {
    case KvDType::kF32:
      return kernels::DType::kF32;
    case KvDType::kF16:
      return kernels::DType::kF16;
    case KvDType::kBF16:
      return kernels::DType::kBF16;
  }
  return kernels::DType::kBF16;
}

const char* dtype_name(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kF32:
      return "f32";
    case kernels::DType::kF16:
      return "f16";
    case kernels::DType::kBF16:
      return "bf16";
  }
  return "unknown";
}

uint32_t abi_guarantee(Guarantee guarantee) {
  switch (guarantee) {
    case Guarantee::kNone:
      return SPECD_GUARANTEE_NONE;
    case Guarantee::kLaw:
      return SPECD_GUARANTEE_LAW;
    case Guarantee::kIdentical:
      return SPECD_GUARANTEE_IDENTICAL;
  }
  return SPECD_GUARANTEE_IDENTICAL;
}

const char* guarantee_text(Guarantee guarantee) {
  switch (guarantee) {
    case Guarantee::kNone:
      return "none";
    case Guarantee::kLaw:
      return "law";
    case Guarantee::kIdentical:
      return "identical";
  }
  return "unknown";
}

RouteSpec route_spec(const RouteOptions& route, const EngineOptions& options) {
  return {.name = route.name,
          .drafter_plugin = route.drafter.plugin,
          .drafter_factory = route.drafter.factory,
          .drafter_config = route.drafter.config,
          .verifier_plugin = route.verifier.plugin,
          .verifier_factory = route.verifier.factory,
          .verifier_config = route.verifier.config,
          .guarantee = abi_guarantee(route.guarantee),
          .draft_nodes_max = route.draft_nodes_max,
          .max_sequences = options.max_sequences};
}

Status out_of_range(const std::string& field, const std::string& expected,
                    const std::string& found) {
  return Status(Code::kInvalidArgument, field + ": expected " + expected + ", found " + found);
}

static_assert(EngineLimits::kDraftNodes == SPECD_MAX_TREE_NODES);

Status check_limits(const EngineOptions& options) {
  const auto in = [](const char* field, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return Status();
    return out_of_range(field, std::to_string(low) + " to " + std::to_string(high),
                        std::to_string(value));
  };
  SPECD_OK_OR_RETURN(
      in("engine.max_sequences", options.max_sequences, 1, EngineLimits::kSequences));
  SPECD_OK_OR_RETURN(in("engine.step_tokens_max", options.step_tokens_max, options.max_sequences,
                        EngineLimits::kStepTokens));
  SPECD_OK_OR_RETURN(in("engine.queue_max", options.queue_max, 1, EngineLimits::kQueue));
  std::set<std::string> names{"off"};
  for (const RouteOptions& route : options.routes) {
    if (route.name.empty() || !names.insert(route.name).second) {
      return Status(Code::kInvalidArgument,
                    "routes: name '" + route.name + "' is empty, reserved or given twice");
    }
    SPECD_OK_OR_RETURN(in(("routes." + route.name + ".draft_nodes_max").c_str(),
                          route.draft_nodes_max, 1, EngineLimits::kDraftNodes));
    if (!route.model.empty() && route.model != options.model.name) {
      return Status(Code::kInvalidArgument, "routes." + route.name + ".model: expected '" +
                                                options.model.name + "', found '" + route.model +
                                                "'");
    }
  }
  if (!names.contains(options.default_route)) {
    return Status(Code::kInvalidArgument,
                  "default_route: no route is called '" + options.default_route + "'");
  }
  return Status();
}

// What plugins learn about the target; owns the strings that `info` points at.
struct TargetFacts {
  std::string model_id, architecture;
  Sha256Digest tokenizer_sha256{};
  specd_target_info info{};

  void fill(const ModelOptions& options, const ModelConfig& config, const Tokenizer& tokenizer) {
    model_id = options.name;
    architecture = config.architecture;
    tokenizer_sha256 = tokenizer.sha256();
    info.struct_size = sizeof(info);
    info.vocab_size = static_cast<uint32_t>(config.vocab_size);
    info.hidden_size = static_cast<uint32_t>(config.hidden_size);
    info.n_layers = static_cast<uint32_t>(config.n_layers);
    info.n_heads = static_cast<uint32_t>(config.n_heads);
    info.n_kv_heads = static_cast<uint32_t>(config.n_kv_heads);
    info.head_dim = static_cast<uint32_t>(config.head_dim);
    info.max_positions = static_cast<uint32_t>(config.max_positions);
    info.bos_token = config.bos_token;
    info.eos_token = config.eos_tokens.empty() ? -1 : config.eos_tokens.front();
    info.norm_eps = static_cast<float>(config.rms_norm_eps);
    info.model_id = model_id.c_str();
    info.architecture = architecture.c_str();
    info.tokenizer_sha256 = tokenizer_sha256.data();
  }
};

Status check_vocabulary(const ModelOptions& model, const ModelConfig& config,
                        const Tokenizer& tokenizer) {
  if (tokenizer.vocab_size() <= config.vocab_size) return Status();
  return Status(Code::kDataLoss, model.path + ": tokenizer.json has ids up to " +
                                     std::to_string(tokenizer.vocab_size() - 1) +
                                     ", config.json says vocab_size " +
                                     std::to_string(config.vocab_size));
}

}  // namespace

Status check_options(const EngineOptions& options) {
  SPECD_OK_OR_RETURN(check_limits(options));
  SPECD_TRY(const auto device, CpuDevice::create(options.isa, 1));
  SPECD_TRY(const ModelConfig config, load_model_config(options.model.path));
  SPECD_TRY(const auto tokenizer, Tokenizer::load(options.model.path + "/tokenizer.json"));
  SPECD_OK_OR_RETURN(check_vocabulary(options.model, config, *tokenizer));
  SPECD_TRY(const SafetensorsFile weights,
            SafetensorsFile::open(options.model.path + "/model.safetensors"));
  SPECD_OK_OR_RETURN(check_tensors(weights, config));
  if (options.routes.empty()) return Status();
  // Plugins keep the host for ever, so these services must outlive this call.
  static kernels::WorkerPool pool(1);
  static kernels::CpuStream stream(pool);
  static Services services(stream, kernels::cpu_ops(kernels::best_isa()), config.vocab_size);
  static const specd_host* const host = make_host(&services);
  SPECD_TRY(const auto registry,
            PluginRegistry::open({.directories = options.plugin_directories,
                                  .cache_directory = options.plugin_cache_directory},
                                 host));
  TargetFacts target;
  target.fill(options.model, config, *tokenizer);
  for (const RouteOptions& route : options.routes) {
    const auto made = create_route(*registry, route_spec(route, options), target.info);
    if (!made.ok()) return made.status().with_context("routes." + route.name);
  }
  return Status();
}

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

Engine::Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options, ProgressFn progress) {
  SPECD_OK_OR_RETURN(check_limits(options));
  std::unique_ptr<Engine> engine(new Engine());
  engine->impl_ = std::make_unique<Impl>();
  engine->impl_->options = options;
  SPECD_OK_OR_RETURN(engine->impl_->load(progress));
  engine->impl_->thread = std::thread([impl = engine->impl_.get()] { impl->loop(); });
  return engine;
}

Engine::~Engine() {
  if (impl_ == nullptr || !impl_->thread.joinable()) return;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = impl_->draining = true;
  }
  impl_->wake.notify_all();
  impl_->thread.join();
}

Status Engine::Impl::load(const ProgressFn& progress) {
  const ModelOptions& wanted = options.model;
  const auto say = [&](const std::string& what, double fraction) {
    if (progress) progress(what, fraction);
  };
  SPECD_TRY(device, CpuDevice::create(options.isa, options.threads));
  SPECD_TRY(config, load_model_config(wanted.path));
  SPECD_TRY(tokenizer, Tokenizer::load(wanted.path + "/tokenizer.json"));
  SPECD_OK_OR_RETURN(check_vocabulary(wanted, config, *tokenizer));
  target.fill(wanted, config, *tokenizer);

  int32_t nodes_max = 0;
  for (const RouteOptions& route : options.routes)
    nodes_max = std::max(nodes_max, route.draft_nodes_max);
  const int64_t logits_rows = int64_t{options.max_sequences} * (1 + nodes_max);
  SPECD_TRY(model,
            Transformer::load(
                *device, wanted.path, config, options.step_tokens_max,
                static_cast<int32_t>(std::min<int64_t>(logits_rows, options.step_tokens_max)),
                [&](double fraction) { say("weights of " + wanted.name, fraction); }));

  const kernels::DType kv_dtype = kernel_dtype(wanted.kv_dtype);
  const uint64_t page_bytes = KvStore::page_bytes(config, kv_dtype);
  const int64_t pages_useful =
      int64_t{options.max_sequences} * pages_for(int64_t{config.max_positions} + nodes_max);
  const uint64_t limit = wanted.kv_bytes_max == 0 ? kDefaultKvBytesMax : wanted.kv_bytes_max;
  const int64_t n_pages = std::min<int64_t>(pages_useful, static_cast<int64_t>(limit / page_bytes));
  if (n_pages < 1) {
    return Status(Code::kInvalidArgument, "model.kv.bytes_max: " + std::to_string(limit) +
                                              " bytes hold no page; one takes " +
                                              std::to_string(page_bytes));
  }
  SPECD_TRY(KvStore store,
            KvStore::create(*device, config, kv_dtype, static_cast<int32_t>(n_pages)));
  kv = std::make_unique<KvStore>(std::move(store));
  pages = std::make_unique<PagePool>(static_cast<int32_t>(n_pages));
  pages_free = pages->n_free();
  for (int32_t slot = options.max_sequences - 1; slot >= 0; --slot) free_slots.push_back(slot);

  say("plugins", 0);
  SPECD_OK_OR_RETURN(load_routes());
  runner = std::make_unique<StepRunner>(*device, *model, *kv);
  say("ready", 1);
  return Status();
}

Status Engine::Impl::load_routes() {
  services = std::make_unique<Services>(device->stream(), device->ops(), config.vocab_size);
  const specd_host* host = make_host(services.get());
  SPECD_TRY(registry, PluginRegistry::open({.directories = options.plugin_directories,
                                            .cache_directory = options.plugin_cache_directory},
                                           host));
  std::vector<uint32_t> taps;
  for (const RouteOptions& wanted : options.routes) {
    const RouteSpec spec = route_spec(wanted, options);
    const auto make = [&]() -> Status {
      SPECD_TRY(std::unique_ptr<LiveRoute> route, create_route(*registry, spec, target.info));
      SPECD_OK_OR_RETURN(activate_route(*route, spec));
      const specd_drafter_caps& caps = route->drafter->caps();
      for (uint32_t i = 0; i < caps.n_taps; ++i) {
        const auto found = std::find(taps.begin(), taps.end(), caps.taps[i]);
        route->tap_index.push_back(static_cast<size_t>(found - taps.begin()));
        if (found == taps.end()) taps.push_back(caps.taps[i]);
      }
      routes.emplace(wanted.name, std::move(route));
      return Status();
    };
    if (const Status status = make(); !status.ok()) {
      if (wanted.name == options.default_route) {
        return status.with_context("default route '" + wanted.name + "'");
      }
      log(LogLevel::kError, "route " + wanted.name + " cannot be served: " + status.to_string());
      refused_routes[wanted.name] = status.to_string();
    }
  }
  return model->set_taps(std::move(taps));
}

// ---- clients' side -----------------------------------------------------------------------------

int32_t Engine::Impl::pages_needed(int32_t n_prompt, int32_t max_tokens,
                                   const LiveRoute* route) const {
  const int32_t nodes = route == nullptr ? 0 : route->draft_nodes_max;
  return pages_for(int64_t{n_prompt} + max_tokens + nodes);
}

Result<std::vector<int32_t>> Engine::Impl::encode(const std::string& prompt) const {
  auto encoded = tokenizer->encode(prompt, true);
  if (!encoded.ok()) return encoded.status().with_context("prompt");
  return encoded;
}

Result<std::string> Engine::Impl::admit(const Request& request, Sink sink) {
  const SamplingParams& sampling = request.sampling;
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0 ||
      (sampling.temperature > 0 && sampling.temperature < 0.01f) || sampling.temperature > 100) {
    return out_of_range("temperature", "0 (greedy) or 0.01 to 100",
                        std::to_string(sampling.temperature));
  }
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return out_of_range("top_p", "more than 0, at most 1", std::to_string(sampling.top_p));
  }
  if (sampling.top_k < 0)
    return out_of_range("top_k", "0 (off) or more", std::to_string(sampling.top_k));
  if (request.max_tokens < 1 || request.max_tokens > config.max_positions) {
    return out_of_range("max_tokens", "1 to " + std::to_string(config.max_positions),
                        std::to_string(request.max_tokens));
  }
  if (request.stop.size() > kStopsMax) {
    return out_of_range("stop", "at most " + std::to_string(kStopsMax) + " strings",
                        std::to_string(request.stop.size()));
  }
  for (const std::string& stop : request.stop) {
    if (stop.empty() || stop.size() > kStopBytesMax) {
      return out_of_range("stop", "strings of 1 to " + std::to_string(kStopBytesMax) + " bytes",
                          std::to_string(stop.size()) + " bytes");
    }
    if (utf8_error_offset(stop) != std::string_view::npos) {
      return Status(Code::kInvalidArgument, "stop: a string is not UTF-8");
    }
  }
  const auto check_ids = [&](const char* field, const std::vector<int32_t>& ids) -> Status {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= 0 && ids[i] < config.vocab_size) continue;
      return out_of_range(std::string(field) + "[" + std::to_string(i) + "]",
                          "a token id from 0 to " + std::to_string(config.vocab_size - 1),
                          std::to_string(ids[i]));
    }
    return Status();
  };
  SPECD_OK_OR_RETURN(check_ids("stop_tokens", request.stop_tokens));
  if (request.stop_tokens.size() > 1024) {
    return out_of_range("stop_tokens", "at most 1024 ids",
                        std::to_string(request.stop_tokens.size()));
  }
  if (request.id.size() > kRequestIdBytesMax) {
    return out_of_range("request_id", "at most " + std::to_string(kRequestIdBytesMax) + " bytes",
                        std::to_string(request.id.size()));
  }

  Waiting next;
  const std::string& name = request.route.empty() ? options.default_route : request.route;
  if (name != "off") {
    const auto found = routes.find(name);
    if (found == routes.end()) {
      const auto refused = refused_routes.find(name);
      return Status(Code::kInvalidArgument,
                    refused == refused_routes.end()
                        ? "route: no route is called '" + name + "'"
                        : "route: '" + name + "' cannot be served: " + refused->second);
    }
    next.route = found->second.get();
  }

  std::vector<int32_t> prompt;
  if (request.prompt_tokens.has_value()) {
    if (!request.prompt.empty()) {
      return Status(Code::kInvalidArgument, "prompt: give text or token ids, not both");
    }
    SPECD_OK_OR_RETURN(check_ids("prompt_tokens", *request.prompt_tokens));
    prompt = *request.prompt_tokens;
  } else {
    SPECD_TRY(prompt, encode(request.prompt));
  }
  const auto n_prompt = static_cast<int64_t>(prompt.size());
  if (n_prompt < 1)
    return Status(Code::kInvalidArgument, "prompt: expected at least one token, found none");
  if (n_prompt + request.max_tokens > config.max_positions) {
    return Status(Code::kInvalidArgument,
                  "max_tokens: " + std::to_string(n_prompt) + " prompt tokens and " +
                      std::to_string(request.max_tokens) + " new ones exceed the context of " +
                      std::to_string(config.max_positions) +
                      "; shorten the prompt or ask for less");
  }
  next.pages = pages_needed(static_cast<int32_t>(n_prompt), request.max_tokens, next.route);
  if (next.pages > pages->n_pages()) {
    return Status(Code::kInvalidArgument,
                  "max_tokens: the request needs " + std::to_string(next.pages) +
                      " KV pages, the cache has " + std::to_string(pages->n_pages()) +
                      "; raise model.kv.bytes_max or ask for less");
  }

  Request named = request;
  std::string id;
  {
    // One critical section: a cancel that comes after the id is known finds the request.
    const std::lock_guard lock(mutex);
    if (draining) return Status(Code::kUnavailable, "the daemon is shutting down");
    if (n_queued >= options.queue_max) {
      return Status(Code::kExhausted, "the queue is full: " + std::to_string(n_queued) +
                                          " requests wait (engine.queue_max)");
    }
    const uint64_t number = next_number++;
    id = named.id;
    // A client may have chosen a name that looks like ours.
    for (uint64_t n = number; id.empty() || (named.id.empty() && live_ids.contains(id)); ++n) {
      id = "req-" + std::to_string(n);
    }
    named.id = id;
    if (!live_ids.insert(id).second) {
      return Status(Code::kInvalidArgument, "request_id: '" + id + "' is running already");
    }
    next.request = std::make_unique<Sequence>(number, std::move(named), std::move(prompt),
                                              config.eos_tokens, tokenizer, std::move(sink));
    next.request->submitted_ns = now_ns();
    if (next.route != nullptr) ++next.route->counters.requests;
    ++n_admitted;
    ++n_queued;
    ++n_unfinished;
    inbox.push_back(std::move(next));
  }
  wake.notify_one();
  return id;
}

Result<std::string> Engine::submit(const Request& request, Sink sink) {
  Result<std::string> id = impl_->admit(request, std::move(sink));
  if (!id.ok()) ++impl_->n_refused;
  return id;
}

Result<std::vector<int32_t>> Engine::encode(const std::string& prompt) const {
  return impl_->encode(prompt);
}

void Engine::cancel(const std::string& request_id) {
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->live_ids.contains(request_id)) return;
    impl_->cancels.insert(request_id);
  }
  impl_->wake.notify_one();
}

void Engine::start_drain() {
  const std::lock_guard lock(impl_->mutex);
  impl_->draining = true;
}

bool Engine::wait_idle(uint64_t timeout_ms) {
  std::unique_lock lock(impl_->mutex);
  return impl_->idle.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                              [this] { return impl_->n_unfinished == 0; });
}

// ---- step thread -------------------------------------------------------------------------------

void Engine::Impl::loop() {
  while (true) {
    std::vector<Waiting> arrived;
    std::unordered_set<std::string> unwanted;
    bool stop = false;
    {
      std::unique_lock lock(mutex);
      wake.wait(lock, [&] {
        return stopping || !inbox.empty() || !cancels.empty() || !running.empty() ||
               !waiting.empty();
      });
      arrived.swap(inbox);
      unwanted.swap(cancels);
      stop = stopping;
    }
    for (Waiting& next : arrived) waiting.push_back(std::move(next));
    if (!unwanted.empty()) cancel_listed(unwanted);
    if (stop) {
      cancel_all();
      return;
    }
    step();
  }
}

void Engine::Impl::step() {
  std::vector<RunningView> running_views;
  for (const ActiveSequence& sequence : running) {
    const int32_t nodes = sequence.drafts()
                              ? draft_budget(sequence.route->draft_nodes_max,
                                             sequence.request->n_left(), sequence.route->chain())
                              : 0;
    running_views.push_back({.n_pending = sequence.n_pending(), .draft_nodes_max = nodes});
  }
  std::vector<WaitingView> waiting_views;
  const size_t places = static_cast<size_t>(options.max_sequences) - running.size();
  for (const Waiting& next : waiting) {
    if (waiting_views.size() == places) break;
    waiting_views.push_back({.pages = next.pages, .n_pending = next.request->size()});
  }
  const StepPlan plan = plan_step(
      {.step_tokens_max = options.step_tokens_max, .max_sequences = options.max_sequences},
      running_views, waiting_views, pages->n_free());
  for (int32_t i = 0; i < plan.n_admitted; ++i) {
    start(std::move(waiting.front()));
    waiting.pop_front();
  }
  if (plan.n_admitted > 0) {
    const std::lock_guard lock(mutex);
    n_queued -= plan.n_admitted;
  }
  n_running = static_cast<int32_t>(running.size());
  pages_free = pages->n_free();
  if (plan.items.empty()) return;

  const StepCounters counters = runner->run(plan, running);
  ++n_steps;
  n_rows += counters.rows;
  n_tokens += counters.tokens;
  n_kv_moves += counters.kv_moves;
  for (ActiveSequence& sequence : running) {
    if (sequence.request->finish() == FinishReason::kNone) {
      sequence.request->send();
    } else {
      retire(sequence);
    }
  }
  std::erase_if(running, [](const ActiveSequence& sequence) { return sequence.slot < 0; });
}

void Engine::Impl::start(Waiting next) {
  ActiveSequence sequence;
  sequence.request = std::move(next.request);
  sequence.request->started_ns = now_ns();
  sequence.route = next.route;
  sequence.slot = free_slots.back();
  free_slots.pop_back();
  SPECD_CHECK(pages->take(next.pages, sequence.table.pages), "the plan admits only what fits");
  running.push_back(std::move(sequence));
}

// Gives everything back, then tells the client: who sees the last event finds the books balanced.
void Engine::Impl::retire(ActiveSequence& sequence) {
  runner->end(sequence, sequence.request->finish() == FinishReason::kCancelled
                            ? uint32_t{SPECD_END_CANCELLED}
                            : uint32_t{SPECD_END_FINISHED});
  pages->give_back(sequence.table.pages);
  pages_free = pages->n_free();
  free_slots.push_back(sequence.slot);
  sequence.slot = -1;
  --n_running;
  finish(*sequence.request);
}

void Engine::Impl::finish(Sequence& request) {
  switch (request.finish()) {
    case FinishReason::kCancelled:
      ++n_cancelled;
      break;
    case FinishReason::kError:
      ++n_failed;
      break;
    default:
      ++n_completed;
      break;
  }
  {
    // Before the last event: who has seen it may use the id again.
    const std::lock_guard lock(mutex);
    live_ids.erase(request.request().id);
    cancels.erase(request.request().id);
  }
  request.send();
  {
    const std::lock_guard lock(mutex);
    --n_unfinished;
  }
  idle.notify_all();
}

void Engine::Impl::cancel_listed(const std::unordered_set<std::string>& ids) {
  const Status why(Code::kCancelled, "the request was cancelled");
  std::erase_if(waiting, [&](Waiting& next) {
    if (!ids.contains(next.request->request().id)) return false;
    next.request->fail(FinishReason::kCancelled, why);
    {
      const std::lock_guard lock(mutex);
      --n_queued;
    }
    finish(*next.request);
    return true;
  });
  for (ActiveSequence& sequence : running) {
    if (!ids.contains(sequence.request->request().id)) continue;
    sequence.request->fail(FinishReason::kCancelled, why);
    retire(sequence);
  }
  std::erase_if(running, [](const ActiveSequence& sequence) { return sequence.slot < 0; });
}

void Engine::Impl::cancel_all() {
  std::unordered_set<std::string> everything;
  for (const Waiting& next : waiting) everything.insert(next.request->request().id);
  for (const ActiveSequence& sequence : running) everything.insert(sequence.request->request().id);
  cancel_listed(everything);
}

// ---- reports -----------------------------------------------------------------------------------

std::vector<PluginReport> Engine::plugins() const {
  std::vector<PluginReport> reports;
  for (const BundleInfo& bundle : impl_->registry->list()) {
    PluginReport report{.id = bundle.id,
                        .version = bundle.version,
                        .license = bundle.license,
                        .directory = bundle.directory,
                        .sha256 = bundle.sha256,
                        .state = {},
                        .reason = bundle.reason,
                        .factories = {}};
    switch (bundle.state) {
      case BundleInfo::State::kDiscovered:
        report.state = "discovered";
        break;
      case BundleInfo::State::kLoaded:
        report.state = "loaded";
        break;
      case BundleInfo::State::kRefused:
        report.state = "refused";
        break;
    }
    for (const FactoryInfo& factory : bundle.factories) {
      report.factories.emplace_back(factory.id, factory.kind);
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

std::vector<RouteReport> Engine::routes() const {
  std::vector<RouteReport> reports;
  RouteReport off;
  off.name = "off";
  off.model = impl_->options.model.name;
  off.guarantee = "identical";
  off.state = "live";
  off.is_default = impl_->options.default_route == "off";
  reports.push_back(off);
  for (const RouteOptions& wanted : impl_->options.routes) {
    RouteReport report;
    report.name = wanted.name;
    report.model = impl_->options.model.name;
    report.drafter = wanted.drafter.plugin;
    report.verifier = wanted.verifier.plugin;
    report.guarantee = guarantee_text(wanted.guarantee);
    report.is_default = wanted.name == impl_->options.default_route;
    const auto live = impl_->routes.find(wanted.name);
    if (live == impl_->routes.end()) {
      report.state = "refused";
      report.reason = impl_->refused_routes.at(wanted.name);
    } else {
      const LiveRoute& route = *live->second;
      report.state = "live";
      report.draft_nodes_max = route.draft_nodes_max;
      report.requests = route.counters.requests;
      report.steps = route.counters.steps;
      report.drafted = route.counters.drafted;
      report.accepted = route.counters.accepted;
      report.rejected = route.counters.rejected;
      report.discarded = route.counters.discarded;
      report.cut = route.counters.cut;
      report.lost = route.counters.sequences_lost;
      report.last_problem = route.last_problem.get();
      report.propose_calls = route.drafter->propose_stats.calls;
      report.propose_ns = route.drafter->propose_stats.total_ns;
      report.propose_failures = route.drafter->propose_stats.failures;
      report.verify_calls = route.verifier->verify_stats.calls;
      report.verify_ns = route.verifier->verify_stats.total_ns;
      report.verify_failures = route.verifier->verify_stats.failures;
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

ModelReport Engine::model() const {
  const Impl& m = *impl_;
  ModelReport report;
  report.name = m.options.model.name;
  report.path = m.options.model.path;
  report.architecture = m.config.architecture;
  report.dtype = dtype_name(m.model->weights_dtype());
  report.kv_dtype = dtype_name(kernel_dtype(m.options.model.kv_dtype));
  report.vocab_size = m.config.vocab_size;
  report.n_layers = m.config.n_layers;
  report.hidden_size = m.config.hidden_size;
  report.max_positions = m.config.max_positions;
  report.parameters = m.model->parameters();
  report.weight_bytes = m.model->weight_bytes();
  report.kv_bytes = m.kv->bytes();
  report.kv_pages_total = m.kv->n_pages();
  report.kv_pages_free = m.pages_free;
  report.page_tokens = kernels::kPageTokens;
  return report;
}

EngineReport Engine::status() const {
  Impl& m = *impl_;
  EngineReport report;
  {
    const std::lock_guard lock(m.mutex);
    report.state = m.draining ? "draining" : "ready";
    report.waiting = m.n_queued;
  }
  report.isa = m.device->ops().name;
  report.threads = m.device->threads();
  report.running = m.n_running;
  report.admitted = m.n_admitted;
  report.completed = m.n_completed;
  report.failed = m.n_failed;
  report.cancelled = m.n_cancelled;
  report.refused = m.n_refused;
  report.steps = m.n_steps;
  report.rows = m.n_rows;
  report.tokens = m.n_tokens;
  report.kv_moves = m.n_kv_moves;
  report.uptime_ns = now_ns() - m.started_ns;
  return report;
}

std::vector<MemoryLine> Engine::memory() const {
  const Impl& m = *impl_;
  std::vector<MemoryLine> lines{
      {"weights of " + m.options.model.name, m.model->weight_bytes()},
      {"KV cache, " + std::to_string(m.kv->n_pages()) + " pages of " +
           std::to_string(kernels::kPageTokens) + " tokens",
       m.kv->bytes()},
      {"activations", m.model->activation_bytes()},
  };
  for (const auto& [name, route] : m.routes) {
    lines.push_back(
        {"drafter of route " + name + " (limit)", route->drafter->grant().memory_bytes_max});
  }
  return lines;
}

}  // namespace specd
