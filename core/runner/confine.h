// What the process of a drafter may do once its drafter is active: compute, allocate memory up to a limit, read and
// write what is open. See seccomp(2).
#pragma once

#include <cstdint>

#include "core/base/status.h"

namespace specd {

// [main] For good, on all threads. open() and whatever else is not listed fails with EPERM; to start a process or a
// thread, to make a socket or to look into another process ends this one with SIGSYS. `bytes`: of memory that may
// come on top of what is mapped now. kUnsupported when the kernel has no seccomp.
Status confine(uint64_t bytes);

}  // namespace specd
