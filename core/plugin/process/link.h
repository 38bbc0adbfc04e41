// What the step has of one life of a drafter's process, and how it gets the next one.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/mutex.h"
#include "core/plugin/beside/call_shape.h"
#include "core/plugin/beside/client.h"
#include "core/plugin/process/child.h"
#include "core/plugin/process/shared_rings.h"

namespace specd {

struct ProcessLink {
  std::unique_ptr<SharedRings> rings;
  std::optional<CountedRings> counted;
  std::shared_ptr<DrafterChild> child;
  std::atomic<bool> is_gone{false};  // the process has ended
  std::unique_ptr<RingReader> replies;
  std::unique_ptr<DrafterClient> client;
};

// The keeper puts a link in, the step takes it, and gives the one before back, so that the keeper unmaps its memory;
// the step does that itself only when it has missed a life.
class LinkSlot {
 public:
  // [the keeper's thread]
  void put(std::shared_ptr<ProcessLink> link) {
    std::shared_ptr<ProcessLink> before, old;
    {
      const MutexLock lock(mutex_);
      before = std::exchange(next_, std::move(link));
      old.swap(old_);
    }
    has_next_ = true;
  }
  // [step] Replaces `present` if there is a next one.
  void take(std::shared_ptr<ProcessLink>& present) {
    if (!has_next_.exchange(false)) return;
    std::shared_ptr<ProcessLink> unused;
    const MutexLock lock(mutex_);
    if (next_ == nullptr)
      return;  // put() ran since has_next_ was read, and the last call took its link
    unused = std::exchange(old_, std::exchange(present, std::move(next_)));
  }
  // [step]
  void give_back(std::shared_ptr<ProcessLink>& present) {
    if (present == nullptr) return;
    std::shared_ptr<ProcessLink> unused;
    const MutexLock lock(mutex_);
    unused = std::exchange(old_, std::exchange(present, nullptr));
  }

 private:
  std::atomic<bool> has_next_{false};
  Mutex mutex_;
  std::shared_ptr<ProcessLink> next_ SPECD_GUARDED_BY(mutex_), old_ SPECD_GUARDED_BY(mutex_);
};

}  // namespace specd
