// Ranks as threads of one process, with memory that all can read: nothing is sent, a rank copies from
// the memory of another.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/device/collective.h"

namespace specd {

// The ends of a group, one for each rank's thread; each is used by one thread at a time and may
// outlive the others. `timeout`: of each exchange. `spin`: how long a rank waits without sleeping;
// zero where there are fewer processors than threads.
std::vector<std::unique_ptr<Collective>> make_thread_ranks(int32_t n_ranks,
                                                           std::chrono::milliseconds timeout,
                                                           std::chrono::nanoseconds spin);

}  // namespace specd
