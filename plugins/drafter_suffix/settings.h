// Parameters of the drafter; explained in README.md.
#ifndef SPECD_SUFFIX_SETTINGS_H
#define SPECD_SUFFIX_SETTINGS_H

#include <specd/sdk/plugin.h>

#include <cstdint>
#include <string>

namespace specd::suffix {

struct Settings {
  static constexpr const char* kSchema = R"({
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "max_spec_tokens": {"type": "integer", "minimum": 1, "maximum": 64},
      "max_spec_factor": {"type": "number", "minimum": 0, "maximum": 64},
      "max_spec_offset": {"type": "number", "minimum": -64, "maximum": 64},
      "min_token_prob": {"type": "number", "minimum": 0, "maximum": 1},
      "max_tree_depth": {"type": "integer", "minimum": 2, "maximum": 256},
      "max_branches": {"type": "integer", "minimum": 1, "maximum": 16},
      "corpus": {"type": "string"},
      "max_corpus_tokens": {"type": "integer", "minimum": 1, "maximum": 16777216}
    }
  })";

  uint32_t max_spec_tokens;
  float max_spec_factor;
  float max_spec_offset;
  float min_token_prob;
  uint32_t max_tree_depth;
  uint32_t max_branches;
  std::string corpus;  // empty = none
  uint64_t max_corpus_tokens;

  explicit Settings(const sdk::Config& config)
      : max_spec_tokens(static_cast<uint32_t>(config.i64("max_spec_tokens", 16, 1, 64))),
        max_spec_factor(static_cast<float>(config.f64("max_spec_factor", 1, 0, 64))),
        max_spec_offset(static_cast<float>(config.f64("max_spec_offset", 0, -64, 64))),
        min_token_prob(static_cast<float>(config.f64("min_token_prob", 0.1, 0, 1))),
        max_tree_depth(static_cast<uint32_t>(config.i64("max_tree_depth", 24, 2, 256))),
        max_branches(static_cast<uint32_t>(config.i64("max_branches", 1, 1, 16))),
        corpus(config.string("corpus", "")),
        max_corpus_tokens(
            static_cast<uint64_t>(config.i64("max_corpus_tokens", 1 << 20, 1, 1 << 24))) {}

  bool trees() const { return max_branches > 1; }

  // Tokens that a match of this length allows, at most `room`.
  uint32_t budget(uint32_t match, uint32_t room) const {
    const float allowed = static_cast<float>(match) * max_spec_factor + max_spec_offset;
    // The tolerance keeps the product's last bit from deciding about a token.
    const double tokens = static_cast<double>(allowed) + 1e-6;
    if (tokens < 1) return 0;
    return tokens < room ? static_cast<uint32_t>(tokens) : room;
  }
};

}  // namespace specd::suffix

#endif
