// What the last steps did with drafts, for those who look at an engine while it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace specd {

// One text in one step that added to it.
struct WatchedStep {
  uint64_t number = 0;   // of the step, in the engine
  int32_t n_output = 0;  // tokens of the output before it
  int32_t root = -1;     // the token that the tree hangs on: the last one of prompt and output
  // The draft nodes, parents first; parent -1 = a child of the root. A probe can become no text.
  std::vector<int32_t> token, parent;
  std::vector<bool> is_probe;
  std::vector<int32_t> accepted;  // nodes that became text, from the root down
  int32_t next_token = -1;        // follows them; -1 = the text ended before it
};

// A text that runs.
struct WatchedRequest {
  uint64_t number = 0;  // unique in the engine; 0 = there is none
  std::string id;
  int32_t index = 0;  // of the choice
  std::string route = "off";
  uint64_t generation = 0;  // of the route's version; 0 = off
  int32_t prompt_tokens = 0, output_tokens = 0, max_tokens = 0;
  int64_t drafted = 0, accepted = 0;
};

struct WatchedDrafts {
  std::vector<WatchedRequest> running;  // in the last step; not all, if they are very many
  WatchedRequest followed;              // as its last step left it, also when it has ended
  bool is_picked = false;               // by follow_drafts()
  std::vector<std::shared_ptr<const WatchedStep>> steps;  // its last ones, oldest first
};

}  // namespace specd
