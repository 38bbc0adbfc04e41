// An engine in this process.
#pragma once

#include "host/bench/backend.h"

namespace specd::host {

// `engine` must outlive it and have no other users: routes are deleted and applied again.
class EngineBackend final : public Backend {
 public:
  explicit EngineBackend(Engine& engine) : engine_(engine) {}
  Result<Answer> run(const Request& request, bool with_prompt_tokens,
                     const std::atomic<bool>& stop) override;
  Result<ModelReport> model() override { return engine_.model(); }
  // REQUIRES that `route` is `off` or not the engine's default route.
  Result<bool> renew_drafter(const std::string& route, const std::atomic<bool>& stop) override;
  Result<DraftCounts> draft_counts(const std::string& route) override;

 private:
  Engine& engine_;
};

}  // namespace specd::host
