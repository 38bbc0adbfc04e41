// The only clock of the engine: CLOCK_MONOTONIC in nanoseconds.
#pragma once

#include <cstdint>

namespace specd {

uint64_t now_ns();

}  // namespace specd
