// generation_config.json: how its maker wants a model sampled where a request does not say.
//
// Only what the file says is applied; transformers' own default of top_k 50 is not. Without
// `do_sample: true` the file asks for greedy decoding, and its temperature means nothing; its
// top_p, top_k and min_p hold for a request that asks for sampling, as in transformers (Vicuna's
// has them).
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
  float min_p = 0;    // 0 = off
  int32_t top_k = 0;  // 0 = off
  float repetition_penalty = 1;
  // Keys that would change the text and are not applied: "no_repeat_ngram_size 3".
  std::vector<std::string> ignored;
};

// The sampling of model_dir/generation_config.json, if it is there. kDataLoss for values out of
// range, the temperature's only where it means something.
Result<GenerationConfig> load_generation_config(const std::string& model_dir);
// The same of its content; `where` names it in errors.
Result<GenerationConfig> read_generation_config(const Json& config, const std::string& where);

// Replaces `eos_tokens` by the file's `eos_token_id`, if both are there.
Status load_eos_tokens(const std::string& model_dir, int32_t vocab_size,
                       std::vector<int32_t>& eos_tokens);

}  // namespace specd
