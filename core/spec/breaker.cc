#include "core/spec/breaker.h"

#include <algorithm>

namespace specd {

bool Breaker::record(size_t watched, bool worked, uint64_t now_ns) {
  if (is_open(now_ns)) return false;  // a later call of the step that opened it
  int32_t& n_failed = n_failed_[watched];
  const bool is_on_trial = pause_ns_ != 0 && watched == opened_by_;
  if (worked) {
    n_failed = 0;
    if (is_on_trial) pause_ns_ = 0;
    return false;
  }
  // After a pause the first one decides.
  if (++n_failed < failures_max_ && !is_on_trial) return false;
  n_failed = 0;
  opened_by_ = watched;
  pause_ns_ = pause_ns_ == 0 ? kFirstPauseNs : std::min(2 * pause_ns_, kPauseNsMax);
  open_until_ns_ = now_ns + pause_ns_;
  ++n_opened_;
  return true;
}

}  // namespace specd
