// Counts what becomes of a shadow's calls with its route, as the step does for a version that decides.
#pragma once

#include <string>

#include "core/plugin/beside/server.h"
#include "core/spec/live_route.h"

namespace specd {

// [the shadow's thread; of a process, the step] all functions. Meanwhile the step calls none of LiveRoute::called() and cut().
class ShadowCounts final : public ShadowObserver {
 public:
  explicit ShadowCounts(LiveRoute& route) : route_(route) {}  // must outlive this

  void called(CallKind kind, const Status& status, uint64_t took_ns) override;
  void lost(uint32_t n_sequences, const std::string& why) override;
  void refused(uint32_t n, const std::string& defect) override {
    route_.cut(n, route_.drafter_bundle, "propose: " + defect);
  }
  void scored(int32_t n_nodes, int32_t n_accepted) override;

 private:
  LiveRoute& route_;
};

// The function of a message.
DrafterCall drafter_call(CallKind kind);

}  // namespace specd
