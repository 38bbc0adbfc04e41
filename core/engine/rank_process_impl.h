// The inside of RankProcess. Only for files that implement it or load the lead's models.
#pragma once

#include <sys/types.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device/message_ranks.h"
#include "core/rank_process.h"
#include "core/ranks/follower.h"
#include "core/ranks/ranks.h"

namespace specd {

struct RankProcess::Impl {
  std::unique_ptr<Messages> messages;
  std::unique_ptr<Collective> all;
  std::string configuration;
  std::vector<pid_t> pids;  // of each rank; 0 = on another machine

  void find_pids();
  // Whether mpirun has started as many ranks as are configured.
  Status check_world(const EngineOptions& options) const;
  // Called by all ranks.
  Status check_same(std::span<const SharedModel> models);
  RankEnd end_of(const EngineOptions& options);
  Status follow(const EngineOptions& options);
};

}  // namespace specd
