#include "core/engine/memory_plan.h"

#include <string>
#include <utility>

#include "core/base/to_size.h"
#include "core/engine/options.h"
#include "core/model/checkpoint.h"
#include "core/model/kv_store.h"
#include "core/model/split.h"
#include "core/model/transformer.h"

namespace specd {

Result<MemoryPlan> plan_memory(const EngineOptions& options, const Target& target,
                               const DraftModels& drafts, Device& device) {
  const size_t n_ranks = to_size(n_ranks_of(options));
  MemoryPlan plan;
  const auto add_model = [&](const std::string& name, const std::string& path,
                             const ModelConfig& config, int32_t logits_rows,
                             const std::vector<Split>& splits,
                             const std::string& activations_name) -> Status {
    SPECD_TRY(const Checkpoint files, Checkpoint::open(path));
    SPECD_TRY(const kernels::DType dtype, kernel_dtype(files.at("model.embed_tokens.weight").type));
    MemoryPlan::Line weights{"weights of " + name, std::vector<uint64_t>(n_ranks)};
    MemoryPlan::Line activations{activations_name, std::vector<uint64_t>(n_ranks)};
    for (size_t rank = 0; rank < splits.size(); ++rank) {
      const Transformer::Memory part = Transformer::plan(
          device, config, dtype, options.step_tokens_max, logits_rows, splits[rank]);
      weights.bytes[rank] = part.weights;
      activations.bytes[rank] = part.activations;
    }
    plan.lines.push_back(std::move(weights));
    plan.lines.push_back(std::move(activations));
    return Status();
  };
  std::vector<Split> all, last_stage;
  for (size_t rank = 0; rank < n_ranks; ++rank) {
    all.push_back(split_of(static_cast<int32_t>(rank), options.tensor_parallel_size,
                           options.pipeline_parallel_size));
  }
  for (int32_t rank = 0; rank < options.tensor_parallel_size; ++rank) {
    last_stage.push_back({.rank = rank, .n_ranks = options.tensor_parallel_size});
  }
  const ModelConfig& config = target.config;
  SPECD_OK_OR_RETURN(add_model(target.options.name, target.options.path, config,
                               target_logits_rows(options), all, "activations"));
  SPECD_TRY(const int32_t n_pages, kv_pages_of(options, config, device));
  MemoryPlan::Line kv{"KV cache, " + std::to_string(n_pages) + " pages of " +
                          std::to_string(kernels::kPageTokens) + " tokens",
                      {}};
  for (const Split& split : all) {
    kv.bytes.push_back(
        to_size(n_pages) *
        KvStore::page_bytes(part_of(config, split), kernel_dtype(options.model.kv_dtype)));
  }
  plan.lines.insert(plan.lines.begin() + 1, std::move(kv));  // as in Engine::memory()
  const kernels::SplitRule rule = device.ops().split_rule(kernels::DType::kBF16);
  for (const std::unique_ptr<DraftModel>& draft : drafts) {
    if (!draft->status.ok()) continue;
    const bool is_shared = is_shared_draft(options, *draft, rule);
    SPECD_OK_OR_RETURN(add_model(draft->name, draft->path, draft->config, options.max_sequences,
                                 is_shared ? last_stage : std::vector<Split>(1),
                                 "activations of " + draft->name));
  }
  return plan;
}

}  // namespace specd
