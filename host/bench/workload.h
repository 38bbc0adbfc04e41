// Workloads: prompts from files, or random token ids of random lengths.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace specd::host {

struct Prompt {
  std::string name;  // the file's name; of a line of JSONL FILE:LINE
  std::string text;
  std::optional<std::vector<int32_t>> tokens;  // instead of text
  int32_t max_tokens = 0;                      // 0 = that of the run
};

constexpr uint64_t kPromptBytesMax = 1 << 20;

// A file is one prompt. A folder means its regular files, sorted by name. A *.jsonl file has one
// prompt per line: an object with `prompt` or `text` (a string) or `turns` (strings; the first is
// the prompt, since a base model has no notion of turns). At most kPromptBytesMax a prompt.
// without_first_line drops a leading instruction: the first line and the empty lines after it.
// Errors name FILE:LINE, the key, what was expected and what was found.
Result<std::vector<Prompt>> read_prompts(const std::vector<std::string>& paths,
                                         bool without_first_line = false);

// Lengths are drawn from normal distributions, rounded and kept within [1, n_max], as
// TensorRT-LLM's prepare_dataset does; ids are drawn evenly from the vocabulary.
struct SyntheticOptions {
  int32_t count = 0;
  double input_mean = 0, input_stdev = 0;
  double output_mean = 0, output_stdev = 0;
  uint64_t seed = 0;
};
// positions_max: input and output of one prompt together stay within it. The same options give the
// same prompts on every machine.
std::vector<Prompt> synthetic_prompts(const SyntheticOptions& options, int32_t vocab_size,
                                      int32_t positions_max);

}  // namespace specd::host
