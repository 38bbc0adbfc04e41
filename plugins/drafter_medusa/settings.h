// The parameters; explained in README.md.
#pragma once

#include <specd/sdk/tree.h>

#include <cstdint>
#include <string>
#include <vector>

#include "published_trees.h"

namespace specd::medusa {

struct Settings {
  static constexpr int32_t kRankEnd = SPECD_MAX_TOP_K;

  bool use_target_noise;
  std::vector<sdk::Choices::Path> paths;
  bool is_published;  // by name

  explicit Settings(const sdk::Config& config)
      : use_target_noise(config.boolean("use_target_noise", true)),
        is_published(!config.has("choices.0")) {
    if (!is_published && config.has("tree")) {
      throw sdk::Error(SPECD_E_CONFIG, "tree: give either a published tree or choices");
    }
    paths = is_published ? published(config.string("tree", "mc_sim_7b_63"))
                         : sdk::Choices::of_config(config, "choices");
  }

  // The tree for a head of this many levels. A published one is cut.
  sdk::Choices choices(int32_t levels) const {
    std::vector<sdk::Choices::Path> fitting;
    for (const sdk::Choices::Path& path : paths) {
      const auto n = static_cast<int32_t>(path.size());
      if (n <= levels) {
        fitting.push_back(path);
      } else if (!is_published) {
        throw sdk::Error(SPECD_E_CONFIG, "choices: a path of " + std::to_string(n) +
                                             " levels, the weights have " + std::to_string(levels) +
                                             " heads");
      }
    }
    return {std::move(fitting), kRankEnd, "choices"};
  }

 private:
  static std::vector<sdk::Choices::Path> published(const std::string& name) {
    std::string known;
    for (const PublishedTree& tree : kPublishedTrees) {
      if (name == tree.name) return sdk::Choices::of_words(tree.paths);
      known += std::string(known.empty() ? "" : ", ") + tree.name;
    }
    throw sdk::Error(SPECD_E_CONFIG,
                     "tree: '" + name + "' is not a published tree; expected " + known);
  }
};

}  // namespace specd::medusa
