// A checked configuration subtree as the specd_config that plugins read.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"
#include "specd/plugin_api/config.h"

namespace specd {

class PluginConfig;

// A drafter that a configuration names as a part of another drafter.
struct PluginPart {
  const specd_factory* factory = nullptr;
  std::unique_ptr<PluginConfig> config;
  std::string plugin_id, directory;
  std::shared_ptr<const void> module = {};  // see hold_module()
};

// The plugin of a part, for the drafter that uses it.
struct UsedPlugin {
  std::string id;
  std::shared_ptr<const void> module = {};  // see hold_module()
};

// Where parts come from: the registry. [control]
class PartSource {
 public:
  virtual ~PartSource() = default;
  virtual Result<PluginPart> find_part(const std::string& plugin_id, const std::string& factory_id,
                                       const Json& config) = 0;
};

class PluginConfig {
 public:
  // `config` is an object. kInvalidArgument when it cannot be written as JSON: text that is not
  // UTF-8, numbers that are not finite, nesting deeper than 64. `parts` must outlive this; null =
  // the plugin can have no parts. `directory`: where relative paths in it start; "" = they are
  // refused.
  static Result<std::unique_ptr<PluginConfig>> make(Json config, PartSource* parts,
                                                    const std::string& directory = "");
  PluginConfig(const PluginConfig&) = delete;
  PluginConfig& operator=(const PluginConfig&) = delete;

  const specd_config* get() const { return &view_; }
  // The value at a path like "tree.nodes" or "drafters.0"; null when it is absent.
  const Json* find(const char* path) const;

  // The object behind `config`; null when the host did not make it.
  static PluginConfig* of(const specd_config* config);
  // [control] The part that the object at `path` names; lives as long as this. Errors have
  // the path as their field.
  Result<const PluginPart*> part(const std::string& path);
  // All parts that part() has returned, and their parts.
  std::vector<UsedPlugin> used_plugins() const;
  // The text at `key` as an absolute path. Errors have the key as their field.
  Result<std::string> path(const std::string& key) const;
  // Keeps `made` as long as this.
  void keep(std::shared_ptr<void> made) { kept_.push_back(std::move(made)); }

 private:
  PluginConfig(Json config, PartSource* parts, std::string directory)
      : config_(std::move(config)), source_(parts), directory_(std::move(directory)) {}
  Json config_;
  PartSource* source_;
  std::string directory_;
  std::map<std::string, PluginPart> parts_;  // by path
  std::vector<std::shared_ptr<void>> kept_;
  std::string text_;  // keys sorted, no space
  specd_config view_{};
};

}  // namespace specd
