// How many entries a directory has: descriptors in /proc/self/fd, threads in /proc/self/task.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <string>

namespace specd {

inline size_t entries_of(const std::string& directory) {
  using Entries = std::filesystem::directory_iterator;
  return static_cast<size_t>(std::distance(Entries(directory), Entries()));
}

}  // namespace specd
