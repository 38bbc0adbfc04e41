// The inside of RankProcess. Only for files that implement it or load the lead's models.
#pragma once

#include <sys/types.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device/message_ranks.h"
#include "core/engine/memory_plan.h"
#include "core/engine/shared_models.h"
#include "core/rank_process.h"
#include "core/ranks/follower.h"
#include "core/ranks/ranks.h"

namespace specd {

struct RankProcess::Impl {
  std::unique_ptr<Messages> messages;
  std::unique_ptr<Collective> all;
  RankSettings settings;
  std::vector<pid_t> pids;             // of each rank; 0 = on another machine
  int32_t n_here = 1, place_here = 0;  // ranks on this machine, and before this one
  int32_t n_sharing = 1;               // ranks on the cores of this one
  std::vector<RankMemory> memories;    // of all machines

  void find_places();
  int32_t threads(const EngineOptions& options) const {
    return threads_of_rank(options, messages->n_here(), n_sharing);
  }
  // Whether mpirun has started as many ranks as are configured.
  Status check_world(const EngineOptions& options) const;
  // These are called by all ranks. memories_of(): of the devices, where the models are on such.
  // `opened`: whether each has its device.
  Result<std::vector<RankMemory>> memories_of(const Status& opened, const Device* device);
  // Rank 0, which alone has plugins and so a plan, tells the others where the draft models are.
  Status share(DraftModels& drafts);
  Status check_same(std::span<const SharedModel> models, const DraftModels& drafts);
  RankEnd end_of(const EngineOptions& options);
  Status follow(const EngineOptions& options);
};

}  // namespace specd
