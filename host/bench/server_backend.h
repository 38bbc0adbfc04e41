// A daemon behind its socket; times are the client's.
#pragma once

#include "host/bench/backend.h"
#include "host/rpc/client.h"

namespace specd::host {

// `client` must outlive it.
class ServerBackend final : public Backend {
 public:
  explicit ServerBackend(Client& client) : client_(client) {}
  Result<Answer> run(const Request& request, bool with_prompt_tokens,
                     const std::atomic<bool>& stop) override;
  Result<ModelReport> model() override;
  // Never: the daemon's routes serve others too.
  Result<bool> renew_drafter(const std::string&, const std::atomic<bool>&) override {
    return false;
  }
  Result<DraftCounts> draft_counts(const std::string& route) override;

 private:
  Client& client_;
};

}  // namespace specd::host
