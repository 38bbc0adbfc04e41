// Keeps what the last steps did with the drafts of one text, while somebody looks. Otherwise a step pays one load.
//
//   commit() ── members ──> record() ──> [ running texts, last trees of the followed one ] ──> read()
//
// By default the text is followed that drafts: the newest of those that do, and then that one until it ends or has
// drafted nothing for kIdleSteps steps while another has.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/base/mutex.h"
#include "core/spec/watched_drafts.h"
#include "core/step/plugin_batch.h"

namespace specd {

class DraftWatch {
 public:
  static constexpr size_t kStepsMax = 16;
  static constexpr size_t kNodesMax = 4096;  // of all its steps, but for the last one
  static constexpr size_t kRunningMax = 64;
  static constexpr uint64_t kIdleSteps = 32;
  static constexpr uint64_t kLeaseNs = 2'000'000'000;

  // [any] What was recorded; steps record for kLeaseNs from now on. Empty on the first call, and on the first after
  // such a time without one: what was seen before is forgotten. now_ns: by the clock.
  WatchedDrafts read(uint64_t now_ns);
  // [any] Follows this text until it ends or takes no part in kIdleSteps steps; then, or with 0, the default.
  void follow(uint64_t number);

  // [step] After commit(), with the number of the step. Drops what there is no memory for.
  void record(const Members& members, uint64_t step, uint64_t now_ns);

 private:
  const ActiveSequence* choose(const Members& members, uint64_t step) SPECD_REQUIRES(mutex_);
  void keep(const ActiveSequence& member, uint64_t step) SPECD_REQUIRES(mutex_);
  void forget() SPECD_REQUIRES(mutex_);

  std::atomic<uint64_t> until_ns_{0};
  // A step waits for it while a reader copies pointers and the list of the running texts.
  Mutex mutex_;
  std::vector<WatchedRequest> running_ SPECD_GUARDED_BY(mutex_);
  WatchedRequest followed_ SPECD_GUARDED_BY(mutex_);
  uint64_t picked_ SPECD_GUARDED_BY(mutex_) = 0;  // 0 = the default
  uint64_t last_step_ SPECD_GUARDED_BY(mutex_) =
      0;  // in which the followed text drafted, a picked one took part
  bool has_ended_ SPECD_GUARDED_BY(mutex_) = false;  // the followed text
  std::deque<std::shared_ptr<const WatchedStep>> steps_ SPECD_GUARDED_BY(mutex_);
  size_t n_nodes_ SPECD_GUARDED_BY(mutex_) = 0;  // of steps_
};

}  // namespace specd
