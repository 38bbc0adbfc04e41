// Whether a path stays inside a folder, wherever links lead.
#pragma once

#include <algorithm>
#include <filesystem>

namespace specd::host {

// REQUIRES that both are canonical
inline bool is_below(const std::filesystem::path& path, const std::filesystem::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

}  // namespace specd::host
