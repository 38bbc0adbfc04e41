// The parameters; explained in README.md.
#pragma once

#include <specd/plugin_api/drafter.h>
#include <specd/sdk/config.h>

#include <cstdint>
#include <string>

namespace specd::draft_target {

struct Settings {
  static constexpr int64_t kBranchesMax = 16;  // a level can grow to the square of this

  std::string model;
  uint32_t draft_tokens;  // for a tree: its levels
  double p_min;
  bool use_target_noise;
  uint32_t prefill_chunk;
  bool tree;
  uint32_t branches, nodes;
  double path_p_min;

  explicit Settings(const sdk::Config& config)
      : model(config.required_string("model")),
        draft_tokens(static_cast<uint32_t>(config.i64("draft_tokens", 4, 1, SPECD_MAX_TREE_DEPTH))),
        p_min(config.f64("p_min", 0, 0, 1)),
        use_target_noise(config.boolean("use_target_noise", true)),
        prefill_chunk(static_cast<uint32_t>(config.i64("prefill_chunk", 256, 1, 65536))),
        tree(config.has("tree")),
        branches(static_cast<uint32_t>(config.i64("tree.branches", 4, 1, kBranchesMax))),
        nodes(static_cast<uint32_t>(config.i64("tree.nodes", 16, 1, SPECD_MAX_TREE_NODES))),
        path_p_min(config.f64("tree.p_min", 0, 0, 1)) {
    if (tree && p_min > 0) {
      throw sdk::Error(SPECD_E_CONFIG, "p_min: applies to chains only; use tree.p_min for a tree");
    }
  }
};

}  // namespace specd::draft_target
