// The folder where Hugging Face's programs keep the models that they download. specd reads it and
// downloads nothing:
//
//   CACHE/models--ORG--NAME/refs/main      a file with the name of a commit
//   CACHE/models--ORG--NAME/snapshots/COMMIT/config.json -> ../../blobs/HASH
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace specd::host {

// $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE, else $HF_HOME/hub, else
// $XDG_CACHE_HOME/huggingface/hub, else $HOME/.cache/huggingface/hub, as an absolute path; "" when
// none of them is set. `variable` gives null for one that is not. As in huggingface_hub
// (constants.py), a leading ~ is $HOME and $NAME or ${NAME} its value, where it is set.
std::string hub_cache_folder(const std::function<const char*(const char*)>& variable);

// NAME or ORG/NAME by the hub's rules: letters, digits, '_', '-' and '.', at most 96 bytes, neither
// ".." nor "--", and '-' or '.' at no end.
bool is_hub_name(std::string_view name);

// The folder of the model in the cache, as an absolute path. The model may be a link to a folder
// elsewhere, on a larger disk say. `revision` is a branch, a tag or a
// commit.
// kNotFound: it is not there, or only a part of it; the message has the command that downloads it.
// kInvalidArgument: the revision cannot be one. kDataLoss: the reference names no commit, or a link
// leads out of the cache, or of the folder that the model is a link to.
// REQUIRES is_hub_name(name)
Result<std::string> find_in_hub_cache(const std::string& cache, const std::string& name,
                                      const std::string& revision = "main");

}  // namespace specd::host
