#include <algorithm>

#include "core/base/log.h"
#include "core/device/cuda_device.h"
#include "core/engine/impl.h"

namespace specd {

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
  SPECD_TRY(cpu,
            CpuDevice::create(options.isa, options.threads, options.numerics == Numerics::kBf16));
  SPECD_TRY(config, load_model_config(wanted.path).in_field(kModelPath));
  SPECD_OK_OR_RETURN(load_sampling_defaults());
  SPECD_TRY(tokenizer, Tokenizer::load(wanted.path + "/tokenizer.json").in_field(kModelPath));
  SPECD_OK_OR_RETURN(check_vocabulary(wanted.path, config, *tokenizer).in_field(kModelPath));
  chat_template = load_chat_template(wanted);
  target.fill(wanted.name, config, *tokenizer);

  DraftModels drafts;
  for (const DraftModelOptions& draft : options.draft_models) {
    drafts.push_back(check_draft_model(draft.name, draft.path, kernel_dtype(draft.kv_dtype),
                                       {config, *tokenizer}));
  }
  SPECD_OK_OR_RETURN(open_device(drafts));

  int32_t nodes_max = RouteOptions().draft_nodes_max;  // routes may come later
  for (const RouteOptions& route : options.routes)
    nodes_max = std::max(nodes_max, route.draft_nodes_max);
  const int64_t logits_rows = int64_t{options.max_sequences} * (1 + nodes_max);
  logits_rows_max = static_cast<int32_t>(std::min<int64_t>(logits_rows, options.step_tokens_max));
  SPECD_TRY(model, Transformer::load(
                       *device, wanted.path, config, options.step_tokens_max, logits_rows_max,
                       [&](double fraction) { say("weights of " + wanted.name, fraction); })
                       .in_field(kModelPath));

  const kernels::DType kv_dtype = kernel_dtype(wanted.kv_dtype);
  const uint64_t page_bytes = KvStore::page_bytes(config, kv_dtype);
  const int64_t pages_useful =
      int64_t{options.max_sequences} * pages_for(int64_t{config.max_positions} + nodes_max);
  SPECD_TRY(const int32_t n_pages,
            kv_pages_of(wanted, *device, page_bytes, static_cast<uint64_t>(pages_useful)));
  SPECD_TRY(KvStore store, KvStore::create(*device, config, kv_dtype, n_pages));
  kv = std::make_unique<KvStore>(std::move(store));
  pages = std::make_unique<PagePool>(n_pages);
  if (wanted.prefix_cache) cache = std::make_unique<PrefixCache>(*pages);
  load_draft_models(std::move(drafts), progress);

  say("plugins", 0);
  SPECD_OK_OR_RETURN(load_routes());
  SPECD_TRY(worker, Worker::create(*device, *model, *kv));
  SPECD_TRY(runner, StepRunner::create(*worker, *draft_models));
  const SchedulerLimits limits{.step_tokens_max = options.step_tokens_max,
                               .logits_rows_max = logits_rows_max,
                               .max_sequences = options.max_sequences};
  batch = std::make_unique<Batch>(limits, *pages, cache.get(), *draft_models, *worker, *runner,
                                  [this](Sequence& sequence) { finish(sequence); });
  say("ready", 1);
  return Status();
}

Status Engine::Impl::load_sampling_defaults() {
  const std::string& path = options.model.path;
  SPECD_OK_OR_RETURN(
      load_eos_tokens(path, config.vocab_size, config.eos_tokens).in_field(kModelPath));
  if (!options.model.generation_config) return Status();
  SPECD_TRY(const GenerationConfig wanted, load_generation_config(path).in_field(kModelPath));
  sampling_defaults.temperature = wanted.temperature;
  sampling_defaults.top_p = wanted.top_p;
  sampling_defaults.top_k = wanted.top_k;
  sampling_defaults.min_p = wanted.min_p;
  sampling_defaults.repetition_penalty = wanted.repetition_penalty;
  generation_config_ignored = wanted.ignored;
  for (const std::string& each : wanted.ignored) {
    log(LogLevel::kWarn, path + "/generation_config.json: " + each + ": not applied");
  }
  return Status();
}

Status Engine::Impl::open_device(const DraftModels& drafts) {
  const std::string& name = options.devices.front();
  device = cpu.get();
  if (name == "cpu") return Status();
  // What the largest of all models asks for.
  kernels::CudaLimits limits{.rows_max = options.step_tokens_max,
                             .width_max = 0,
                             .positions_max = 0,
                             .fast = options.numerics == Numerics::kFast};
  const auto widen = [&](const ModelConfig& each) {
    limits.width_max = std::max(
        {limits.width_max, each.hidden_size, each.intermediate_size, each.n_heads * each.head_dim});
    // Nodes may stand behind the last position of a text.
    limits.positions_max =
        std::max(limits.positions_max, each.max_positions + int32_t{SPECD_MAX_TREE_DEPTH});
  };
  widen(config);
  for (const std::unique_ptr<DraftModel>& draft : drafts) {
    if (draft->status.ok()) widen(draft->config);
  }
  Result<std::unique_ptr<Device>> opened =
      open_cuda_device(name == "auto" ? 0 : cuda_index(name), limits);
  if (!opened.ok() && name == "auto") {
    log(LogLevel::kInfo, "devices: auto: models run on the CPU: " + opened.status().text());
    return Status();
  }
  if (!opened.ok()) return opened.status().in_field("devices[0]");
  cuda = std::move(opened).value();
  device = cuda.get();
  return Status();
}

void Engine::Impl::load_draft_models(DraftModels drafts, const ProgressFn& progress) {
  draft_models = std::make_unique<ModelService>(*device, *pages);
  for (std::unique_ptr<DraftModel>& draft : drafts) {
    load_draft_model(*draft, *device, *kv, options.step_tokens_max, options.max_sequences,
                     [&](double fraction) {
                       if (progress) progress("weights of " + draft->name, fraction);
                     });
    draft_models->add(std::move(draft));
    const DraftModel& added = *draft_models->models().back();
    if (!added.status.ok()) {
      log(LogLevel::kError, "draft model " + added.name + " (" + added.path +
                                ") cannot be used: " + added.status.to_string());
    }
  }
}

Status Engine::Impl::load_routes() {
  services = std::make_unique<Services>(*cpu, *device, config.vocab_size);
  services->set_models(draft_models.get());
  const specd_host* host = make_host(services.get());
  SPECD_TRY(registry, PluginRegistry::open({.directories = options.plugin_directories,
                                            .cache_directory = options.plugin_cache_directory},
                                           host)
                          .in_field("plugins"));
  board = std::make_unique<RouteBoard>(control);
  RouteTable table;
  const std::lock_guard lock(control);
  ++generation;
  for (RouteOptions wanted : options.routes) {
    wanted.model = options.model.name;
    RouteEntry& entry = table[wanted.name];
    entry.options = wanted;
    auto staged = stage_route(wanted);
    if (staged.ok()) {
      staged.value().route->generation = generation;
      add_taps(std::move(staged.value().taps));
      entry.live = board->share(std::move(staged.value().route));
      continue;
    }
    const Status& status = staged.status();
    if (wanted.name == options.default_route) {
      return status.with_context("the default route cannot be served")
          .in_field(route_field(wanted.name));
    }
    log(LogLevel::kError, "route " + wanted.name + " cannot be served: " + status.to_string());
    entry.refused = status;
  }
  board->publish(std::move(table));
  return Status();
}

}  // namespace specd
