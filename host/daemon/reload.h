// Reads the configuration again while specd runs: whole, or not at all.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/engine.h"
#include "host/config/config.h"
#include "host/daemon/renewal.h"
#include "host/rpc/daemon_actions.h"

namespace specd::host {

class Reload {
 public:
  // [any] `renewals`: of files that the configuration names.
  Reload(const Config& config, std::vector<Renewal> renewals)
      : renewals_(std::move(renewals)), drain_seconds_(config.drain_seconds), config_(config) {}

  // [any] Takes over routes, log_level and drain_seconds of the file, where nothing overrides them, and the
  // certificates and keys that the same files hold by now. Errors have the place in the file: of the first other value
  // that has changed, or of what the engine refuses. One at a time.
  Result<Reloaded> run(Engine& engine, const ChangeOptions& how);
  // [any] What is in effect.
  uint32_t drain_seconds() const { return drain_seconds_; }

 private:
  const std::vector<Renewal> renewals_;
  std::atomic<uint32_t> drain_seconds_;
  Mutex mutex_;
  Config config_ SPECD_GUARDED_BY(mutex_);
};

}  // namespace specd::host
