// The tiny checkpoints of tests/reference/models as folders that an engine can load.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace specd {

inline const std::string kFamilyModels = std::string(SPECD_TEST_REFERENCE) + "/models/";

inline const Json& family_goldens() {
  static const Json all =
      parse_json_file(std::string(SPECD_TEST_REFERENCE) + "/model_goldens.json", 1 << 24).value();
  return all.at("models");
}

inline std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const auto& [name, cases] : family_goldens().items()) names.push_back(name);
  return names;
}

// A copy below `folder` with the tokenizer that all of them share: ids are bytes. `from`: where the models are.
inline std::string family_folder(const std::string& folder, const std::string& name,
                                 const std::string& from = kFamilyModels) {
  namespace fs = std::filesystem;
  const std::string to = folder + "/" + name;
  fs::copy(from + name, to, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  fs::copy_file(kFamilyModels + "tokenizer.json", to + "/tokenizer.json",
                fs::copy_options::overwrite_existing);
  return to;
}

}  // namespace specd
