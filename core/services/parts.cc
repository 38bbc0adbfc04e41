// parts/1: the drafters that a drafter's configuration names.
#include "core/plugin/instance/plugin_config.h"
#include "core/services/arguments.h"
#include "core/services/tables.h"

namespace specd {
namespace {

specd_status find_part(const specd_host*, const specd_config* config, const char* path,
                       specd_part* out) {
  if (config == nullptr || path == nullptr || out == nullptr) {
    return refuse(nullptr, SPECD_E_INVALID, "parts.find: an argument is null");
  }
  PluginConfig* whole = PluginConfig::of(config);
  if (whole == nullptr) {
    return refuse(nullptr, SPECD_E_INVALID,
                  "parts.find: the configuration was not made by this host");
  }
  if (whole->find(path) == nullptr) return SPECD_E_PRECONDITION;
  const Result<const PluginPart*> part = whole->part(path);
  if (!part.ok()) return refuse(nullptr, SPECD_E_CONFIG, part.status().text());
  *out = {};
  out->struct_size = sizeof *out;
  out->factory = part.value()->factory;
  out->config = part.value()->config->get();
  out->data_dir = part.value()->directory.c_str();
  return SPECD_OK;
}

}  // namespace

const specd_parts kPartsService = {sizeof(specd_parts), 0, or_exhausted<find_part>};

}  // namespace specd
