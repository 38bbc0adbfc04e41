#include "core/engine/models.h"

#include <algorithm>
#include <utility>

#include "core/base/log.h"
#include "core/base/run_within.h"
#include "core/base/to_size.h"
#include "core/device/agree.h"
#include "core/device/exchange.h"
#include "core/engine/devices.h"
#include "core/engine/memory_plan.h"
#include "core/engine/options.h"
#include "core/engine/rank_process_impl.h"
#include "core/ranks/rank_threads.h"

namespace specd {

Status Models::open(const EngineOptions& options, const Target& wanted) {
  const ModelConfig& config = wanted.config;
  auto& [checked, devices, memories] = opened_;
  const int32_t threads = options.process == nullptr
                              ? threads_of_rank(options, n_ranks_of(options), n_ranks_of(options))
                              : options.process->impl_->threads(options);
  SPECD_TRY(cpu, CpuDevice::create(options.isa, threads, options.numerics == Numerics::kBf16));
  checked = check_draft_models(options, wanted);
  RankProcess::Impl* const process =
      options.process == nullptr ? nullptr : options.process->impl_.get();
  SPECD_OK_OR_RETURN(process == nullptr ? check_places(options, n_ranks_of(options))
                                        : process->check_world(options));
  const kernels::CudaLimits limits = device_limits(options, config, checked);
  if (process == nullptr) {
    SPECD_TRY(devices, open_model_devices(options, limits));
    device = devices.empty() ? cpu.get() : devices.front().get();
    memories = devices.empty() ? std::vector{memory_of_all(options, *device)}
                               : memories_of_devices(options, devices);
  } else {
    auto mine = open_model_device(options, process->place_here, limits);
    device = mine.ok() && mine.value() != nullptr ? mine.value().get() : cpu.get();
    SPECD_TRY(memories, process->memories_of(mine.status(), device));
    if (device != cpu.get()) devices.push_back(std::move(mine).value());
  }

  SPECD_OK_OR_RETURN(check_ranks(options, config, *device));
  return open_draft_devices(options, config, *cpu, checked, draft_devices);
}

Status Models::load(const EngineOptions& options, const Target& wanted,
                    std::span<const DrafterLimit> limits, const ProgressFn& progress) {
  const ModelConfig& config = wanted.config;
  // A plugin whose call is late knows the device: while this may fail, it stays where it is.
  auto& [checked, devices, memories] = opened_;
  SPECD_TRY(plan, plan_memory(options, wanted, checked, *device, memories, limits));
  route_memories = memories_of_routes(options, plan, device->is_host(), memories, limits);
  if (options.process != nullptr) SPECD_OK_OR_RETURN(options.process->impl_->share(checked));

  logits_rows_max = target_logits_rows(options);
  if (!devices.empty()) cuda = std::move(devices.front());
  if (cuda != nullptr && n_ranks_of(options) > 1 && n_late_works() > 0) {
    return Status(
        Code::kFailedPrecondition,
        "a plugin's call has not returned, see the log; while that may be a constructor, which "
        "keeps libraries from being loaded, ranks with devices cannot join");
  }
  SPECD_OK_OR_RETURN(start_ranks(options, wanted, checked, std::move(devices)));
  const RankLinks links = ranks == nullptr ? RankLinks() : lead()->links_of(0);
  if (ranks != nullptr) lead()->load(0);
  Result<std::unique_ptr<Transformer>> made = agreed(
      links.all, Transformer::load(
                     *device, wanted.options.path, config, options.step_tokens_max, logits_rows_max,
                     [&](double fraction) {
                       if (progress) progress("weights of " + wanted.options.name, fraction);
                     },
                     links));
  if (ranks != nullptr) SPECD_OK_OR_RETURN(lead()->status());  // it concerns no file
  SPECD_TRY(target, std::move(made).in_field(kModelPath));
  target->gather_bytes();
  const KvFormat& asked = config.quantization.kv();
  if (asked.is_float8 && wanted.options.kv_dtype != KvDType::kF8E4M3) {
    log(LogLevel::kInfo, asked.place + ": the checkpoint was made for a cache in FP8; expected " +
                             "model.kv.dtype f8e4m3, found " +
                             kv_dtype_name(wanted.options.kv_dtype));
  }

  const kernels::KvDType kv_dtype = wanted.options.kv_dtype;
  const int32_t n_pages = plan.kv_pages;
  if (ranks != nullptr) lead()->make_pages(0, n_pages);
  SPECD_TRY(KvStore store, agreed(links.all, KvStore::create(*device, part_of(config, links.split),
                                                             kv_dtype, n_pages)));
  kv = std::make_unique<KvStore>(std::move(store));
  kv_bytes = gathered(links.all, kv->bytes());
  column_bytes = gathered(links.all, 0);
  pages = std::make_unique<PagePool>(n_pages);
  if (wanted.options.prefix_cache) cache = std::make_unique<PrefixCache>(*pages);
  load_drafts(std::move(checked), options, progress);
  SPECD_TRY(worker, Worker::create(*device, *target, *kv, lead()));
  column_bytes.front() = worker->column_bytes();
  if (ranks == nullptr) return Status();
  links.all->set_timeout(std::chrono::seconds(options.rank_timeout_seconds));
  return lead()->status();
}

// Starts the ranks that share the target, and those draft models that can be shared.
Status Models::start_ranks(const EngineOptions& options, const Target& wanted, DraftModels& checked,
                           std::vector<std::unique_ptr<Device>> devices) {
  RankProcess* process = options.process;
  if (n_ranks_of(options) == 1) return Status();
  std::vector<SharedModel> shared = shared_models(options, wanted, checked);
  if (process != nullptr) {
    SPECD_OK_OR_RETURN(process->impl_->check_same(shared, checked));
    ranks = std::make_unique<RankProcesses>(process->impl_->end_of(options));
  } else {
    const auto others = std::make_shared<std::vector<std::unique_ptr<Device>>>(std::move(devices));
    const auto open = [=, isa = options.isa, threads = cpu->threads(),
                       bf16 = options.numerics ==
                              Numerics::kBf16](int32_t rank) -> Result<std::unique_ptr<Device>> {
      if (!others->empty()) return std::move((*others)[to_size(rank)]);
      SPECD_TRY(std::unique_ptr<Device> made, CpuDevice::create(isa, threads, bf16));
      return made;
    };
    ranks = std::make_unique<RankThreads>(
        RankThreads::Options{.n_ranks = options.tensor_parallel_size,
                             .n_stages = options.pipeline_parallel_size,
                             .open_device = open,
                             .spin = rank_spin(n_ranks_of(options) * cpu->threads()),
                             .timeout = kLoadTimeout},
        std::move(shared));
  }
  SPECD_OK_OR_RETURN(ranks->open(*device));
  for (const std::unique_ptr<DraftModel>& draft : checked) {
    if (draft->number > 0) draft->lead = &ranks->lead();
  }
  return Status();
}

void Models::load_drafts(DraftModels checked, const EngineOptions& options,
                         const ProgressFn& progress) {
  drafts = std::make_unique<ModelService>(
      *device, *pages,
      KvPages{.store = kv.get(),
              .positions_max = target->config().positions_end(),
              .page_bytes = KvStore::page_bytes(target->config(), options.model.kv_dtype)});
  for (std::unique_ptr<DraftModel>& draft : checked) {
    load_draft_model(*draft, *device, *kv, options.step_tokens_max, options.max_sequences,
                     [&](double fraction) {
                       if (progress) progress("weights of " + draft->name, fraction);
                     });
    drafts->add(std::move(draft));
    const DraftModel& added = *drafts->models().back();
    if (!added.status.ok()) {
      log(LogLevel::kError, "draft model " + added.name + " (" + added.path +
                                ") cannot be used: " + added.status.to_string());
    }
  }
}

}  // namespace specd
