#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <set>

#include "core/device/cuda_device.h"
#include "core/base/quote.h"
#include "core/base/run_within.h"
#include "core/base/words.h"
#include "core/engine/devices.h"
#include "core/engine/memory_plan.h"
#include "core/engine/options.h"
#include "core/engine/shared_models.h"
#include "core/engine/target.h"
#include "core/services/model.h"
#include "core/services/directory.h"
#include "core/model/checkpoint.h"

namespace specd {

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

const char* kv_dtype_name(KvDType dtype) {
  switch (dtype) {
    case KvDType::kF32:
      return "f32";
    case KvDType::kF16:
      return "f16";
    case KvDType::kBF16:
      return "bf16";
    case KvDType::kF8E4M3:
      return "f8e4m3";
    case KvDType::kInt8:
      return "int8";
  }
  return "unknown";
}

PluginRegistry::Options registry_options(const EngineOptions& options) {
  PluginRegistry::Options made{.directories = options.plugin_directories,
                               .cache_directory = options.plugin_cache_directory,
                               .config_directory = options.config_directory};
  if (const auto& approved = options.approved_plugins; approved.has_value()) {
    made.approved = {.sha256 = approved->sha256, .keys = approved->keys};
  }
  return made;
}

namespace {

// Where it is installed: beside the daemon, or whatever else has the engine.
std::string runner_program() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path() / "specd-runner").string();
}

}  // namespace

RouteTerms route_terms(const EngineOptions& options) {
  return {.is_strict = options.numerics != Numerics::kFast,
          .max_sequences = options.max_sequences,
          .step_rows_max = options.step_tokens_max,
          // It ends before the work that waits for it is late.
          .process = {.program = runner_program(),
                      .registry = registry_options(options),
                      .isa = options.isa,
                      .bf16 = options.numerics == Numerics::kBf16,
                      .limit = std::chrono::milliseconds(options.plugin_control_seconds * 900)}};
}

Status out_of_range(const std::string& field, const std::string& expected,
                    const std::string& found) {
  return Status(Code::kInvalidArgument, field, "expected " + expected + ", found " + found);
}

Status check_range(const std::string& field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status();
  return out_of_range(field, std::to_string(low) + " to " + std::to_string(high),
                      std::to_string(value));
}

static_assert(EngineLimits::kDraftNodes == SPECD_MAX_TREE_NODES);

Status check_route(const RouteOptions& route, const EngineOptions& options) {
  const std::string where = route_field(route.name);
  if (route.name.empty())
    return Status(Code::kInvalidArgument, where, "expected a name, found an empty one");
  if (route.name == "off")
    return Status(Code::kInvalidArgument, where,
                  "'off' is reserved: it is plain decoding and always there");
  SPECD_OK_OR_RETURN(check_name(where, route.name));
  SPECD_OK_OR_RETURN(
      check_range(where + ".draft_nodes_max", route.draft_nodes_max, 1, EngineLimits::kDraftNodes));
  if (route.draft_nodes_max >= options.step_tokens_max)
    return out_of_range(
        where + ".draft_nodes_max",
        "less than engine.step_tokens_max (" + std::to_string(options.step_tokens_max) + ")",
        std::to_string(route.draft_nodes_max));
  SPECD_OK_OR_RETURN(
      check_range(where + ".call_ms_max", route.call_ms_max, 0, EngineLimits::kCallMs));
  SPECD_OK_OR_RETURN(
      check_range(where + ".step_budget_us", route.step_budget_us, 1, EngineLimits::kStepBudgetUs));
  if (route.isolation != Isolation::kNone && route.call_ms_max > 0 &&
      route.step_budget_us > int64_t{route.call_ms_max} * 1000)
    return out_of_range(where + ".step_budget_us",
                        "at most call_ms_max (" + std::to_string(route.call_ms_max) + " ms)",
                        std::to_string(route.step_budget_us));
  SPECD_OK_OR_RETURN(check_range(where + ".probation_seconds", route.probation_seconds, 0,
                                 EngineLimits::kProbationSeconds));
  SPECD_OK_OR_RETURN(check_range(where + ".disable_by_batch_size", route.disable_by_batch_size, 0,
                                 EngineLimits::kSequences));
  if (!route.model.empty() && route.model != options.model.name)
    return out_of_range(where + ".model", quote(options.model.name) + ", the model that is served",
                        quote(route.model));
  return Status();
}

namespace {

Status check_cache(const ModelOptions& model) {
  SPECD_OK_OR_RETURN(check_range("model.kv.pages", model.kv_pages, 0, EngineLimits::kKvPages));
  if (!(model.kv_memory_share >= 0 && model.kv_memory_share <= 1))
    return out_of_range("model.kv.memory_share", "more than 0, at most 1",
                        std::to_string(model.kv_memory_share));
  if ((model.kv_bytes_max > 0) + (model.kv_memory_share > 0) + (model.kv_pages > 0) > 1)
    return Status(Code::kInvalidArgument, "model.kv",
                  "expected only one of bytes_max, memory_share or pages, found several");
  return Status();
}

Status check_names(const EngineOptions& options) {
  std::set<std::string> models{options.model.name};
  for (size_t i = 0; i < options.draft_models.size(); ++i) {
    const int32_t wanted = options.draft_models[i].tensor_parallel_size;
    if (wanted != 0 && wanted != 1 && wanted != options.tensor_parallel_size)
      return out_of_range(draft_model_field(i) + ".tensor_parallel_size",
                          "1, or the target's, " + std::to_string(options.tensor_parallel_size),
                          std::to_string(wanted));
    const std::string& name = options.draft_models[i].name;
    if (name.empty() || !models.insert(name).second)
      return out_of_range(draft_model_field(i) + ".name", "a name that no other model has",
                          quote(name));
  }
  std::vector<std::string> routes{"off"};
  for (const RouteOptions& route : options.routes) {
    if (std::find(routes.begin(), routes.end(), route.name) != routes.end())
      return Status(Code::kInvalidArgument, route_field(route.name),
                    "the name " + quote(route.name) + " is given twice");
    routes.push_back(route.name);
  }
  const std::string& wanted = options.default_route;
  if (std::find(routes.begin(), routes.end(), wanted) == routes.end())
    return Status(Code::kInvalidArgument, "default_route",
                  "expected a route that is configured (" + joined(routes) + "), found " +
                      quote(wanted) + did_you_mean(wanted, routes));
  return Status();
}

}  // namespace

std::string route_field(const std::string& name) { return "routes." + name; }
std::string draft_model_field(size_t index) {
  return "draft_models[" + std::to_string(index) + "]";
}

Status check_limits(const EngineOptions& options) {
  SPECD_OK_OR_RETURN(
      check_range("engine.max_sequences", options.max_sequences, 1, EngineLimits::kSequences));
  if (options.step_tokens_max < options.max_sequences)
    return out_of_range("engine.step_tokens_max",
                        "at least max_sequences (" + std::to_string(options.max_sequences) +
                            "), so that each sequence gets a row",
                        std::to_string(options.step_tokens_max));
  SPECD_OK_OR_RETURN(
      check_range("engine.step_tokens_max", options.step_tokens_max, 1, EngineLimits::kStepTokens));
  SPECD_OK_OR_RETURN(check_range("plugins.control_seconds", options.plugin_control_seconds, 1,
                                 EngineLimits::kPluginControlSeconds));
  const std::vector<std::string> hashes =
      options.approved_plugins.value_or(ApprovedPlugins()).sha256;
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (hashes[i].size() == 64 &&
        hashes[i].find_first_not_of("0123456789abcdef") == std::string::npos) {
      continue;
    }
    return out_of_range("plugins.approved.sha256[" + std::to_string(i) + "]",
                        "64 hexadecimal digits in lower case, as sha256sum prints them of a "
                        "plugin.json",
                        quote(hashes[i]));
  }
  SPECD_OK_OR_RETURN(check_range("engine.queue_max", options.queue_max, 1, EngineLimits::kQueue));
  SPECD_OK_OR_RETURN(check_range("engine.priority_aging_ms", options.priority_aging_ms, 1,
                                 EngineLimits::kPriorityAgingMs));
  SPECD_OK_OR_RETURN(check_range("engine.tensor_parallel_size", options.tensor_parallel_size, 1,
                                 EngineLimits::kRanks));
  SPECD_OK_OR_RETURN(check_range("engine.pipeline_parallel_size", options.pipeline_parallel_size, 1,
                                 EngineLimits::kStages));
  SPECD_OK_OR_RETURN(check_range("engine.rank_timeout_seconds", options.rank_timeout_seconds, 1,
                                 EngineLimits::kRankTimeoutSeconds));
  SPECD_OK_OR_RETURN(check_devices(options));
  SPECD_OK_OR_RETURN(check_cache(options.model));
  if (options.routes.size() > EngineLimits::kRoutes)
    return out_of_range("routes", "at most " + std::to_string(EngineLimits::kRoutes),
                        std::to_string(options.routes.size()));
  for (const RouteOptions& route : options.routes) SPECD_OK_OR_RETURN(check_route(route, options));
  return check_names(options);
}

int32_t n_ranks_of(const EngineOptions& options) {
  return options.tensor_parallel_size * options.pipeline_parallel_size;
}

Status check_ranks(const EngineOptions& options, const ModelConfig& config, const Device& device) {
  SPECD_TRY(const int32_t grain,
            grain_of(options.model.path, config, device.ops()).in_field(kModelPath));
  SPECD_OK_OR_RETURN(check_split(config, options.tensor_parallel_size, grain)
                         .in_field("engine.tensor_parallel_size"));
  return check_stages(config, options.pipeline_parallel_size)
      .in_field("engine.pipeline_parallel_size");
}

namespace {

// What the pairs of routes are checked with.
struct PairBench {
  std::unique_ptr<CpuDevice> device;
  std::vector<std::unique_ptr<Device>> draft_devices;
  Target target;
  PagePool no_pages{0};
  std::unique_ptr<ModelService> draft_models;
  // Plugins keep the host beyond the check; ~Services() takes the directory away from it.
  std::unique_ptr<Services> services;
  std::unique_ptr<PluginRegistry> registry;
};

// What checks one pair, which may be late: then it stays, with the bench.
struct PairCheck {
  std::shared_ptr<PairBench> bench;
  RouteOptions wanted;
  RouteTerms terms;
  std::string device_name;
  bool plans_for_host = true;  // of the device that the plan is for
  uint64_t device_bytes = 0;
  DrafterLimit limit;
  LiveRoute route;
  Status status;

  void ask(const std::atomic<bool>& is_late) {
    const auto found = drafter_limit(*bench->registry, wanted, terms, bench->target.facts.info,
                                     plans_for_host, device_bytes, is_late);
    status = found.status();
    if (found.ok()) limit = found.value();
  }
  void make(const std::atomic<bool>& is_late) {
    status =
        create_route(route, *bench->registry, wanted, terms, bench->target.facts.info, is_late);
    if (status.ok()) {
      status = device_name == "cpu"
                   ? activate_route(route, terms, bench->target.facts.info, *bench->device, is_late)
                   : place(route, false, device_name).status();
    }
    destroy_route(route, is_late);
  }
};

Status run_check(const std::shared_ptr<PairCheck>& check, int32_t seconds,
                 void (PairCheck::*work)(const std::atomic<bool>& is_late)) {
  std::string unused;
  const Status done = run_within(
      std::chrono::seconds(seconds),
      [=](const std::atomic<bool>& is_late) { (*check.*work)(is_late); }, unused);
  const std::string field = route_field(check->wanted.name);
  if (done.code() == Code::kDeadlineExceeded)
    return Status(done.code(), field, done.message() + " (plugins.control_seconds)");
  return (done.ok() ? check->status : done).in_field(field);
}

}  // namespace

Result<MemoryPlan> check_options(const EngineOptions& options) {
  SPECD_OK_OR_RETURN(check_limits(options));
  const auto bench = std::make_shared<PairBench>();
  SPECD_TRY(bench->device, CpuDevice::create(options.isa, 1, options.numerics == Numerics::kBf16));
  Target& target = bench->target;
  SPECD_OK_OR_RETURN(target.load(options.model));
  const ModelConfig& config = target.config;
  // A configured template must be usable. A model whose own template is not still serves text.
  if (!options.model.chat_template.empty()) {
    SPECD_OK_OR_RETURN(target.chat_template.status().in_field("model.chat_template"));
  }
  DraftModels drafts = check_draft_models(options, target);
  std::vector<std::unique_ptr<Device>> devices;
  EngineOptions here = options;
  if (options.rank_bytes_max > 0) here.devices.resize(1);  // the others may be on other machines
  if (options.devices.front() != "auto") {
    SPECD_TRY(devices, open_model_devices(here, device_limits(options, config, drafts)));
  }
  Device& device = devices.empty() ? *bench->device : *devices.front();
  SPECD_OK_OR_RETURN(check_ranks(options, config, device));
  bench->draft_models = std::make_unique<ModelService>(
      *bench->device, bench->no_pages,
      KvPages{.store = nullptr, .positions_max = config.positions_end(), .is_planned = true});
  SPECD_OK_OR_RETURN(
      open_draft_devices(options, config, *bench->device, drafts, bench->draft_devices));
  std::vector<RankMemory> memories;  // none: to plan for other machines
  if (options.rank_bytes_max == 0) {
    memories = devices.empty() ? std::vector{memory_of_all(options, device)}
                               : memories_of_devices(options, devices);
  }
  const auto check_drafts = [&] {
    for (size_t i = 0; i < drafts.size(); ++i) {
      const Status status = drafts[i]->status.with_context(drafts[i]->name);
      SPECD_OK_OR_RETURN(status.in_field(draft_model_field(i)));
    }
    return Status();
  };
  SPECD_OK_OR_RETURN(check_drafts());
  bench->services = std::make_unique<Services>(*bench->device, *bench->device, config.vocab_size);
  bench->services->set_models(bench->draft_models.get());
  bench->services->plan_target(config);
  SPECD_TRY(bench->registry,
            PluginRegistry::open(registry_options(options), make_host(bench->services.get()))
                .in_field("plugins"));
  std::vector<std::shared_ptr<PairCheck>> pairs;
  std::vector<DrafterLimit> limits;
  for (const RouteOptions& route : options.routes) {
    const auto& pair = pairs.emplace_back(std::make_shared<PairCheck>());
    pair->bench = bench;
    pair->wanted = route;
    pair->terms = route_terms(options);
    pair->device_name = options.devices.front();
    pair->plans_for_host = device.is_host();
    pair->device_bytes = device.total_bytes();
    SPECD_OK_OR_RETURN(run_check(pair, options.plugin_control_seconds, &PairCheck::ask));
    limits.push_back(pair->limit);
  }
  SPECD_TRY(MemoryPlan plan, plan_memory(options, target, drafts, device, memories, limits));
  SPECD_OK_OR_RETURN(check_drafts());  // whether those can be shared that must be
  for (std::unique_ptr<DraftModel>& draft : drafts) bench->draft_models->add(std::move(draft));
  for (const auto& pair : pairs)
    SPECD_OK_OR_RETURN(run_check(pair, options.plugin_control_seconds, &PairCheck::make));
  return plan;
}

}  // namespace specd
