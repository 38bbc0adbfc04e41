// generation_config.json: the model author's sampling defaults, used where a request sets none.
//
// Only the file's values are applied, not the built-in top_k of 50 in transformers. Without
// `do_sample: true` the file means greedy decoding and its temperature is ignored, but its
// top_p, top_k, min_p and typical_p apply to requests that ask for sampling, as in transformers (Vicuna's
// file has them).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"

namespace specd {

struct GenerationConfig {
  float temperature = 0;  // 0 = greedy
  float top_p = 1;
  float min_p = 0;      // 0 = off
  float typical_p = 1;  // 1 = off
  int32_t top_k = 0;    // 0 = off
  float repetition_penalty = 1;
  // Keys that would change the text but are not applied: "no_repeat_ngram_size 3".
  std::vector<std::string> ignored;
};

// Reads model_dir/generation_config.json if it exists. Fails with kDataLoss for values out of range
// (for the temperature only where it is used).
Result<GenerationConfig> load_generation_config(const std::string& model_dir);
// Same, from parsed JSON; `where` names it in errors.
Result<GenerationConfig> read_generation_config(const Json& config, const std::string& where);

// Replaces `eos_tokens` with the file's `eos_token_id`, if both exist.
Status load_eos_tokens(const std::string& model_dir, int32_t vocab_size,
                       std::vector<int32_t>& eos_tokens);

}  // namespace specd
