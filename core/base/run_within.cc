#include "core/base/run_within.h"

#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <system_error>
#include <utility>

#include "core/base/last_words.h"
#include "core/base/mutex.h"
#include "core/base/thread.h"

namespace specd {
namespace {

using WorkFn = std::function<void(const std::atomic<bool>& is_late)>;

// So short that a Status of them takes no memory.
constexpr char kNoMemory[] = "no memory left", kNoThread[] = "no thread left";

std::atomic<int> n_late{0};
Mutex late_mutex;
// Of the works that are late.
std::multiset<std::string> late_plugins SPECD_GUARDED_BY(late_mutex);

// Shared by the thread that works and the one that waits.
class Work final : public ActivityWatcher {
 public:
  explicit Work(WorkFn run) : run_(std::move(run)) {}

  void run() { run_(is_late_); }
  void drop() { run_ = nullptr; }
  // For ever, with what the work owns. Takes no memory.
  static void keep(std::shared_ptr<Work> late) {
    static Mutex mutex;
    static constinit Work* newest = nullptr;  // under mutex; a list, so that a leak checker sees it
    Work& work = *late;
    const MutexLock lock(mutex);
    work.older_kept_ = std::exchange(newest, &work);
    work.kept_ = std::move(late);
  }

  void changed(const Activity& now) override {
    const MutexLock lock(mutex_);
    now_ = now;
  }
  // False when the work is late.
  bool may_return() {
    const MutexLock lock(mutex_);
    is_returning_ = !is_late_;
    if (is_late_) {
      {
        const MutexLock late_lock(late_mutex);
        if (is_listed_) late_plugins.erase(late_plugins.find(late_plugin_));
      }
      --n_late;
      n_late.notify_all();
    }
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
        const auto text = [](const char* each) { return std::string(each == nullptr ? "" : each); };
        try {
          late_plugin = late_plugin_ = text(now_.plugin);
          if (!late_plugin_.empty()) {
            const MutexLock late_lock(late_mutex);
            late_plugins.insert(late_plugin_);
            is_listed_ = true;
          }
          return Status(
              Code::kDeadlineExceeded,
              (now_.who == nullptr ? "the work" : text(now_.who) + ": " + text(now_.call) + "()") +
                  " has not returned within " + std::to_string(limit.count()) + " s");
        } catch (const std::bad_alloc&) {
          return Status(Code::kDeadlineExceeded, kNoMemory);
        }
      }
    }
    return status_;
  }

 private:
  WorkFn run_;
  Mutex mutex_;
  CondVar returned_;
  Activity now_ SPECD_GUARDED_BY(mutex_);  // its strings live until it changes
  Status status_ SPECD_GUARDED_BY(mutex_);
  bool is_returning_ SPECD_GUARDED_BY(mutex_) = false;
  bool has_returned_ SPECD_GUARDED_BY(mutex_) = false;
  std::string late_plugin_ SPECD_GUARDED_BY(mutex_);
  bool is_listed_ SPECD_GUARDED_BY(mutex_) = false;  // in late_plugins
  std::atomic<bool> is_late_{false};                 // written under mutex_
  std::shared_ptr<Work> kept_;
  Work* older_kept_ = nullptr;
};

}  // namespace

Status run_within(std::chrono::seconds limit, WorkFn work, std::string& late_plugin) {
  std::shared_ptr<Work> shared;
  try {
    shared = std::make_shared<Work>(std::move(work));
    try_start_thread("specd-control", [shared]() mutable {
      watch_activity(shared.get());
      Status status;
      try {
        shared->run();
      } catch (const std::bad_alloc&) {
        status = Status(Code::kExhausted, kNoMemory);
      }
      watch_activity(nullptr);
      if (!shared->may_return()) {
        // Destroying what it owns might call the plugin, beside other control calls.
        Work::keep(std::move(shared));
        return;
      }
      shared->drop();  // what it owns is gone when it counts as returned
      shared->finish(status);
    }).detach();
  } catch (const std::bad_alloc&) {
    return Status(Code::kExhausted, kNoMemory);
  } catch (const std::system_error&) {
    return Status(Code::kExhausted, kNoThread);
  }
  return shared->wait(limit, late_plugin);
}

Status check_in_time(const std::atomic<bool>& is_late) {
  if (!is_late) return Status();
  return Status(Code::kDeadlineExceeded, "an earlier call was late, this one is left out");
}

bool is_late_in(const std::string& plugin) {
  const MutexLock lock(late_mutex);
  return late_plugins.contains(plugin);
}

int n_late_works() { return n_late; }
void wait_for_late_works() {
  for (int n = n_late; n != 0; n = n_late) n_late.wait(n);
}

}  // namespace specd
