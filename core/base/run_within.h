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
// and `late_plugin` is the id of the plugin whose code it was in, or empty. kExhausted when there
// can be no more threads or no more memory.
Status run_within(std::chrono::seconds limit,
                  std::function<void(const std::atomic<bool>& is_late)> work,
                  std::string& late_plugin);

// [any] How many works did not return in time and still run.
int n_late_works();

}  // namespace specd
