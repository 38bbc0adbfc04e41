// What every rank knows before it loads: the models that ranks share, and how many threads it has.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/draft/draft_model.h"
#include "core/engine.h"
#include "core/engine/target.h"
#include "core/ranks/follower.h"

namespace specd {

// While weights are read, ranks wait for each other as long as that takes; beats of a process that is lost
// are missed sooner.
inline constexpr std::chrono::hours kLoadTimeout{24};

using DraftModels = std::vector<std::unique_ptr<DraftModel>>;

// A place for each of options.draft_models; its status says why it cannot be used.
DraftModels check_draft_models(const EngineOptions& options, const Target& target);
// The most nodes that a route may draft for a sequence.
int32_t nodes_max_of(const EngineOptions& options);
// Rows of logits of one forward of the target.
int32_t target_logits_rows(const EngineOptions& options);
// The target, and those draft models that its ranks share; sets their numbers.
std::vector<SharedModel> shared_models(const EngineOptions& options, const Target& target,
                                       DraftModels& checked);
// Of one rank. `n_here`: ranks on this machine, which share engine.threads; `n_sharing`: those of them with
// the same cores, because mpirun may have bound the others to other ones.
int32_t threads_of_rank(const EngineOptions& options, int32_t n_here, int32_t n_sharing);

}  // namespace specd
