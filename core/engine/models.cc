#include "core/engine/models.h"

#include <algorithm>
#include <utility>

#include "core/base/log.h"
#include "core/device/cuda_device.h"
#include "core/engine/options.h"

namespace specd {

Status Models::load(const EngineOptions& options, const Target& wanted,
                    const ProgressFn& progress) {
  const ModelConfig& config = wanted.config;
  SPECD_TRY(cpu,
            CpuDevice::create(options.isa, options.threads, options.numerics == Numerics::kBf16));
  DraftModels checked;
  for (const DraftModelOptions& draft : options.draft_models) {
    checked.push_back(check_draft_model(draft.name, draft.path, kernel_dtype(draft.kv_dtype),
                                        {config, *wanted.tokenizer}));
  }
  SPECD_OK_OR_RETURN(open_device(options, config, checked));

  int32_t nodes_max = RouteOptions().draft_nodes_max;  // for routes that are applied later
  for (const RouteOptions& route : options.routes) {
    nodes_max = std::max(nodes_max, route.draft_nodes_max);
  }
  const int64_t logits_rows = int64_t{options.max_sequences} * (1 + nodes_max);
  logits_rows_max = static_cast<int32_t>(std::min<int64_t>(logits_rows, options.step_tokens_max));
  SPECD_TRY(target, Transformer::load(*device, wanted.options.path, config, options.step_tokens_max,
                                      logits_rows_max,
                                      [&](double fraction) {
                                        if (progress) {
                                          progress("weights of " + wanted.options.name, fraction);
                                        }
                                      })
                        .in_field(kModelPath));

  const kernels::DType kv_dtype = kernel_dtype(wanted.options.kv_dtype);
  const int64_t pages_useful =
      int64_t{options.max_sequences} * pages_for(int64_t{config.max_positions} + nodes_max);
  SPECD_TRY(const int32_t n_pages,
            kv_pages_of(wanted.options, *device, KvStore::page_bytes(config, kv_dtype),
                        static_cast<uint64_t>(pages_useful)));
  SPECD_TRY(KvStore store, KvStore::create(*device, config, kv_dtype, n_pages));
  kv = std::make_unique<KvStore>(std::move(store));
  pages = std::make_unique<PagePool>(n_pages);
  if (wanted.options.prefix_cache) cache = std::make_unique<PrefixCache>(*pages);
  load_drafts(std::move(checked), options, progress);
  SPECD_TRY(worker, Worker::create(*device, *target, *kv));
  return Status();
}

Status Models::open_device(const EngineOptions& options, const ModelConfig& config,
                           const DraftModels& checked) {
  const std::string& name = options.devices.front();
  device = cpu.get();
  if (name == "cpu") return Status();
  // Enough for every model.
  kernels::CudaLimits limits{.rows_max = options.step_tokens_max,
                             .width_max = 0,
                             .positions_max = 0,
                             .fast = options.numerics == Numerics::kFast};
  const auto widen = [&](const ModelConfig& each) {
    limits.width_max = std::max(
        {limits.width_max, each.hidden_size, each.intermediate_size, each.n_heads * each.head_dim});
    limits.positions_max = std::max(limits.positions_max, each.positions_end());
  };
  widen(config);
  for (const std::unique_ptr<DraftModel>& draft : checked) {
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

void Models::load_drafts(DraftModels checked, const EngineOptions& options,
                         const ProgressFn& progress) {
  drafts = std::make_unique<ModelService>(
      *device, *pages,
      KvPages{.store = kv.get(), .positions_max = target->config().positions_end()});
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
