// Values that override the file: file < environment < --set. configs/README.md says how people
// write them. A value is read as if it were in the file: paths too are relative to the file.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "host/config/config_key.h"
#include "host/config/yaml_reader.h"

namespace specd::host {

constexpr char kEnvironmentPrefix[] = "SPECD__";

struct Overrides {
  std::vector<std::string> environment;  // "NAME=VALUE", as in environ; other names are ignored
  std::vector<std::string> set;          // "key.path=VALUE", in order: the last one wins
};

// This process's environment, and the --set options.
Overrides overrides_of_process(std::vector<std::string> set);

// Puts them into the tree of a file; `keys` is the section that the tree is. Each new value has the
// option or variable as its place. Refuses, with its name and kInvalidArgument: a path that does
// not fit the tree, a value that is not YAML, variables that mean the same key. Unknown keys go
// into the tree, and the reader refuses them, as it does a root that is no mapping.
Status apply_overrides(const Overrides& overrides, const Key& keys, YamlNode& root);

}  // namespace specd::host
