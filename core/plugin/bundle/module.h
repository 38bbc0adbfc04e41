// From a library file to a checked entry table, once per content and process.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/plugin/bundle/manifest.h"
#include "specd/plugin_api/entry.h"

namespace specd {

inline constexpr uint64_t kLibraryBytesMax = uint64_t{1} << 30;

struct LoadRequest {
  const Manifest& manifest;
  std::string library_path;     // absolute
  std::string cache_directory;  // absolute, mode 0700, the daemon's own
  const specd_host* host;
  const std::atomic<bool>& is_late;  // see run_within()
};

// Copies and hashes the library, inspects and loads the copy, checks the entry table and compares
// it with the manifest, and calls init(). The module stays mapped until the process ends, even
// after an error: code that ran may have left threads, handlers or thread-local destructors behind.
// After a failure of mapped code, later calls return the same error and run nothing. Once `is_late`
// is true it runs no further code of the library and fails; a later call goes on from there.
Result<const specd_plugin*> load_module(const LoadRequest& request);

// [control] Counts as an instance of the module until the last copy is gone. shut_down_modules() leaves
// out the deinit() of a module with instances, which a call that was late may have left.
std::shared_ptr<const void> hold_module(const specd_plugin& plugin);

void shut_down_modules();

}  // namespace specd
