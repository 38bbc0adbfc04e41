// A model repository of Triton: which of its models and versions specd serves, and the file that
// configures it.
//
//   REPOSITORY/NAME/VERSION/model.yaml   TensorRT-LLM's LLM API, for its Python backend
//   REPOSITORY/NAME/VERSION/model.json   the vLLM backend
//
// config.pbtxt beside the versions is not read: it says nothing that specd needs.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"

namespace specd::host {

struct RepositoryModel {
  enum class Backend { kLlmApi, kVllm };

  std::string root;  // of the repository, canonical
  std::string name, version;
  Backend backend = Backend::kLlmApi;
  std::string file;    // as the user would name it: below the path that was given
  std::string notice;  // what was chosen among several versions, for people; or empty
};

// `wanted` is "" for the only model of the repository, NAME, or NAME/VERSION. Without VERSION it is
// the highest one, as Triton does. Folders that begin with a dot, and in a model those whose name is
// not a number from 1 on, are none.
// kInvalidArgument: there is no such model, there are several and none was named, or a path leads
// out of the repository.
Result<RepositoryModel> find_model(const std::string& repository, const std::string& wanted);

}  // namespace specd::host
