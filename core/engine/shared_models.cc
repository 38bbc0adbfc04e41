#include "core/engine/shared_models.h"

#include <algorithm>

#include "core/device/device.h"
#include "core/engine/devices.h"
#include "core/engine/options.h"

namespace specd {

DraftModels check_draft_models(const EngineOptions& options, const Target& target) {
  DraftModels checked;
  for (const DraftModelOptions& draft : options.draft_models) {
    checked.push_back(check_draft_model(draft.name, draft.path, draft.kv_dtype,
                                        {target.config, *target.tokenizer}));
    checked.back()->is_elsewhere = is_elsewhere(options, draft);
  }
  return checked;
}

int32_t nodes_max_of(const EngineOptions& options) {
  int32_t nodes_max = RouteOptions().draft_nodes_max;  // for routes that are applied later
  for (const RouteOptions& route : options.routes) {
    nodes_max = std::max(nodes_max, route.draft_nodes_max);
  }
  return nodes_max;
}

int32_t target_logits_rows(const EngineOptions& options) {
  const int64_t rows = int64_t{options.max_sequences} * (1 + nodes_max_of(options));
  return static_cast<int32_t>(std::min<int64_t>(rows, options.step_tokens_max));
}

std::vector<SharedModel> shared_models(const EngineOptions& options, const Target& target,
                                       DraftModels& checked) {
  std::vector<SharedModel> shared{{.path = target.options.path,
                                   .config = target.config,
                                   .kv_dtype = target.options.kv_dtype,
                                   .rows_max = options.step_tokens_max,
                                   .logits_rows_max = target_logits_rows(options)}};
  for (const std::unique_ptr<DraftModel>& draft : checked) {
    if (!draft->status.ok() || !draft->is_shared) continue;
    draft->number = static_cast<int32_t>(shared.size());
    shared.push_back({.path = draft->path,
                      .config = draft->config,
                      .kv_dtype = draft->kv_dtype,
                      .rows_max = options.step_tokens_max,
                      .logits_rows_max = options.max_sequences});
  }
  return shared;
}

int32_t threads_of_rank(const EngineOptions& options, int32_t n_here, int32_t n_sharing) {
  if (n_here == 1) return options.threads;
  if (options.threads > 0) return std::max(1, options.threads / n_here);
  return std::max(1, usable_cores() / n_sharing);
}

}  // namespace specd
