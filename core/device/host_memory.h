// How much memory this process may use, as far as the operating system says.
#pragma once

#include <cstdint>
#include <string>

namespace specd {

struct HostMemory {
  uint64_t bytes = ~uint64_t{0};
  std::string limit;  // what sets it: "the machine has"
};

// The least of: the machine's memory, the limits of the control groups of this process and those
// above them (memory.max of version 2, memory.limit_in_bytes of version 1), and RLIMIT_AS. `root`
// stands before /proc and /sys, for tests.
HostMemory host_memory(const std::string& root = "");

}  // namespace specd
