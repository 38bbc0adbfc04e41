// The parameters; explained in README.md.
#pragma once

#include <specd/plugin_api/drafter.h>
#include <specd/sdk/config.h>

#include <cstdint>

namespace specd::redrafter {

// The tokens of a row that can be chosen, by the authors' code. Log-probabilities are over them.
inline constexpr int64_t kCandidates = 50;

struct Settings {
  uint32_t beams, draft_tokens;
  bool use_target_noise;

  explicit Settings(const sdk::Config& config)
      : beams(static_cast<uint32_t>(config.i64("beams", 5, 1, kCandidates))),
        draft_tokens(static_cast<uint32_t>(config.i64("draft_tokens", 4, 1, 16))),
        use_target_noise(config.boolean("use_target_noise", true)) {}
};

}  // namespace specd::redrafter
