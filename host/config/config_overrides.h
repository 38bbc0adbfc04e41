// Values given beside the file: file < environment < --set.
//
//   --set engine.threads=2                  a key of the file, by its path
//   --set 'devices=[cuda:0]'                the value is YAML, also a list or mapping in one line
//   --set draft_models[0].path=../small     an item of a list; the index after the last adds one
//   --set 'routes."a.b".draft_nodes_max=4'  a name with dots stands in quotes
//   --set model.kv.bytes_max=null           takes a key out: its default holds
//
//   SPECD__ENGINE__THREADS=2                by the environment: two underscores part keys,
//   SPECD__DRAFT_MODELS__0__PATH=../small   a number is an index
//
// Variable names ignore case: they match the key that the table or the file has, however it is
// written, and a new name (of a route, of a plugin's key) is made in lower case. A value is read as
// if it stood in the file: paths too are relative to the file.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "host/config/config_key.h"
#include "host/config/yaml_reader.h"

namespace specd::host {

constexpr char kEnvironmentPrefix[] = "SPECD__";

struct Overrides {
  std::vector<std::string> environment;  // "NAME=VALUE", as environ has them; others' are ignored
  std::vector<std::string> set;          // "key.path=VALUE", in order: the last one holds
};

// This process's environment, and the --set options.
Overrides overrides_of_process(std::vector<std::string> set);

// Puts them into the tree of a file; `keys` is the section that the tree is. What is put has its
// origin as its place. kInvalidArgument, naming the option or variable, on a path that does not fit
// the tree, on a value that is not YAML, on variables that mean the same key. Unknown keys are put:
// the reader refuses them.
// REQUIRES a mapping
Status apply_overrides(const Overrides& overrides, const Key& keys, YamlNode& root);

}  // namespace specd::host
