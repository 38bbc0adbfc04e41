// When a request's text ends: stop token ids, stop strings, length.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace specd {

// Finds stop strings in text that arrives in pieces. The one that ends first wins; among those that
// end together, the longest. The cut is therefore independent of piece boundaries. Text that could
// still become a stop string is held back, so no part of one is ever emitted. Worst-case
// cost: O(piece * longest stop string), bounded by request limits.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes the next piece and returns the text that may be emitted; empty after found().
  std::string push(std::string_view piece);
  // Returns the text held back. Call when the output ended for another reason.
  std::string flush();
  bool found() const { return found_ >= 0; }
  int32_t which() const { return found_; }  // its index; -1 = none

 private:
  std::vector<std::string> stops_;
  std::string held_;
  int32_t found_ = -1;
};

}  // namespace specd
