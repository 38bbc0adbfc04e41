// Facts about a model for plugins, in the form of the plugin boundary.
#pragma once

#include <string>

#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/model/model_config.h"
#include "core/text/tokenizer.h"
#include "specd/plugin_api/target_info.h"

namespace specd {

// Owns the strings that `info` points to; not movable.
struct ModelFacts {
  std::string name, architecture;
  Sha256Digest tokenizer_sha256{};
  specd_target_info info{};

  ModelFacts() = default;
  ModelFacts(const ModelFacts&) = delete;
  ModelFacts& operator=(const ModelFacts&) = delete;

  void fill(const std::string& model_name, const ModelConfig& config, const Tokenizer& tokenizer);
};

// Fails with kDataLoss when the tokenizer has ids that the model lacks. `path` is the
// model's directory.
Status check_vocabulary(const std::string& path, const ModelConfig& config,
                        const Tokenizer& tokenizer);

}  // namespace specd
