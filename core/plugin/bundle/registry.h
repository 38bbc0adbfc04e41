// Discovery and loading of plugin bundles.
//
// A bundle is a directory with plugin.json and a library. Discovery reads manifests and runs no
// code. Loading checks permissions, copies the library into a private content-addressed cache while
// hashing it, inspects the copy, loads it with Boost.DLL (rtld_now | rtld_local, never unloaded),
// calls the entry, checks the layout and calls init(). What fails is refused with the reason, and
// the daemon goes on without it. Equal content is one module of the process; new content under the
// same path is a new module.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/run_within.h"
#include "core/base/status.h"
#include "core/plugin/bundle/approval.h"
#include "core/plugin/bundle/plugin_state.h"
#include "core/plugin/instance/instance.h"

namespace specd {

struct FactoryInfo {
  std::string id;
  std::string kind;  // "drafter" or "verifier"
};

struct BundleInfo {
  std::string id;     // "specd.drafter.prompt_lookup"; the directory's path when unreadable
  std::string asked;  // of find(): the id that it was given, which may be ID@VERSION
  std::string version;
  std::string license;
  std::string directory;
  std::string sha256;          // of the library, from the manifest
  std::string content_sha256;  // of the manifest, which names the hash of every file
  std::vector<FactoryInfo> factories;
  PluginState state = PluginState::kDiscovered;
  std::string reason;  // when refused: what, where, expected, found
};

class PluginRegistry {
 public:
  struct Options {
    std::vector<std::string> directories;  // each holds bundles as subdirectories
    std::string cache_directory;           // created with mode 0700
    std::string config_directory = {};  // where relative paths of configurations start; "" = none
    std::optional<Approval::Options> approved = {};  // the bundles that may run; none = all may
  };

  // `host` must outlive all plugins of the process, as those of make_host() do. A directory that
  // does not exist is an error, and so is a cache directory that others may enter; a bad bundle is
  // not. The field of an error is that of Options: "directories[0]", "approved.keys[0]". Hidden subdirectories, and
  // those with neither plugin.json nor a library, are not bundles.
  static Result<std::unique_ptr<PluginRegistry>> open(const Options& options,
                                                      const specd_host* host);
  ~PluginRegistry();

  // [control] Reads the directories again. New bundles appear, removed ones disappear, and other
  // content under a known path is a new version, which the next make_*() call loads. Existing
  // instances keep their code. On an error, such as a missing directory, the list stays.
  Status rescan();

  // [any] The bundles that make_*() calls choose from.
  std::vector<BundleInfo> list() const;
  // [any] The bundle that make_*() calls use for this id.
  std::optional<BundleInfo> find(const std::string& plugin_id) const;

  // [any] Whether make_*() calls would load it, and if not, why. Runs no code of it.
  Status check(const std::string& plugin_id) const;
  const specd_host& host() const;

  // [control] Loads the bundle on first use, checks `config` against the factory's schema, and
  // calls describe() and create(). The caller activates the instance. Errors name plugin and
  // factory, and their field is "plugin", "factory", "config.KEY" or none. `factory_id` may be
  // empty when the plugin has one factory of the kind. `target` is read only during the call. Once
  // `is_late` is true it makes no further call into plugins and fails, but for a create() that has
  // succeeded meanwhile.
  Result<std::unique_ptr<Drafter>> make_drafter(const std::string& plugin_id,
                                                const std::string& factory_id, const Json& config,
                                                const specd_target_info& target,
                                                const std::string& instance_name,
                                                const std::atomic<bool>& is_late = kNeverLate);
  Result<std::unique_ptr<Verifier>> make_verifier(const std::string& plugin_id,
                                                  const std::string& factory_id, const Json& config,
                                                  const specd_target_info& target,
                                                  const std::string& instance_name,
                                                  const std::atomic<bool>& is_late = kNeverLate);

  // [control] What a drafter or a verifier says of itself; makes no instance. Otherwise as make_*().
  Result<specd_drafter_caps> drafter_caps(const std::string& plugin_id,
                                          const std::string& factory_id, const Json& config,
                                          const specd_target_info& target,
                                          const std::atomic<bool>& is_late = kNeverLate);
  Result<specd_verifier_caps> verifier_caps(const std::string& plugin_id,
                                            const std::string& factory_id, const Json& config,
                                            const specd_target_info& target,
                                            const std::atomic<bool>& is_late = kNeverLate);

  // [control] Loads the library now, also one that retire() has refused. Errors as above.
  Status load(const std::string& plugin_id, const std::atomic<bool>& is_late = kNeverLate);
  // [control] Refuses the bundle from now on, until its files change: a call of its code has not
  // returned.
  void set_aside(const std::string& plugin_id, const Status& why);
  // [control] Refuses it until load(), or until its files change. Instances that there are go on. False
  // when it was so already. kNotFound without such a bundle, kFailedPrecondition when it is refused for another
  // reason.
  Result<bool> retire(const std::string& plugin_id);

 private:
  PluginRegistry();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// [control] Calls deinit() of every module that was initialised, except where a late call has left an
// instance. Once, at process exit, after the last instance; nothing can be loaded afterwards.
void shut_down_plugins();

}  // namespace specd
