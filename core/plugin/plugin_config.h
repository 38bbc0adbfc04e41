// A checked configuration subtree as the specd_config that plugins read.
#pragma once

#include <memory>
#include <string>

#include "core/base/json.h"
#include "core/base/status.h"
#include "specd/plugin_api/config.h"

namespace specd {

class PluginConfig {
 public:
  // `config` is an object. kInvalidArgument naming `where` when it cannot be written as JSON: text
  // that is not UTF-8, numbers that are not finite, nesting deeper than 64.
  static Result<std::unique_ptr<PluginConfig>> make(Json config, const std::string& where);
  PluginConfig(const PluginConfig&) = delete;
  PluginConfig& operator=(const PluginConfig&) = delete;

  const specd_config* get() const { return &view_; }
  const Json& json() const { return config_; }

 private:
  explicit PluginConfig(Json config) : config_(std::move(config)) {}
  Json config_;
  std::string text_;  // keys sorted, no space
  specd_config view_{};
};

}  // namespace specd
