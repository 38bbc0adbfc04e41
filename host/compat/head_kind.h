// What a folder that another program calls a draft model holds.
#pragma once

#include <string>

#include "core/base/status.h"

namespace specd::host {

enum class HeadKind { kModel, kEagle, kEagle3, kMedusa, kRedrafter, kUnsupported };

struct Head {
  HeadKind kind = HeadKind::kModel;
  std::string type = {};  // what config.json calls it
};

// Looks into config.json, and where that does not say, at `name`, which is how the user wrote the
// folder: heads of EAGLE-1 and 2 call themselves Llama. kModel where both say nothing, or there is
// no config.json: what loads it says more.
Result<Head> head_in(const std::string& folder, const std::string& name);

}  // namespace specd::host
