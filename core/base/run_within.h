// Runs work that may never return, such as control calls of plugins.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

#include "core/base/status.h"

namespace specd {

// [any] Runs `work` on a thread of its own and waits for it. kDeadlineExceeded when it has not
// returned within `limit`. Then it goes on: `is_late` turns true, what it owns is never destroyed,
// and `late_plugin` is the plugin whose code it was in (Activity::plugin), or empty. kExhausted when there
// can be no more threads or no more memory.
Status run_within(std::chrono::seconds limit,
                  std::function<void(const std::atomic<bool>& is_late)> work,
                  std::string& late_plugin);

// An error once the work is late. Work that calls plugins asks before each call: a late one must be
// its last, since nobody waits for the next.
Status check_in_time(const std::atomic<bool>& is_late);
// For what does not run within a limit.
inline constexpr std::atomic<bool> kNeverLate{false};

// [any] Whether late work still runs in code of the plugin (Activity::plugin). Until it returns, nobody may make
// another control call there.
bool is_late_in(const std::string& plugin);
// [any] How many works did not return in time and still run.
int n_late_works();
// [any] Waits until there are none, however long that takes.
void wait_for_late_works();

}  // namespace specd
