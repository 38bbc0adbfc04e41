// plugin.json: what a bundle says of itself, read without running its code.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/plugin/bundle/registry.h"

namespace specd {

inline constexpr uint64_t kManifestBytesMax = 64 * 1024;
inline constexpr uint32_t kFactoriesMax = 64;  // of a bundle, in its manifest and in its library

struct Manifest {
  std::string id;
  std::string version;
  std::string license;
  std::string abi;
  std::string library;  // a plain file name, key of `files`
  std::vector<FactoryInfo> factories;
  std::map<std::string, std::string> files;  // plain file name -> SHA-256 in lower-case hex
};

// Strict: unknown keys, other types and names that could leave the bundle are refused (kDataLoss).
Result<Manifest> read_manifest(std::string_view text, const std::string& where);

}  // namespace specd
