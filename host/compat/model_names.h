// What other programs take for a model: a folder, or the name of one on Hugging Face's hub.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "host/config/yaml_reader.h"

namespace specd::host {

struct ModelPlaces {
  std::string hub_cache;  // as hub_cache_folder() says
  std::string repository =
      {};  // canonical: relative paths must not leave it; empty = no such limit
  // Why a name has no folder, by the path that stands for it.
  std::map<std::string, Status> missing = {};
};

// The folder of `model`, as an absolute path: an absolute path as it is, whether or not it is
// there; ./PATH or ../PATH from the folder of the file, or in an option from the working directory; anything else is a name on the hub, for
// which the cache has a folder, or it is missing. `revision`, of a name, may be absent. Errors have
// the place of the value.
Result<std::string> model_folder(const Value& model, const std::optional<Value>& revision,
                                 ModelPlaces& places);

// Why one that is missing has no folder, if `root` still names one: --set may give it another.
Status check_missing(const ModelPlaces& places, const YamlNode& root);

}  // namespace specd::host
