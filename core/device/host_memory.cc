#include "core/device/host_memory.h"

#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace specd {
namespace {

void limit_to(uint64_t bytes, const std::string& limit, HostMemory& memory) {
  if (bytes < memory.bytes) memory = {bytes, limit};
}

// "max", which is no number, is no limit.
void limit_to_file(const std::string& path, HostMemory& memory) {
  std::ifstream file(path);
  std::string text;
  uint64_t bytes = 0;
  if (!(file >> text)) return;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (error == std::errc() && end == text.data() + text.size())
    limit_to(bytes, "the control group (" + path + ") allows", memory);
}

bool names_memory(std::string_view controllers) {
  while (!controllers.empty()) {
    const size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == "memory") return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

// A line of /proc/self/cgroup is ID:CONTROLLERS:PATH; version 2 has no controllers there. In a
// container PATH may not exist below the mount, whose top is then the group.
void limit_to_groups(const std::string& root, HostMemory& memory) {
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_v2 = controllers.empty();
    if (!is_v2 && !names_memory(controllers)) continue;
    const std::string top = root + (is_v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    const char* file = is_v2 ? "/memory.max" : "/memory.limit_in_bytes";
    for (std::filesystem::path group = line.substr(second + 1);; group = group.parent_path()) {
      const std::string path = group == "/" ? "" : group.string();
      limit_to_file(top + path + file, memory);
      if (path.empty() || !group.has_relative_path()) break;
    }
  }
}

}  // namespace

HostMemory host_memory(const std::string& root) {
  HostMemory memory;
  struct sysinfo info {};
  if (sysinfo(&info) == 0)
    limit_to(uint64_t{info.totalram} * info.mem_unit, "the machine has", memory);
  limit_to_groups(root, memory);
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY)
    limit_to(space.rlim_cur, "the limit of address space (ulimit -v) is", memory);
  return memory;
}

}  // namespace specd
