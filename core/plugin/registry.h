// Discovery and loading of plugin bundles.
//
// A bundle is a directory with plugin.json and a library. Discovery reads manifests and runs no code.
// Loading: permission check, hash while copying into a private content-addressed cache, inspection of
// the copy, Boost.DLL with rtld_now | rtld_local, pinned for ever, entry, layout check, init. What
// fails is refused with the reason and remembered; the daemon goes on without it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"
#include "core/plugin/instance.h"

namespace specd {

struct FactoryInfo {
  std::string id;
  std::string kind;  // "drafter" or "verifier"
};

struct BundleInfo {
  std::string id;       // "specd.drafter.prompt_lookup"; the directory's path when unreadable
  std::string version;
  std::string license;
  std::string directory;
  std::string sha256;  // of the library, from the manifest
  std::vector<FactoryInfo> factories;
  enum class State { kDiscovered, kLoaded, kRefused } state = State::kDiscovered;
  std::string reason;  // when refused: what, where, expected, found
};

class PluginRegistry {
 public:
  struct Options {
    std::vector<std::string> directories;  // each holds bundles as subdirectories
    std::string cache_directory;           // created with mode 0700
  };

  // `host` outlives the process's plugins. A directory that does not exist is an error; a bad bundle
  // in it is not.
  static Result<std::unique_ptr<PluginRegistry>> open(const Options& options, const specd_host* host);
  ~PluginRegistry();

  // [any]
  std::vector<BundleInfo> list() const;

  // [control] Loads the bundle on first use, checks `config` against the factory's schema, then
  // describe() and create(). The caller activates. Errors name plugin, factory and key.
  Result<std::unique_ptr<Drafter>> make_drafter(const std::string& plugin_id,
                                                const std::string& factory_id, const Json& config,
                                                const specd_target_info& target,
                                                const std::string& instance_name);
  Result<std::unique_ptr<Verifier>> make_verifier(const std::string& plugin_id,
                                                  const std::string& factory_id, const Json& config,
                                                  const specd_target_info& target,
                                                  const std::string& instance_name);

 private:
  PluginRegistry();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specd
