// Drafters that are parts of others: finds the factory that a configuration names.
#include "core/base/quote.h"
#include "core/plugin/instance/plugin_config.h"

namespace specd {
namespace {

std::string text_at(const Json& named, const char* key) {
  const auto found = named.find(key);
  return found == named.end() ? std::string() : found->get<std::string>();
}

Status check_part(const Json& named) {
  const auto wrong = [](const std::string& field, const std::string& text) {
    return Status(Code::kInvalidArgument, field, text);
  };
  if (!named.is_object()) return wrong("", "expected an object with the key 'plugin'");
  for (const auto& [key, value] : named.items()) {
    if (key == "config") {
      if (!value.is_object()) return wrong(key, "expected an object");
    } else if (key != "plugin" && key != "factory") {
      return wrong(key, "unknown key " + quote(key) + "; it has plugin, factory and config");
    } else if (!value.is_string()) {
      return wrong(key, "expected a string");
    }
  }
  if (!named.contains("plugin")) return wrong("plugin", "this key is required (a string)");
  return Status();
}

}  // namespace

Result<const PluginPart*> PluginConfig::part(const std::string& path) {
  const auto known = parts_.find(path);
  if (known != parts_.end()) return &known->second;
  const Json* named = find(path.c_str());
  if (named == nullptr) return Status(Code::kNotFound, path, "this key is required");
  SPECD_OK_OR_RETURN(check_part(*named).in_field(path));
  if (source_ == nullptr)
    return Status(Code::kUnsupported, path, "only drafters can have drafters as parts");
  const Json own = named->value("config", Json::object());
  auto part = source_->find_part(text_at(*named, "plugin"), text_at(*named, "factory"), own);
  if (!part.ok()) return part.status().in_field(path);
  return &parts_.emplace(path, std::move(part).value()).first->second;
}

std::vector<UsedPlugin> PluginConfig::used_plugins() const {
  std::vector<UsedPlugin> all;
  for (const auto& [path, part] : parts_) {
    all.push_back({part.plugin_id, part.module});
    for (UsedPlugin& inner : part.config->used_plugins()) all.push_back(std::move(inner));
  }
  return all;
}

}  // namespace specd
