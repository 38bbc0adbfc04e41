// What a process says when it ends without being asked to: how it ended, and the plugin code that
// did it.
//
// A crash, an exception that nobody catches and exit() in a plugin are told on standard error. The
// process then ends as it would have, but never with code 0, so that a supervisor starts it again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace specd {

// Plugin code that runs on a thread. Plain pointers, since a signal handler reads them.
struct Activity {
  const char* plugin = nullptr;  // "ID@VERSION"
  const char* who = nullptr;     // "plugin specd.drafter.x, version 1.0, sha256:..., route code"
  const char* call = nullptr;    // "propose"
};

// Told of every change of a thread's activity, on that thread.
class ActivityWatcher {
 public:
  virtual void changed(const Activity& now) = 0;

 protected:
  ~ActivityWatcher() = default;
};

namespace detail {
extern constinit thread_local Activity activity;
extern constinit thread_local ActivityWatcher* activity_watcher;
}  // namespace detail

// [any] That of this thread.
inline Activity current_activity() { return detail::activity; }
// [any] Sets the activity of this thread and returns the one before. The strings must live until the
// next call. Inline: around every call of a plugin. A copy: a plugin may overwrite its callers' stack.
inline Activity set_activity(const Activity& next) {
  const Activity before = detail::activity;
  detail::activity = next;
  std::atomic_signal_fence(std::memory_order_seq_cst);  // a signal handler reads it
  if (detail::activity_watcher != nullptr) detail::activity_watcher->changed(next);
  return before;
}
// [any] The watcher of this thread, which must outlive it; null = none.
void watch_activity(ActivityWatcher* watcher);

// [any] Names a range of memory for last words: code that runs on a plugin's own threads, or a file
// whose pages may vanish. Ignored when 1024 ranges have names. `name` is copied; that of code begins
// with "plugin ".
void name_memory(uintptr_t begin, size_t bytes, const std::string& name);
void forget_memory(uintptr_t begin);

// [main] Once, before threads and plugins. Leaves signals alone that something else handles, such as
// a sanitizer.
void install_last_words();
// [control] Call before and after a library is loaded: the exit handler that was registered last runs
// first, and that must not be the library's.
void watch_exit();
// [any] From here on the process may end with code 0.
void expect_end();

}  // namespace specd
