// The same prompts on several routes, side by side: is the text the same, and what did it cost?
#pragma once

#include <string>
#include <vector>

#include "host/client.h"

namespace specd::host {

struct Prompt {
  std::string name;  // the file's name
  std::string text;
};

constexpr uint64_t kPromptBytesMax = 1 << 20;

// Files as they are; of a folder its regular files, by name. At most kPromptBytesMax each.
Result<std::vector<Prompt>> read_prompts(const std::vector<std::string>& paths);

struct CompareOptions {
  std::vector<std::string> routes;  // the first is the base
  std::vector<float> temperatures;  // one block of rows each; 0 = greedy
  float top_p = 1;
  int32_t top_k = 0;
  uint64_t seed = 0;  // of the first temperature; each further one has the next, so that recordings
                      // of one prompt are told apart
  int32_t max_tokens = 0;
  int repeat = 1;
};

struct CompareRow {
  std::string route;
  float temperature = 0;
  int64_t requests = 0, tokens = 0, steps = 0, drafted = 0, accepted = 0;
  double tokens_per_s = 0;       // median over the requests of at least two tokens: the tokens that
                                 // decode steps gave (the first is prefill's) / decode time
  double speedup = 0;            // to the base route at this temperature
  bool identical = true;         // every request's ids equal the base route's first for that prompt
  std::string first_difference;  // "orders.py: token 17"
};

// Routes take turns on each prompt, so that a machine that slows down slows all of them.
Result<std::vector<CompareRow>> compare(Client& client, const std::vector<Prompt>& prompts,
                                        const CompareOptions& options);

// Runs every prompt once and gives {"sequences": [{"prompt": [ids], "output": [ids], "seed": n}]},
// what the replay drafter reads.
Result<std::string> record(Client& client, const std::vector<Prompt>& prompts,
                           const CompareOptions& options);

}  // namespace specd::host
