// The parameters; explained in README.md.
#pragma once

#include <specd/plugin_api/drafter.h>
#include <specd/sdk/config.h>

#include <cstdint>
#include <string>

namespace specd::draft_target {

// How a guess comes from the draft model's distribution.
enum class Draw {
  kTargetNoise,  // with the noise of the target's draw
  kMostLikely,
  kOwn  // with noise of its own, so that a verifier may weigh it by its probability
};

struct Settings {
  static constexpr int64_t kBranchesMax = 16;  // a level can grow to the square of this

  std::string model;
  uint32_t draft_tokens;  // for a tree: its levels
  double p_min;
  Draw draw;
  uint32_t prefill_chunk;
  bool tree;
  bool with_replacement;
  uint32_t branches, nodes;
  double path_p_min;

  explicit Settings(const sdk::Config& config)
      : model(config.required_string("model")),
        draft_tokens(static_cast<uint32_t>(config.i64("draft_tokens", 4, 1, SPECD_MAX_TREE_DEPTH))),
        p_min(config.f64("p_min", 0, 0, 1)),
        draw(draw_of(config.string("draw", "target_noise"))),
        prefill_chunk(static_cast<uint32_t>(config.i64("prefill_chunk", 256, 1, 65536))),
        tree(config.has("tree")),
        with_replacement(config.boolean("tree.replacement", false)),
        branches(static_cast<uint32_t>(config.i64("tree.branches", 4, 1, kBranchesMax))),
        nodes(static_cast<uint32_t>(config.i64("tree.nodes", 16, 1, SPECD_MAX_TREE_NODES))),
        path_p_min(config.f64("tree.p_min", 0, 0, 1)) {
    if (tree && p_min > 0) {
      throw sdk::Error(SPECD_E_CONFIG, "p_min: applies to chains only; use tree.p_min for a tree");
    }
    // The text would not have the target's law: what is left out may not depend on what was drawn.
    if (draw == Draw::kOwn && (p_min > 0 || path_p_min > 0)) {
      throw sdk::Error(SPECD_E_CONFIG, std::string(tree ? "tree.p_min" : "p_min") +
                                           ": not with draw: own, whose guesses must all stay");
    }
    if (draw != Draw::kOwn && with_replacement) {
      throw sdk::Error(SPECD_E_CONFIG, "tree.replacement: needs draw: own");
    }
  }

 private:
  static Draw draw_of(const std::string& name) {
    if (name == "target_noise") return Draw::kTargetNoise;
    if (name == "most_likely") return Draw::kMostLikely;
    if (name == "own") return Draw::kOwn;
    throw sdk::Error(SPECD_E_CONFIG,
                     "draw: expected target_noise, most_likely or own, found " + name);
  }
};

}  // namespace specd::draft_target
