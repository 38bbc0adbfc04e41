#include "core/base/run_within.h"

#include <atomic>
#include <memory>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/last_words.h"
#include "core/base/mutex.h"
#include "core/base/thread.h"

namespace specd {
namespace {

using WorkFn = std::function<void(const std::atomic<bool>& is_late)>;

std::atomic<int> n_late{0};

// For ever.
void keep(WorkFn work) {
  struct Kept {
    Mutex mutex;
    std::vector<WorkFn> works SPECD_GUARDED_BY(mutex);
  };
  static Kept* const kept = new Kept;
  const MutexLock lock(kept->mutex);
  kept->works.push_back(std::move(work));
}

// Shared by the thread that works and the one that waits.
class Work final : public ActivityWatcher {
 public:
  void changed(const Activity& now) override {
    const auto text = [](const char* each) { return std::string(each == nullptr ? "" : each); };
    const MutexLock lock(mutex_);
    plugin_ = text(now.plugin);
    call_ = now.who == nullptr ? "the work" : text(now.who) + ": " + text(now.call) + "()";
  }
  // False when the work is late.
  bool may_return() {
    const MutexLock lock(mutex_);
    is_returning_ = !is_late_;
    if (is_late_) --n_late;
    return is_returning_;
  }
  void finish(const Status& status) {
    const MutexLock lock(mutex_);
    status_ = status;
    has_returned_ = true;
    returned_.notify_all();
  }
  Status wait(std::chrono::seconds limit, std::string& late_plugin) {
    const auto deadline = CondVar::Clock::now() + limit;
    MutexLock lock(mutex_);
    while (!has_returned_) {
      if (is_returning_) {
        returned_.wait(lock);
      } else if (!returned_.wait_until(lock, deadline) && !is_returning_ && !has_returned_) {
        is_late_ = true;
        ++n_late;
        late_plugin = plugin_;
        return Status(Code::kDeadlineExceeded,
                      call_ + " has not returned within " + std::to_string(limit.count()) + " s");
      }
    }
    return status_;
  }
  const std::atomic<bool>& is_late() const { return is_late_; }

 private:
  Mutex mutex_;
  CondVar returned_;
  std::string plugin_ SPECD_GUARDED_BY(mutex_);
  std::string call_ SPECD_GUARDED_BY(mutex_) = "the work";
  Status status_ SPECD_GUARDED_BY(mutex_);
  bool is_returning_ SPECD_GUARDED_BY(mutex_) = false;
  bool has_returned_ SPECD_GUARDED_BY(mutex_) = false;
  std::atomic<bool> is_late_{false};  // written under mutex_
};

}  // namespace

Status run_within(std::chrono::seconds limit, WorkFn work, std::string& late_plugin) {
  const auto shared = std::make_shared<Work>();
  try {
    try_start_thread("specd-control", [shared, work = std::move(work)]() mutable {
      watch_activity(shared.get());
      Status status;
      try {
        work(shared->is_late());
      } catch (const std::bad_alloc&) {
        status = Status(Code::kExhausted, "there is not enough memory");
      }
      watch_activity(nullptr);
      if (!shared->may_return()) {
        // Destroying what it owns might call the plugin, beside other control calls.
        keep(std::move(work));
        return;
      }
      work = nullptr;  // what it owns is gone when it counts as returned
      shared->finish(status);
    }).detach();
  } catch (const std::system_error& error) {
    return Status(Code::kExhausted, "cannot start a thread: " + error.code().message());
  }
  return shared->wait(limit, late_plugin);
}

int n_late_works() { return n_late; }

}  // namespace specd
