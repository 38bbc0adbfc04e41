// What becomes of a shadow's calls, from its process to the daemon: what a ShadowObserver is told there becomes
// messages of the ring of replies, and is told again here.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "core/plugin/beside/client.h"
#include "core/plugin/beside/ring.h"
#include "core/plugin/beside/server.h"

namespace specd {

// [the drafter's thread] Waits while the daemon has not read the others, until `stop`.
class ShadowReportWriter final : public ShadowObserver {
 public:
  ShadowReportWriter(RingWriter& replies, const std::atomic<bool>& stop)
      : replies_(replies), stop_(stop) {}  // must outlive this

  void called(CallKind kind, const Status& status, uint64_t took_ns) override;
  void lost(uint32_t n_sequences, const std::string& why) override;
  void refused(uint32_t n_proposals, const std::string& defect) override;
  void scored(int32_t n_nodes, int32_t n_accepted) override;

 private:
  RingWriter& replies_;
  const std::atomic<bool>& stop_;
};

// [step] Tells `observer` what has come. The writer may be hostile: what makes no sense is left out.
// `max_batch`, `node_capacity`, `max_depth`: of the drafter.
struct ShadowReportLimits {
  uint32_t max_batch = 0;
  int32_t node_capacity = 0, max_depth = 0;
};
void take_shadow_reports(RingReader& replies, const ShadowReportLimits& limits,
                         ShadowObserver& observer, const OnCalled& on_answered);

}  // namespace specd
